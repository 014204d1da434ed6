"""Layer-wise inference: a model's output for every node, each neighbourhood whole.

    run            layerwise_inference: the layers, one after the other
    peers          who computes what, and how the others' rows are reached
    neighborhoods  a part's nodes with all their neighbours, batch by batch
    inputs, rows   what layers get: attributes of the folder, outputs of the layer before
    layers         models taken apart
    runner         one layer over a trainer's nodes
    files          the folder of outputs
    server, client rows of outputs over the network
    result         what users get

`neighborhoods`, `rows`, `files`, `server` and `client` import no torch.
"""
