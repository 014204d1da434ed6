"""On-disk format of partitions, and access to one part. Imports no torch.

`folder` defines and checks the files, `part` maps the arrays of one part, `book` maps ids to the
parts that own them. `khop.partition` writes folders. Samplers, servers and trainers read them.
"""
