"""Trainers that are clients of graph servers.

In the trainer: `client_context` (`init_client`, values and leases of clients), `served_graph` (the
graph, for loaders), `requests` (by name), `backend` (the processes that make a loader's batches)
and `local_sampler` (samplers of a server on the same machine).

In the receiver's process, without torch: `receiver` (its loop), `server_session` (a session on one
server), `reassembly` (a batch in chunks) and `batch_checks`.
"""
