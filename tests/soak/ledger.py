"""Ledger of delivered batches: checks that each batch comes once, in order and unchanged.

A batch is identified by its checksum, not by its number in the loader. If a batch is lost, the next
one comes too early. If a batch is doubled, its checksum comes a second time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Counts:
    """Numbers of a trainer's batches by outcome."""

    delivered: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    epochs: int = 0
    cycles: int = 0

    @property
    def wrong(self) -> int:
        """Batches that were lost, doubled or changed."""
        return self.lost + self.doubled + self.changed


class Ledger:
    """Record of the deliveries of one trainer. One thread writes it, others read it.

    Args:
        expected: checksums of the batches of each epoch of a cycle.
    """

    def __init__(self, expected: Sequence[Sequence[int]]) -> None:
        self._expected = expected
        self._positions = {
            value: (e, b) for e, epoch in enumerate(expected) for b, value in enumerate(epoch)
        }
        if len(self._positions) != sum(map(len, expected)):
            raise ValueError("two batches of a cycle have the same checksum: take another seed")
        self._epoch = self._next = 0
        self._changed = threading.Condition()
        self.counts = Counts()
        self.last_progress = time.monotonic()
        self.longest_gap = 0.0

    def begin(self) -> None:
        """Expect the first epoch: a trainer starts, or starts again."""
        self._epoch = self._next = 0
        self.last_progress = time.monotonic()

    def watch_gaps(self) -> None:
        """Discard the gaps between batches so far, which include a trainer's start."""
        self.longest_gap = 0.0

    def deliver(self, value: int) -> None:
        """Record a batch of this checksum."""
        now = time.monotonic()
        self.longest_gap = max(self.longest_gap, now - self.last_progress)
        self.last_progress = now
        self.counts.delivered += 1
        position = self._positions.get(value)
        if position is None:
            self.counts.changed += 1  # counts in place of the expected one
            self._next += 1
        elif position[0] != self._epoch or position[1] < self._next:
            self.counts.doubled += 1
        else:
            self.counts.lost += position[1] - self._next
            self._next = position[1] + 1

    def end_epoch(self) -> None:
        """End the epoch, and count batches that have not come as lost."""
        self.counts.lost += max(0, len(self._expected[self._epoch]) - self._next)
        self.counts.epochs += 1
        self._next = 0
        with self._changed:
            self._epoch = (self._epoch + 1) % len(self._expected)
            self.counts.cycles += self._epoch == 0
            self._changed.notify_all()

    def wait_for_cycle(self, cycles: int, seconds: float) -> bool:
        """Wait until a number of cycles is complete. Return False after a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.counts.cycles >= cycles, seconds)
