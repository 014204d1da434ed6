"""Loaders that choose nodes. A batch has all edges among its nodes. Runs in the trainer.

`base` has the base class of `ClusterLoader`, `RandomNodeLoader` and GraphSAINT's samplers.
"""
