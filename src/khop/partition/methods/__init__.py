"""Methods of partitioning: classes that assign nodes to parts. Imports no torch.

`random` ignores edges, and `assigned` takes parts from the user. `stream` and `metis` cut few
edges, on the base of `structure`. `frequency` places nodes where batches most likely use them.
`seeded` computes these probabilities.
"""
