"""Requests between processes: protocol, connections, keys, limits, and the partition server.

Imports no torch: servers and samplers run it. Samplers, trainers, receivers and graph servers send
requests (`part_requests`, `partition_client`, `connection`, `pending`). Servers reply
(`partition_server`, `server_sockets`, `tcp_sockets`, `partition_handler`). They divide work into
slices (`work`), and serve users in turn (`fair_queue`, `request_threads`, `identity`).
`frame_handler` has the table of the requests that a server answers. Requests that change a
server's state are numbered (`state_requests`) and applied once (`state_handler`). Messages go over
ZeroMQ or a user's own `transport`. `protocol` has the messages, `endpoint` the addresses and key
pairs. `limits` and `connections` bound what a peer can use. `keys` and `key_files` are for graph
servers and clients.
"""
