"""Iteration over a loader: epochs and their keys, who makes batches, and resuming.

Runs in the trainer. `stateful` is the base of all loaders, `iterator` counts deliveries, `resume`
and `replay` restore an epoch; `background` and `torch_workers` make batches beside the trainer.
"""
