"""Requests between processes: protocol, connections, keys, limits, and the partition server.

Imports no torch: servers and samplers run it. Samplers, trainers, receivers and graph servers send
requests (`partition_client`, `connection`, `pending`). Servers reply (`partition_server`,
`server_sockets`, `tcp_sockets`, `partition_handler`), slice by slice (`work`) and in turns by user
(`fair_queue`, `request_threads`, `identity`). `frame_handler` has the table of the requests that a
server answers. Writes are numbered (`state_requests`) and applied once (`state_handler`). Messages
go over ZeroMQ or a user's own `transport`. `protocol` has the messages, `endpoint` the addresses
and key pairs. `limits` and `connections` have the bounds of each peer. `keys` and `key_files` have
the keys of graph servers and their clients.
"""
