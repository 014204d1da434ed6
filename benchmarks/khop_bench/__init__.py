"""Benchmarks: khop, a floor and its peers, measured in turns on one machine.

The floor is the least that an operation can cost: reading and writing its memory. Peers are other
libraries. `benchmarks/run.py` is the program, `command` has its arguments.

A suite (`settings` lists them, `run` runs them) makes cases from cached graphs (`graphs`) and
measures them in turns (`measure`). The results are compared with the goals (`goals`). They are
written as a table, JSON and a chart (`report`, `chart`), with a description of the machine
(`machine`). The floor's module is built on first use (`floor`). Peers (`peers`) that cannot be
imported are left out with a note, and so is a floor that cannot be built.
Suites run in the process of the command, which is the trainer of their loaders. Needs torch and
PyG.
"""
