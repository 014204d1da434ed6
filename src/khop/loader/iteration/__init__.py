"""Iteration over a loader: epochs and their keys, who makes batches, and resuming.

Runs in the trainer. `stateful` is the base of all loaders, and `iterator` counts deliveries.
`resume` and `replay` restore an epoch. `virtual_ranks` and `virtual_cursor` divide an epoch among
any number of trainers. `background` and `torch_workers` make batches beside the trainer.
"""
