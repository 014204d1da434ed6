"""Child processes: start, control, and diagnosis after their end. Imports no torch.

Any process may use it. `child` starts them, `diagnostics` keeps the log tail and current task of
each, `hosts` and `socket_files` have the addresses and sockets of servers, `exit_hooks` run when a
process ends.
"""
