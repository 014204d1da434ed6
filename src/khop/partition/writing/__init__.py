"""Writers of a folder's parts, and the undirected graph that some methods read.

Imports no torch. `numbering` gives new ids to nodes, by `order` within a part. `nodes` writes ids
and attributes. `rows` splits edges by blocks, which `row_sort` sorts into compressed rows.
`undirected` joins all types to one graph, and `cluster_ids` makes its clusters.
"""
