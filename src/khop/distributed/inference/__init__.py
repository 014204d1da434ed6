"""Layer-wise inference: a model's output for every node, from complete neighbourhoods.

    layerwise      layerwise_inference: the layers, one after the other
    peers          division of nodes among trainers, and access to the others' rows
    neighborhoods  a part's nodes with all their neighbours, batch by batch
    inputs, rows   inputs of layers: attributes of the folder, outputs of the previous layer, which
                   come over the network where a trainer does not see their files
    layers         division of models into layers
    layer_runner   one layer over a trainer's nodes
    files          the folder of outputs
    output_server  the process that sends rows of outputs
    result         return value: rows by original id

`output_server` runs as a separate process, the rest in trainers. `neighborhoods`, `rows`, `files`
and `output_server` import no torch.
"""
