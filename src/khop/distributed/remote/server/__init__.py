"""The graph server's process. Imports no torch.

`main` is the program, `server_config` its configuration, `graph_server` its loop. Requests about
the graph and its rows go to `graph_handler`. `control_handler` answers the other requests, for
`directory` (registered processes, and `published_values` of clients) and `session_table` (loaders
of clients). A `session` has samplers (`sampling.process_pool`) and a `send_queue`. `validation`
checks requests of clients, `counters` counts, `local_clients` serves clients on the same machine.
"""
