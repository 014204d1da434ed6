"""Joining of a drawn subgraph with attributes, as PyG's loaders do. Runs in the trainer.

`collator` joins natively, `device` on GPUs, `pyg_form` in PyG's form, where users' hooks see it.
"""
