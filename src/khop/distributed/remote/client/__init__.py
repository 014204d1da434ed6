"""Trainers that are clients of graph servers.

In the trainer: `client_context` (`init_client`), `served_graph` (the graph, for loaders),
`requests` (by name), `directory_store` (values and leases of clients), `backend` (the processes
that make a loader's batches), `local_sampler` (samplers of a server on the same machine). In the
receiver's process, without torch: `receiver` (its loop), `server_session` (a session on one
server), `server_locator` (their addresses), `reassembly` (a batch in chunks), `batch_checks`.
"""
