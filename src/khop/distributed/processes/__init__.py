"""Child processes: start, control, and diagnosis after their end. Imports no torch.

Any process can use it. `child` starts and explains them. `hosts` and `socket_files` have the
addresses and sockets of servers, `exit_hooks` the functions that run when a process ends.
"""
