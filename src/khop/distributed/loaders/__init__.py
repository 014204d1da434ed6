"""The distributed loaders and their parts. Runs in trainers.

`neighbor_loader`, `link_neighbor_loader` and `cluster_loader` have the public loaders, and `base`
has their epochs. `partition_sampler` is for PyG's own loaders. `split` divides seeds among
trainers. `trainer_inputs` and `sampling_options` check arguments. `backends` selects the processes
that make batches: samplers, graph servers or the trainer itself (`in_process`). `agreement` has
checks that all trainers make the same loader. `exchange_choice` and `exchanged_parts` are for
`exchange='all_to_all'`. `collate` turns
arrays into PyG's batches, and `device_transfer` copies them to a GPU. `cooperative_loader` has
`CooperativeLoader`, and `trainer_group` has the exchanges between its trainers.
"""
