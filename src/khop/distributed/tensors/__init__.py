"""Tensors that trainers write to: rows of all nodes or edges, at the servers of the partitions.

`graph_store` is the trainers' side: `GraphStore`, `GraphTensor`. `tensor_requests` has the requests
and the first values of rows. `shard` is the server's side: the rows of one part, and the pushes
that wait for the end of a step. Only `graph_store` imports torch.
"""
