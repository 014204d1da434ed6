"""Trainers that are clients of graph servers.

Run by the trainer: `client_context` (`init_client`), `requests` (that
scripts send by name) and `served_graph` (the graph, for loaders). `backend` starts the processes
that bring a loader's batches, `local_sampler` uses samplers of a server on the same machine.
`served_access` and `served_part` give a `GraphStore` its servers and its graph. `directory_store`
keeps values and leases of clients.

Run by the receiver, without torch: `receiver` (its loop), `server_session` (a session on one
server), `reassembly` (a batch in chunks) and `batch_checks`.
"""
