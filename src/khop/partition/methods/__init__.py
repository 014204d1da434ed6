"""Partitioners: each assigns nodes to parts in its own way; see `khop.partition.base`.

Imports no torch. `random`, `stream`, `metis` and `assigned` read the structure or an assignment;
`frequency` and `seeded` also read how often batches use nodes.
"""
