"""khop, a floor and its peers, measured in turns on one machine.

`benchmarks/run.py` is the program and `command` its arguments. khop itself contains none of this.

A suite (`settings` lists them, `run` runs them) makes cases from cached graphs (`graphs`) and
measures them in turns (`measure`). The results are compared with the goals (`goals`). They are
written as a table, JSON and a chart (`report`, `chart`), with a description of the machine
(`machine`). The floor's native module is built on first use (`floor`). Peers (`peers`) that cannot
be imported are left out, with a line that says so, and so is the floor if it cannot be built.
Suites run in the process of the command, which is the trainer of their loaders. Needs torch and
PyG.
"""
