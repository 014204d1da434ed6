"""Loaders that choose nodes. A batch has all edges among its nodes. Runs in the trainer.

`base` has what clusters, GraphSAINT, random parts and ShaDow's subgraphs share.
"""
