"""Loaders that choose nodes; a batch has all edges among its nodes. Runs in the trainer.

`base` has what clusters, GraphSAINT, random parts and ShaDow's subgraphs share.
"""
