"""What batches cost, on one time line: samplers, partition servers and the trainer.

    with khop.trace.record("out.json"):
        for batch in loader:
            ...

writes a trace that opens in https://ui.perfetto.dev. Everything about a batch travels with the
batch: whoever makes batches keeps a `PhaseClock`, whose readings go to the trainer with each of
them, and only while a recording is under way also what lies between two readings (`clock`). Servers
say in their replies when they were at work (`requests`). The trainer adds what it does itself
(`watch`), keeps all that (`recording`) and writes it in Chrome's format (`events`, `files`). One
clock, CLOCK_MONOTONIC, is read everywhere: it is the same for all processes of a machine.

What samplers and servers use imports no torch.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__, {"Recording": "recording", "merge": "files", "record": "recording"}
)
