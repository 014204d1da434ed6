"""Layer-wise inference: a model's output for every node, from complete neighbourhoods.

- `layerwise`: the function of trainers with partitions, which runs the layers one after the other
- `served`: the function of clients of graph servers, whose outputs are tensors of a store
- `peers`: division of nodes among trainers, and access to other trainers' rows
- `neighborhoods`: a part's nodes with all their neighbours, batch by batch
- `inputs`: input of the first layer, from attributes of the folder
- `layers`: division of models into layers
- `layer_runner`: one layer over a trainer's nodes
- `files`: the files of outputs, with rows on this machine and over the network
- `result`: the return value, with rows by original id

All run in trainers. Partition servers send rows of outputs (`khop.distributed.tensors.row_files`).
`neighborhoods` and `files` import no torch.
"""
