"""Writers of a folder's parts, and the undirected graph that some partitioning methods read.

Imports no torch. `numbering` gives new ids to nodes, sorted by `order` within a part. `nodes`
writes ids and attributes of nodes. `rows` splits the edge list by blocks of rows. `row_sort` sorts
each block into CSR rows. `undirected` joins all types to one graph, and `cluster_ids` makes
clusters of its nodes.
"""
