"""The trainer's side of what batches cost: waiting for them, collating, consuming."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from time import monotonic_ns
from typing import Any, NamedTuple

from khop.stats import LoaderStats
from khop.trace.clock import Made
from khop.trace.events import Delivery
from khop.trace.recording import Recording, current

_NS = 1e-9


class Batch(NamedTuple):
    """A delivered batch.

    Attributes:
        epoch, number: which one it is.
        seeds: how many it has.
        sizes: its 'nodes', 'edges' and 'rows'.
        made: what it cost where it was made.
        maker: process and thread that made it; None: this thread.
    """

    epoch: int
    number: int
    seeds: int
    sizes: Mapping[str, Any]
    made: Made
    maker: tuple[int, int] | None


class DeliveryWatch:
    """Follows the thread that iterates over an epoch.

    For each batch, in this order: `ask`, `take` and `deliver`. A batch that fails is left where it
    is; the next one begins with `ask`.

    Args:
        stats: where the time is counted.
    """

    __slots__ = ("_asked", "_delivered", "_stats", "_taken")

    def __init__(self, stats: LoaderStats) -> None:
        self._stats = stats
        self._asked = self._taken = self._delivered = 0

    def ask(self) -> None:
        """The trainer wants the next batch."""
        self._asked = monotonic_ns()

    def take(self) -> None:
        """It is there, as arrays or not yet finished."""
        self._taken = monotonic_ns()

    def deliver(self, batch: Batch) -> None:
        """It is finished, and handed out."""
        asked, taken, now = self._asked, self._taken, monotonic_ns()
        before = self._delivered or asked
        self._delivered = now
        stats = self._stats
        seconds = stats.trainer_seconds
        seconds["waiting"] += (taken - asked) * _NS
        seconds["collating"] += (now - taken) * _NS
        seconds["consuming"] += (asked - before) * _NS
        if batch.maker is not None:
            stats.ready_seconds += max(taken - batch.made.ready, 0) * _NS
        stats.add(batch.sizes, batch.made, batch.seeds)
        recording = current()
        if recording is not None:
            _record(recording, batch, (before, asked, taken, now))

    def deliver_unknown(self) -> None:
        """As `deliver`, of a batch of which nothing is known."""
        sizes = {"nodes": 0, "edges": 0, "rows": {}}
        made = Made(0, 0, 0, 0, (0, 0, 0, 0, 0))
        self.deliver(Batch(0, self._stats.batches, 0, sizes, made, None))


def _record(recording: Recording, batch: Batch, times: tuple[int, int, int, int]) -> None:
    before, asked, taken, now = times
    me = os.getpid(), threading.get_native_id()
    name = {"epoch": batch.epoch, "batch": batch.number}
    recording.add(me, "consuming", before, asked, {})
    if batch.maker is not None:
        recording.add(me, "waiting", asked, taken, name)
        recording.deliveries.append(Delivery(batch.maker, batch.made.ready, me, taken))
    sizes = {
        "seeds": batch.seeds,
        "nodes": batch.sizes["nodes"],
        "edges": batch.sizes["edges"],
        "rows": batch.sizes["rows"],
        "bytes": batch.made.nbytes,
    }
    recording.add(me, "collating", taken, now, {**name, **sizes})
