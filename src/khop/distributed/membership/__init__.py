"""Membership of a group of processes: shared values, leases, barriers, notices of failures.

Trainers, clients of graph servers and graph servers use it; imports no torch. `members` is the
interface of a group's member, `barrier` has the steps that all members take together, `leases`
measures how long others have been silent, `polling` has the pauses of waits. Values and leases are
in torch's store (`job.torch_store`) or in the graph servers' directory
(`remote.client.directory_store`).
"""
