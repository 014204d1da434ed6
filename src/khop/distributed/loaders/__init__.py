"""The distributed loaders and their parts. Runs in trainers.

`neighbor_loader`, `link_neighbor_loader` and `cluster_loader` have the public loaders, `base` their
epochs, `partition_sampler` serves PyG's own loaders. `split` divides seeds among trainers;
`trainer_inputs` and `sampling_options` check arguments; `backends` selects the processes that make
batches; `collate` turns arrays into PyG's batches; `device_transfer` and `pinned_memory` copy them
to a GPU.
"""
