"""Drawing of batches: the engine, its rows and their owners, links, negatives, and hotness.

Runs in trainers, samplers and inference. Imports no torch. `engine` draws hop by hop over a `view`
of a graph. `graph_rows` draws the rows of this process and requests those of other owners.
`batch_draw` draws a batch by a method that is a program. `link` makes seeds
of links, with `negative` ones. `hotness` estimates how often nodes are drawn.
"""
