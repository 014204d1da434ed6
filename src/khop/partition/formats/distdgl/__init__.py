"""DistDGL's partition folders: read into khop's, and written from them, without DGL.

`importer` and `exporter` are the two directions. `config` has the JSON file and the numbering of
ids, `graph_file` files with a part's graph. Both use the primitives of `byte_stream`, which also
has files with named arrays. Used by `khop convert`. Imports no torch. Files are::

    <name>.json                  ranges of ids by type and part, names of types, paths of files
    part<p>/graph.dgl            the part's edges, and their sources in other parts
    part<p>/node_feat.dgl        attributes of its nodes, '<type>/<name>'
    part<p>/edge_feat.dgl        attributes of its edges, '<source>:<relation>:<destination>/<name>'
    part<p>/orig_nids.dgl        original ids of its nodes by type, if they were saved
    part<p>/orig_eids.dgl        original ids of its edges by type, if they were saved

Nodes of all types have one numbering: part after part, and within a part type after type. Edges
have such a numbering, too, and belong to the part of their destination.
"""
