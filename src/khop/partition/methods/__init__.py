"""Partitioners, each with its own way to assign nodes to parts. Imports no torch.

`random`, `stream`, `metis` and `assigned` read the structure or an assignment. `frequency` and
`seeded` also read how often batches use nodes. `khop.partition.base` does the rest.
"""
