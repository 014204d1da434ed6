"""Partition servers of a job: start, supervision, discovery and reads. Runs in trainers.

`service` decides which machine serves which partition. `server_process` starts a server,
`supervisor` restarts it, and `endpoint_registry` keeps its address current in all trainers.
`shared_client` and `reader` read from the servers.
"""
