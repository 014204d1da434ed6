"""Traces of batches on one time line: samplers, partition servers and the trainer.

    with khop.trace.record("out.json"):
        for batch in loader:
            ...

writes a trace that opens in https://ui.perfetto.dev. Each process that makes batches keeps a
`PhaseClock`. Its readings are sent to the trainer with each batch. While a recording is under way,
the segments between two readings are sent, too (`clock`). Servers send the times of their work in
their replies (`requests`). The trainer adds its own phases (`khop.loader.iteration.iterator`),
keeps all records (`recording`) and writes them in Chrome's format (`events`). All processes read
CLOCK_MONOTONIC, which is the same for all processes of a machine.

Imports no torch.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
