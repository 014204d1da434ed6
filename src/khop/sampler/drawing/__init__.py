"""Drawing of batches: the engine, rows and their owners, links, negatives, and hotness.

A row is a node with its neighbours. Its owner is the partition that has it. Runs in trainers,
samplers and inference. Imports no torch. `engine` draws hop by hop over a `view` of a graph.
`graph_rows` draws the rows of this process and requests the rows of other owners. `batch_draw`
draws batches of programs (sampling methods in Python). `link` makes seeds of links, with `negative`
ones. `hotness` estimates how often nodes are drawn.
"""
