"""Layer-wise inference: a model's output for every node, from complete neighbourhoods.

    layerwise      layerwise_inference: the layers, one after the other
    peers          division of nodes among trainers, and access to the others' rows
    neighborhoods  a part's nodes with all their neighbours, batch by batch
    inputs, rows   inputs of layers: attributes of the folder, outputs of the previous layer
    layers         division of models into layers
    layer_runner   one layer over a trainer's nodes
    files          the folder of outputs
    output_server, output_client   rows of outputs over the network
    result         return value: rows by original id

`output_server` runs as a separate process, the rest in trainers. `neighborhoods`, `rows`, `files`,
`output_server` and `output_client` import no torch.
"""
