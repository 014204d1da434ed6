"""The graph server's process. Imports no torch.

`main` is the program, `server_config` its configuration, `graph_server` its loop. `graph_handler`
answers requests about the graph and its rows, `control_handler` the others. These are requests to
the `directory` (registered processes, `published_values` of clients) and to the `session_table`
(loaders of clients). A `session` has samplers (`sampling.process_pool`) and a `send_queue`.
`session_environment` is what all sessions share, and `cache_budget` bounds the rows that they keep.
`validation` checks requests, `counters` counts, `local_clients` serves clients on this machine.
`job_stores` has the tensors of clients' jobs.
"""
