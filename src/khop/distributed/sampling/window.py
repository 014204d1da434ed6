"""Batches of a sampler by stage: which batch is drawn, requested and written next.

A batch is drawn, announced to the caches of rows, and requests its rows. It is written when its
turn comes. The trainer names batches that it will request later: the sampler draws and announces
these ahead. A batch requests its rows when `lookahead` later batches have been announced, or when
none is left to draw. It waits no longer than `MAX_WAIT` if drawing takes long, as when another
partition is unreachable. Run by samplers. Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from khop.data.tickets import Ticket
from khop.distributed.sampling.control_messages import BatchKey
from khop.distributed.sampling.slots import Slot
from khop.sampler.rows.collect import DrawnBatch
from khop.trace.clock import Phase

SOON_KNOWN = 8
"""Most batches that the first batch of an epoch waits for. Each later one waits for two more."""

MAX_WAIT = 0.1
"""Most seconds that a batch waits for later batches to be drawn."""


class Stage(IntEnum):
    """Stage of a batch."""

    DRAWING = 0
    DRAWN = 1
    ANNOUNCED = 2
    FETCHING = 3
    WRITING = 4


@dataclass(eq=False)
class Task:
    """A batch being made.

    Attributes:
        key: its epoch and index.
        slot: its memory, taken when it is written.
        steps: the generator of the stage DRAWING or WRITING.
        is_requested: True if the trainer has requested it, so that it may be written.
        drawn: the batch, once it is drawn.
        waiting_for: tickets that the generator waits for.
        phase: phase of the clock in which the generator continues.
    """

    key: BatchKey
    slot: Slot
    steps: Generator[list[Ticket], None, Any]
    is_requested: bool
    stage: Stage = Stage.DRAWING
    drawn: DrawnBatch | None = None
    waiting_for: list[Ticket] = field(default_factory=list)
    phase: int = Phase.SAMPLING

    @property
    def is_ready(self) -> bool:
        """True if its generator can continue."""
        has_steps = self.stage in (Stage.DRAWING, Stage.WRITING)
        return has_steps and all(ticket.done for ticket in self.waiting_for)


class Window:
    """Batches that a sampler has to make, in the order in which they were named.

    At most `concurrency` batches are drawn at the same time, and as many fetch rows or are written.
    At most `lookahead + concurrency` further ones are drawn. Without lookahead, `concurrency`
    limits the sum.

    Args:
        concurrency: limit of batches in work.
        lookahead: initial value of the attribute.
        is_ordered: batches are announced and requested in order. If False, there is no lookahead.
        most_bytes: no batch is drawn ahead while drawn batches have more bytes. If None, there is
            no bound.

    Attributes:
        tasks: batches in work, in the order in which they began.
        lookahead: announced batches that a batch waits for before it requests its rows.
    """

    def __init__(
        self, concurrency: int, lookahead: int, is_ordered: bool, most_bytes: int | None = None
    ) -> None:
        self._concurrency = concurrency
        self._most_bytes = most_bytes
        self.lookahead = lookahead if is_ordered else 0
        self._is_ordered = is_ordered
        self._unstarted: dict[BatchKey, bool] = {}  # whether requested
        self.tasks: list[Task] = []
        self._num_fetched = 0  # since the window was empty
        self._waits_since: float | None = None

    def __contains__(self, key: BatchKey) -> bool:
        return key in self._unstarted or any(task.key == key for task in self.tasks)

    def add(self, requested: Iterable[BatchKey], ahead: Iterable[BatchKey] = ()) -> None:
        """Add batches that are requested, and batches that may be drawn ahead."""
        if not self.tasks and not self._unstarted:
            self._num_fetched = 0
        keys = dict.fromkeys(requested, True)
        if self.lookahead:
            for task in self.tasks:
                task.is_requested = keys.pop(task.key, task.is_requested)
        self._unstarted.update(keys)
        for key in ahead:
            self._unstarted.setdefault(key, False)

    def remove(self, epoch: int) -> list[Task]:
        """Remove the batches of an epoch. Return those in work."""
        self._unstarted = {k: r for k, r in self._unstarted.items() if k[0] != epoch}
        removed = [task for task in self.tasks if task.key[0] == epoch]
        self.tasks = [task for task in self.tasks if task.key[0] != epoch]
        return removed

    @property
    def is_busy(self) -> bool:
        """True if a batch is in work that does not wait for its request by the trainer."""
        return any(task.stage != Stage.ANNOUNCED for task in self.tasks)

    @property
    def _is_full(self) -> bool:
        """True if the drawn batches have so many bytes that no batch is drawn ahead."""
        drawn = (task.drawn for task in self.tasks if task.stage <= Stage.ANNOUNCED)
        limit = self._most_bytes
        return limit is not None and sum(0 if d is None else d.nbytes for d in drawn) > limit

    def next_to_draw(self) -> tuple[BatchKey, bool] | None:
        """Remove and return the next batch to begin, and whether it is requested, or None."""
        if not self._unstarted:
            return None
        drawing = waiting = 0
        has_requested = False
        for task in self.tasks:
            drawing += task.stage == Stage.DRAWING
            if task.stage <= Stage.ANNOUNCED:
                waiting += 1
                has_requested = has_requested or task.is_requested
        if drawing >= self._concurrency:
            return None
        if not self.lookahead:
            key = next((k for k, is_requested in self._unstarted.items() if is_requested), None)
            if key is None or len(self.tasks) >= self._concurrency:
                return None
        elif waiting < self.lookahead + self._concurrency and not self._is_full:
            key = next(iter(self._unstarted))
        else:
            # The trainer may wait for a batch of a sampler that has died, behind all of these.
            key = next((k for k, is_requested in self._unstarted.items() if is_requested), None)
            if key is None or has_requested:
                return None
        return key, self._unstarted.pop(key)

    def next_to_announce(self) -> Task | None:
        """Return the next batch to announce: one that is drawn, with all that began before it."""
        for task in self.tasks:
            if task.stage == Stage.DRAWN:
                return task
            if task.stage == Stage.DRAWING and self._is_ordered:
                return None
        return None

    def next_to_fetch(self) -> Task | None:
        """Return the next batch to request its rows, or None."""
        announced = [task for task in self.tasks if task.stage == Stage.ANNOUNCED]
        task = next((task for task in announced if task.is_requested), None)
        if task is None:
            return None
        num_begun = sum(other.stage >= Stage.FETCHING for other in self.tasks)
        if num_begun >= self._concurrency:
            return None
        is_drawing = any(task.stage < Stage.ANNOUNCED for task in self.tasks)
        is_drawing = is_drawing or (bool(self._unstarted) and not self._is_full)
        known = min(self.lookahead, SOON_KNOWN + 2 * self._num_fetched)
        if is_drawing and len(announced) <= known:
            now = time.monotonic()
            self._waits_since = self._waits_since or now
            if now - self._waits_since < MAX_WAIT:
                return None
        self._waits_since = None
        self._num_fetched += 1
        # Before the batches that are not as far.
        self.tasks.remove(task)
        self.tasks.insert(num_begun, task)
        return task

    def next_to_write(self, may_write: Callable[[DrawnBatch], bool]) -> Task | None:
        """Return the next batch to write: the first that `may_write`, or None."""
        for task in self.tasks:
            if task.stage == Stage.FETCHING and task.drawn is not None and may_write(task.drawn):
                return task
        return None
