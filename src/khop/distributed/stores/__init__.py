"""PyG's feature store and graph store over a `DistDataset`. Runs in trainers and PyG's workers.

`dataset_stores` implements PyG's interfaces, `edge_lookup` finds the edges of a sampler's output,
and `user_data` reads labels and stores that users name beside the folder.
"""
