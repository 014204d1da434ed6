"""PyG's example scripts with khop's loaders: `python tests/scripts/pyg_examples --checkout DIR`.

`examples` is the table, `datasets` has stand-ins for the data sets, `cpu` for GPUs, and
`__main__` runs scripts and judges them.
"""
