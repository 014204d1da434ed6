"""The trainer's side of what batches cost: waiting for them, collating, consuming."""

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
"""What there is to say of a batch: the arguments of `DeliveryWatch.deliver`."""

UNKNOWN: Cost = (0, 0, 0, (0, 0, 0, 0, 0), BatchTimings(*[0] * len(BatchTimings._fields)))
"""Of a batch of which nothing is known."""


class DeliveryWatch:
    """Follows the thread that iterates over an epoch.

    Args:
        tally: where batches and time are counted.
    """

    __slots__ = ("_delivered", "_tally")

    def __init__(self, tally: StatsAccumulator) -> None:
        self._tally = tally
        self._delivered = 0

    def fail(self) -> None:
        """A batch has failed: it is not counted, nor the time until the trainer asks again."""
        self._delivered = 0

    def deliver(
        self,
        asked: int,
        taken: int,
        epoch: int,
        number: int,
        seeds: int,
        sizes: Sizes,
        made: BatchTimings,
    ) -> None:
        """A batch is finished, and handed out.

        Args:
            asked: when the trainer wanted it, in nanoseconds of CLOCK_MONOTONIC.
            taken: when it was there, but for what the trainer does to it.
            epoch: of the loader.
            number: of the batch in it.
            seeds: its seeds.
            sizes: what it holds.
            made: what it cost where it was made.
        """
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
            if made.process or made is UNKNOWN[-1]:  # else what it made shows
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
