"""Membership of a process in its job, and synchronisation with the other trainers.

`launch_environment` reads the rank that a launcher gave. `kubernetes` does so for pods, and
`cluster_environment` has the base class. `torch_store` reaches the job's key-value store. `context`
holds role and rank of this process. `worker_group` joins and leaves the group of trainers, and
separates this start of the job from earlier ones in the same store. `node_peers` has the trainers
of one machine whose GPUs share tables. `distributed.membership` has shared values and notices of
failures.
"""
