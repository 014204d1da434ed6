"""Methods of partitioning: classes that assign nodes to parts. Imports no torch.

`random` ignores edges, `assigned` takes the user's parts, `stream` and `metis` cut few edges.
`frequency` places nodes where batches most likely use them, as `seeded` computes from the graph.
"""
