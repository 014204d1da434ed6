"""Batches made in sampler processes: the samplers, and the trainer's pool of them.

In a sampler (no torch): `worker` (its loop), `pipeline` (from seeds to a written batch), `slots`
and `device_slots` (memory that it writes to), `link_sampling`. In a trainer: `pool` (which sampler
makes which batch), `process_handle` (one of them), `prefetch`, `restart_policy`, `standby`,
`buffer_plan` (memory), `gpu_sharing` (a warning). `control_messages` go between the two.
"""
