"""Requests between processes: protocol, connections, keys, limits, and the partition server.

Imports no torch: servers and samplers run it. Samplers, trainers, receivers and graph servers send
requests (`partition_client`, `connection`, `pending`). Servers reply
(`partition_server`, `server_sockets`, `listener`, `partition_handler`), in slices (`work`) and in
turns by user (`fair_queue`, `request_threads`, `identity`). `frame_handler` has the table of the
requests that a server answers. Those that write are numbered (`state_requests`) and applied once
(`state_handler`, `write_windows`). Messages go over ZeroMQ (`zmq_channel`) or a transport of the
user's own (`transport`, `channel_front`). `protocol` has the messages, `endpoint` the addresses and
key pairs, `limits` the bounds for each peer, `keys` and `key_files` the keys of graph servers and
their clients.
"""
