"""The distributed loaders and their parts. Runs in trainers.

`neighbor_loader`, `link_neighbor_loader` and `cluster_loader` have the public loaders, `base` their
epochs, `partition_sampler` serves PyG's own loaders. `split` divides seeds among trainers,
`trainer_inputs` and `sampling_options` check arguments. `backends` selects the processes that make
batches, or the trainer's (`in_process`). `collate` turns arrays into PyG's batches, and
`device_transfer` copies them to a GPU. `cooperative_loader` has `CooperativeLoader`, and
`trainer_group` its exchanges.
"""
