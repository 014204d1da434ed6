"""Trainers that are clients of graph servers.

In the trainer: `membership` (`init_client`), `served_graph` (the graph as loaders see it),
`requests` (by name), `directory_rendezvous` (clients among each other), `backend` (who brings a
loader's batches), `local_sampler` (samplers of a server on the same machine). In the receiver's
process,
without torch: `receiver` (its loop), `server_session` (a server), `reassembly` (a batch in chunks),
`batch_checks`.
"""
