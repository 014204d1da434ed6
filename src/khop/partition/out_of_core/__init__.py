"""Partitioning within limits of memory, disk and machines, with runs that can be resumed.

Imports no torch. `effort` has the limits that a user sets, `plan` estimates what a run takes. A
`workspace` keeps edges between steps: in memory, in files (`stage`, `journal`) or on Ray
(`on_ray`).
"""
