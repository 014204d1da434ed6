"""The soak: hours of loading while everything around the trainers fails at random.

`scripts/soak` is its command. Trainers (`trainer`) load epoch after epoch of a small graph and say
the checksum of each batch; a ledger (`ledger`) compares them with those of the in-memory loader
(`workload`), so that a batch that is lost, doubled or changed shows at once. First comes an
undisturbed cycle, then faults (`faults`): samplers and servers are killed or stopped for a while,
and between two network namespaces (`network`) packets are delayed, held or dropped and the link is
taken down. Meanwhile memory and descriptors are watched (`watch`). `run` puts it together:

    driver ──┬─ trainer 0 ── samplers, partition server     in namespace 0 ─┐
             │                                                              cable (driver's thread)
             └─ trainer 1 ── samplers, partition server     in namespace 1 ─┘
"""
