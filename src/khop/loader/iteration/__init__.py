"""Iteration over a loader: epochs and their keys, who makes batches, and resuming.

Runs in the trainer. `stateful` is the base of all loaders, `iterator` counts deliveries, `resume`
and `replay` restore an epoch; `virtual_ranks` and `virtual_cursor` divide one among any number of
trainers; `background` and `torch_workers` make batches beside the trainer.
"""
