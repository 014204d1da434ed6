"""Joining of a drawn subgraph with attributes, as PyG's loaders do. Runs in the trainer.

`ways` has the two ways of a batch, khop's and PyG's. `collator` joins on the CPU, `device` on GPUs,
`stores` with attributes from PyG's stores.
"""
