"""The graph server's process, and what runs in it. Imports no torch.

`main` is the program, `graph_server` its loop. Requests go to `directory` (who is there),
`graph_handler` (the graph and its rows) or `session_table` (loaders of clients): a `session` has
samplers (`session_sampler`) and a `send_queue`. `validation` checks what clients ask for,
`identity` says who asks and whose turn it is, `counters` count, and `local_clients` serves
clients of the same machine.
"""
