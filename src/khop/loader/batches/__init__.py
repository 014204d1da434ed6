"""Making of batches from seeds, as PyG's loaders do. Runs in the trainer.

To *draw* a batch is to sample its subgraph. To *join* it is to make a PyG batch of the subgraph and
the attributes of its nodes and edges. `ways` does both. `collator` joins on the CPU, `device` on
GPUs, `stores` with attributes from PyG's stores. `layers` splits batches into a model's layers.
`padding` pads them to the sizes of `shapes`.
"""
