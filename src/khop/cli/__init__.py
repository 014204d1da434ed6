"""The `khop` command: one module a sub-command, imported when it is called.

Each command is a process. Imports no torch; commands that need torch import it when they run.
"""
