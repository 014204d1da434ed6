"""Partitioning within limits of memory, disk and machines, with runs that can be resumed.

Imports no torch. `plan` has the limits that a user sets, and estimates memory, disk and time.
`effort` opens a `workspace`, which keeps edges between steps: in memory, in files (`stage`,
`journal`) or on Ray (`on_ray`).
"""
