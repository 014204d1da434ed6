"""Whether every batch came, once, in order and unchanged.

A batch is known by its checksum, not by the number that a loader gives it: one that is left out
shows as the next one coming too early, one that comes twice as one that has been there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Counts:
    """What has become of a trainer's batches."""

    delivered: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    epochs: int = 0
    cycles: int = 0

    @property
    def wrong(self) -> int:
        """Batches that were not what they should be."""
        return self.lost + self.doubled + self.changed


class Ledger:
    """Follows the deliveries of one trainer; one thread tells, others look.

    Args:
        expected: checksums of the batches of each epoch of a cycle.
    """

    def __init__(self, expected: Sequence[Sequence[int]]) -> None:
        self._expected = expected
        self._places = {
            value: (e, b) for e, epoch in enumerate(expected) for b, value in enumerate(epoch)
        }
        if len(self._places) != sum(map(len, expected)):
            raise ValueError("two batches of a cycle have the same checksum: take another seed")
        self._epoch = self._next = 0
        self._changed = threading.Condition()
        self.counts = Counts()
        self.last_progress = time.monotonic()
        self.longest_gap = 0.0

    def begin(self) -> None:
        """A trainer begins, or begins again, with its first epoch."""
        self._epoch = self._next = 0
        self.last_progress = time.monotonic()

    def watch_gaps(self) -> None:
        """Forgets the gaps so far, which hold a trainer's start."""
        self.longest_gap = 0.0

    def deliver(self, value: int) -> None:
        """A batch of this checksum was delivered."""
        now = time.monotonic()
        self.longest_gap = max(self.longest_gap, now - self.last_progress)
        self.last_progress = now
        self.counts.delivered += 1
        place = self._places.get(value)
        if place is None:
            self.counts.changed += 1  # it stands for the one that should have come
            self._next += 1
        elif place[0] != self._epoch or place[1] < self._next:
            self.counts.doubled += 1
        else:
            self.counts.lost += place[1] - self._next
            self._next = place[1] + 1

    def end_epoch(self) -> None:
        """The epoch is over: what has not come is lost."""
        self.counts.lost += max(0, len(self._expected[self._epoch]) - self._next)
        self.counts.epochs += 1
        self._next = 0
        with self._changed:
            self._epoch = (self._epoch + 1) % len(self._expected)
            self.counts.cycles += self._epoch == 0
            self._changed.notify_all()

    def wait_for_cycle(self, number: int, seconds: float) -> bool:
        """Waits until so many cycles are complete; False if it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self.counts.cycles >= number, seconds)
