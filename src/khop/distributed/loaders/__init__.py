"""The distributed loaders, and what they share. Runs in trainers.

`neighbor_loader` and `link_neighbor_loader` are what users make, `base` has their epochs,
`partition_sampler` serves PyG's own loaders. `split` divides seeds among trainers; `node_inputs`,
`link_inputs` and `sampling_options` check what users pass; `backends` chooses who makes the
batches; `collate` turns arrays into PyG's batches; `device_transfer` and `pinned_memory` bring them
to a GPU.
"""
