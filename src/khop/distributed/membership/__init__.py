"""Membership of a process in a group: shared values, leases, barriers, notices of failures.

Trainers, clients of graph servers and graph servers use it. Imports no torch. `members` is a
process as member of its group. `barrier` has the steps that all members take together. `leases`
measures how long members have been silent, and `polling` has the pauses of waits. `member_store` is
the interface to a store of values and leases: torch's store (`job.torch_store`) or the graph
servers' directory (`remote.client.client_context`).
"""
