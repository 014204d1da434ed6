"""Iteration over a loader: epochs and their random keys, sources of batches, and resuming.

Runs in the trainer. `stateful` is the base of all loaders, and `iterator` counts deliveries.
`resume` and `replay` restore an epoch. `virtual_ranks` and `virtual_cursor` divide an epoch among
any number of trainers. `background` makes batches in threads, `torch_workers` in processes.
"""
