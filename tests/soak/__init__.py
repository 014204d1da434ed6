"""The soak: hours of loading while the processes and the network around trainers fail at random.

`scripts/soak` is its command. Trainers (`trainer`) load epoch after epoch of a small graph and
print the checksum of each batch. A ledger (`ledger`) compares these with the checksums of the
in-memory loader (`workload`). So a batch that is lost, doubled or changed is found at once.

First comes an undisturbed cycle, then faults (`faults`). Samplers and servers are killed, or
stopped for a while. Between two network namespaces (`network`) packets are delayed, held or
dropped, and the network link is taken down. Meanwhile memory and descriptors are sampled (`watch`).
`run` starts the `processes`, `outcome` is the report. All but `trainer` run in the driver.

In worker mode:

    driver ──┬─ trainer 0 ── samplers, partition server     in namespace 0 ─┐
             │                                                              cable (driver's thread)
             └─ trainer 1 ── samplers, partition server     in namespace 1 ─┘

and with graph servers, which a supervisor in the driver starts again:

    driver ──┬─ khop serve 0 ── samplers     ┬─ client ── receivers                  in namespace 0
             └─ khop serve 1 ── samplers     └─ visitor ── receivers, comes and goes in namespace 1
"""
