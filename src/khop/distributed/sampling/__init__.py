"""Sampling in worker processes: the sampler, and the trainer's pool of samplers.

Imports no torch. In a sampler: `worker` (its loop), `pipeline` (from seeds to a written batch),
`slots` and `device_slots` (memory for batches), `link_sampling`. In a trainer: `pool` (assignment
of batches to samplers), `process_handle` (one sampler), `prefetch`, `restart_policy`, `standby`,
`buffer_plan` (memory), `gpu_sharing` (a warning). `control_messages` go between the two.
"""
