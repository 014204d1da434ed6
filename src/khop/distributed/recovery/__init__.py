"""What becomes of samplers and partition servers that die, in worker mode.

Samplers: `deaths` (which are made good), `standby` (a process at hand), `last_words` (what is known
of a dead one). Servers: `keeper` (starts them again), `herald` (tells other trainers where they
are), `whereabouts` (what all clients of a trainer look into).
"""
