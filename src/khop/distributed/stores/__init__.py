"""A `DistDataset` as PyG's feature store and graph store. Runs in trainers.

`dataset_stores` answers PyG's requests, `edge_lookup` finds the attributes of edges by id.
"""
