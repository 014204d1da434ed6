"""Timing of the thread that iterates: waiting, collating, consuming. Runs in the trainer."""

from __future__ import annotations

import os
import threading
from time import monotonic_ns
from typing import Any

from khop.metrics.loader_stats import Sizes, StatsAccumulator
from khop.trace.clock import ROWS, BatchTimings
from khop.trace.events import Delivery
from khop.trace.recording import current

Cost = tuple[int, int, int, Sizes, BatchTimings]
"""Cost of a batch: its epoch of the loader, its index in the epoch, the number of its seeds, its
contents, and its timings on the process that produced it."""

UNKNOWN: Cost = (0, 0, 0, (0, 0, 0, 0, 0), BatchTimings(*[0] * len(BatchTimings._fields)))
"""Cost of a batch of which nothing is known."""


class DeliveryWatch:
    """Timer of the thread that iterates over an epoch.

    Args:
        tally: counts batches and time.
    """

    __slots__ = ("_delivered", "_tally")

    def __init__(self, tally: StatsAccumulator) -> None:
        self._tally = tally
        self._delivered = 0

    def fail(self) -> None:
        """Note that a batch failed: neither it nor the time until the next request is counted."""
        self._delivered = 0

    def deliver(self, asked: int, taken: int, cost: Cost) -> None:
        """Count a batch that is finished and handed out.

        Args:
            asked: when the trainer asked for it, in nanoseconds of CLOCK_MONOTONIC.
            taken: when it had arrived, before the trainer's own work on it.
            cost: its cost.
        """
        epoch, number, seeds, sizes, made = cost
        now = monotonic_ns()
        before = self._delivered or asked
        self._delivered = now
        lay_ready = max(taken - made.ready, 0) if made.process else 0
        times = taken - asked, now - taken, asked - before
        self._tally.add(times, lay_ready, seeds, sizes, made)
        recording = current()
        if recording is not None:
            me = os.getpid(), threading.get_native_id()
            recording.add(me, "consuming", before, asked, {})
            if made.process or made is UNKNOWN[-1]:  # else its own phases are recorded
                recording.add(me, "waiting", asked, taken, {})
            args = _args(epoch, number, seeds, sizes, made.nbytes)
            recording.add(me, "collating", taken, now, args)
            if made.process:
                maker = made.process, made.thread
                recording.add_delivery(Delivery(maker, made.ready, me, taken))


def _args(epoch: int, number: int, seeds: int, sizes: Sizes, nbytes: int) -> dict[str, Any]:
    nodes, edges, *rows = sizes
    return {
        "epoch": epoch,
        "batch": number,
        "seeds": seeds,
        "nodes": nodes,
        "edges": edges,
        "rows": dict(zip(ROWS, rows, strict=True)),
        "bytes": nbytes,
    }
