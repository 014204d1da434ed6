"""The trainer's side of what batches cost: waiting for them, collating, consuming."""

from __future__ import annotations

import os
import threading
from time import monotonic_ns
from typing import Any

from khop.sampler.collect import ROWS
from khop.stats import Sizes, Tally
from khop.trace.clock import Made
from khop.trace.events import Delivery, Thread
from khop.trace.recording import Recording, current

Cost = tuple[int, int, int, Sizes, Made]
"""What there is to say of a batch: the arguments of `DeliveryWatch.deliver`."""

_Times = tuple[int, int, int, int]


class DeliveryWatch:
    """Follows the thread that iterates over an epoch.

    For each batch, in this order: `ask`, `take` and `deliver`. A batch that fails is left where it
    is, and the time until the next `ask` is not counted.

    Args:
        tally: where batches and time are counted.
    """

    __slots__ = ("_asked", "_delivered", "_is_asked", "_taken", "_tally")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._asked = self._taken = self._delivered = 0
        self._is_asked = False

    def ask(self) -> None:
        """The trainer wants the next batch."""
        if self._is_asked:  # and did not get the one before
            self._delivered = 0
        self._is_asked = True
        self._asked = monotonic_ns()

    def take(self) -> None:
        """It is there, but for what the trainer does to it."""
        self._taken = monotonic_ns()

    def deliver(
        self,
        epoch: int,
        number: int,
        num_seeds: int,
        sizes: Sizes,
        made: Made,
    ) -> None:
        """It is finished, and handed out.

        Args:
            epoch: of the loader.
            number: of the batch in it.
            num_seeds: its seeds.
            sizes: what it holds.
            made: what it cost where it was made.
        """
        times = self._count()
        self._tally.add(num_seeds, sizes, made)
        if made.process and made.ready < self._taken:
            self._tally.ready += self._taken - made.ready
        recording = current()
        if recording is not None:
            args = {
                "epoch": epoch,
                "batch": number,
                "seeds": num_seeds,
                "nodes": sizes.nodes,
                "edges": sizes.edges,
                "rows": dict(zip(ROWS, sizes[2:], strict=True)),
                "bytes": made.nbytes,
            }
            me = _record(recording, times, made.process != 0, args)
            if made.process:
                maker = made.process, made.thread
                recording.add_delivery(Delivery(maker, made.ready, me, self._taken))

    def deliver_unknown(self) -> None:
        """As `deliver`, of a batch of which nothing else is known."""
        times = self._count()
        self._tally.add_unknown()
        recording = current()
        if recording is not None:
            _record(recording, times, True, {})

    def _count(self) -> _Times:
        """Counts the trainer's time; returns when it had the batch before, asked, took, and now."""
        asked, taken, now = self._asked, self._taken, monotonic_ns()
        before = self._delivered or asked
        self._delivered, self._is_asked = now, False
        spent = self._tally.trainer
        spent[0] += taken - asked
        spent[1] += now - taken
        spent[2] += asked - before
        return before, asked, taken, now


def _record(recording: Recording, times: _Times, waits: bool, args: dict[str, Any]) -> Thread:
    """Keeps what the trainer did; its process and thread. If it makes batches, that is kept too."""
    before, asked, taken, now = times
    me = os.getpid(), threading.get_native_id()
    recording.add(me, "consuming", before, asked, {})
    if waits:
        recording.add(me, "waiting", asked, taken, {})
    recording.add(me, "collating", taken, now, args)
    return me
