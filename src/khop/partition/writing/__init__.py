"""Writers of a folder's parts: new ids, rows of edges, nodes. Also the undirected graph.

Imports no torch. `rows` splits edges by blocks, which `row_sort` sorts into compressed rows.
`nodes` writes ids and attributes, `order` orders rows within a part. `undirected` is the graph
that partitioners of the structure read, `cluster_ids` its clusters.
"""
