"""Writers of a folder's parts: new ids, rows of edges, nodes; and the undirected graph.

Imports no torch. `rows` sorts edges into compressed rows by blocks (`row_split`, `row_sort`).
`nodes` writes ids and attributes, `order` orders rows within a
part. `undirected` is the graph that partitioners of the structure read.
"""
