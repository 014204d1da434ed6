"""Tensors that trainers write to: rows of all nodes or edges, at the servers of the partitions.

`graph_store` has `GraphStore`, and `graph_tensor` its tensors. Both use `store_client`, the
requests and steps of a trainer, and `store_access`, its way to graph, servers and other trainers.
`store_reader` has `GraphStoreReader`. `tensor_view` is the base of all tensors. `batch_rows` adds
rows to batches. `staging` has the memory that values of pushes to a server on this host are written
to. `store_features` is PyG's `FeatureStore` over a store. `checkpoint` writes and reads folders.
`checkpoint_files` has their files. `row_files` has requests for rows of outputs of inference.
`torch_checkpoint` has the tensors for torch.distributed.checkpoint. `propagation` sets rows from
the rows of neighbours. `tensor_requests` has the requests and the first values of rows. `shard` is
the server's side: the rows of one part, and the pushes that wait for the end of a step.
`row_updates` applies pushes, `disk_rows` has rows in a file, and `accounts` bounds bytes. These
four, `tensor_requests`, `checkpoint_files` and `row_files` import no torch.
"""
