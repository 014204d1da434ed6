"""Sampling in worker processes: the sampler, and the pool of samplers.

Imports no torch. Samplers run `worker` (their loop), `window` (order of the batches' stages),
`pipeline` (from seeds to a written batch) and `link_sampling`. `slots` and `device_slots` are the
memory of batches. Trainers and graph servers run `process_pool` (processes and their batches in
flight: assignment, messages, restarts) and `process_handle` (one process). Only trainers run `pool`
(epochs, batches ahead), `buffer_plan` (memory) and `gpu_sharing` (a warning). `control_messages`
has the messages to samplers.
"""
