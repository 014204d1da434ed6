"""Tensors that trainers write to: rows of all nodes or edges, at the servers of the partitions.

`graph_store` has `GraphStore` and `graph_tensor` its tensors. Both use `store_client`, the requests
and steps of a trainer. `batch_rows` adds rows to batches. `checkpoint` writes and reads folders.
`propagation` sets rows from the rows of neighbours. `tensor_requests` has the requests and the
first values of rows. `shard` is the server's side: the rows of one part, and the pushes that wait
for the end of a step. `shard` and `tensor_requests` import no torch.
"""
