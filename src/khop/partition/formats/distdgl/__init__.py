"""Conversion between DistDGL's partition folders and khop's, without DGL.

`importer` reads DistDGL's folders, and `exporter` writes them. `config` has the JSON file and the
numbering of ids. `graph_file` has files with a part's graph, and `byte_stream` files with named
arrays. Used by `khop convert`. Imports no torch. Files are::

    <name>.json                  ranges of ids by type and part, names of types, paths of files
    part<p>/graph.dgl            the part's edges, and their sources in other parts
    part<p>/node_feat.dgl        attributes of its nodes, '<type>/<name>'
    part<p>/edge_feat.dgl        attributes of its edges, '<source>:<relation>:<destination>/<name>'
    part<p>/orig_nids.dgl        original ids of its nodes by type, if they were saved
    part<p>/orig_eids.dgl        original ids of its edges by type, if they were saved

Nodes of all types are numbered together: part after part, and within a part type after type. Edges
are numbered in the same way. An edge belongs to the part of its destination.
"""
