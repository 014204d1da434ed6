"""Child processes: how they are started, watched and explained after their end. Imports no torch.

`child` starts them, `diagnostics` keeps what is known of one that died, `hosts` and `socket_files`
say where they are reached, `exit_hooks` run at their end.
"""
