"""The `khop` command: one module per sub-command, imported when the sub-command runs.

Each command is a process. Commands that need torch import it when they run.
"""
