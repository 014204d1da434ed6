"""`khop bench`: khop, a floor and its peers, measured in turns on one machine.

A suite (`settings` lists them, `run` runs them) makes cases from cached graphs (`graphs`) and lets
them take turns (`measure`). What comes out is compared with the goals (`goals`) and written as a
table, JSON and a picture (`report`, `chart`) beside what is needed to judge it (`machine`). Peers
(`peers`) are measured where they can be imported and left out, with a line that says so, where not.
"""
