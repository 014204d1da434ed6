"""Partition servers of a job: started, supervised, found, and read from. Runs in trainers.

`service` decides which machine serves what, `server_process` starts a server, `supervisor` restarts
it, `failure_detector` and `endpoint_registry` keep its address current for everybody,
`shared_client` and `reader` read from it.
"""
