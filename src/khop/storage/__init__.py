"""The on-disk format of partitions, and one part of it opened. Imports no torch.

`folder` knows what lies where and checks it, `part` maps one part's arrays, `book` tells which part
owns a node. `khop.partition` writes folders; samplers, servers and trainers read them.
"""
