"""The graph server's process. Imports no torch.

`main` is the program, `graph_server` its loop. Requests go to `graph_handler` (the graph and its
rows) or `control_handler`, which asks `directory` (registered processes, and `published_values` of
clients) or `session_table` (loaders of clients). A `session` has samplers
(`sampling.process_pool`) and a `send_queue`. `validation` checks requests of clients, `identity`
finds the users that send them and queues their work, `counters` counts, and `local_clients` serves
clients on the same machine.
"""
