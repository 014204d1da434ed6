"""`khop bench`: khop, a floor and its peers, measured in turns on one machine.

A suite (`settings` lists them, `run` runs them) makes cases from cached graphs (`graphs`) and
measures them in turns (`measure`). The results are compared with the goals (`goals`) and written as
a table, JSON and a chart (`report`, `chart`), with a description of the machine (`machine`). Peers
(`peers`) that cannot be imported are left out, with a line that says so. Suites run in the
process of the command, which is the trainer of their loaders. Needs torch and PyG.
"""
