"""Sampling in worker processes: the sampler, and the pool of samplers.

Imports no torch. In a sampler: `worker` (its loop), `pipeline` (from seeds to a written batch),
`slots` and `device_slots` (memory for batches), `link_sampling`. In a trainer or graph server:
`process_pool` (processes and their batches in flight: assignment, messages, restarts) and
`process_handle` (one process). In a trainer alone: `pool` (epochs, batches ahead), `buffer_plan`
(memory), `gpu_sharing` (a warning). `control_messages` go between the two.
"""
