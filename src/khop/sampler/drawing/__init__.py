"""Drawing of batches: the engine, its rows and their owners, links, negatives, and hotness.

Runs in trainers, samplers and inference. Imports no torch. `engine` draws hop by hop over a `view`
of a graph. `graph_rows` draws the rows of this process and requests the rows of other owners.
`batch_draw` draws batches of programs. `link` makes seeds of links, with `negative` ones. `hotness`
estimates how often nodes are drawn.
"""
