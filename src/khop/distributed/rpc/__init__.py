"""Requests between processes: protocol, connections, keys, limits, and the partition server.

Imports no torch: servers and samplers run it. Samplers, trainers and graph servers ask
(`partition_client`, `partition_connection`, `connection`); a partition server answers
(`partition_server`, `listener`, `partition_handler`). `protocol` has the messages, `limits` bounds
what a peer may cause, `keys` and `key_files` say who may connect.
"""
