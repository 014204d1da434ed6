"""The `khop` command: one module a sub-command, imported when it is called."""
