"""Partitioning within limits of memory, disk and machines, with runs that can be resumed.

Imports no torch. `plan` estimates memory, disk and time, and has the limits that a user sets.
`workspace` is the storage of edges between the steps: in memory, in files (`stage`, `journal`), or
in a Ray cluster (`on_ray`). `effort` opens it.
"""
