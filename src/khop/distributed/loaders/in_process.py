"""Backend of loaders without sampler processes: the trainer draws each batch. Runs in trainers.

With a cache of other partitions' rows, batches are drawn ahead. The rows of the next batch are
requested before a batch is returned, so that replies arrive while the trainer works.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from khop.channel.layout import Received, Record
from khop.channel.pool import BufferPool
from khop.data.direct_reads import DiskCounts
from khop.data.steps import run
from khop.data.tickets import Ticket
from khop.data.waiter import TIMEOUT
from khop.distributed.loaders.exchanged_parts import ExchangedParts
from khop.distributed.rpc.part_requests import PartRequests
from khop.distributed.sampling.control_messages import BatchKey, Epoch
from khop.distributed.sampling.pipeline import Pipeline, PipelineSpec
from khop.distributed.sampling.process_handle import Worker
from khop.distributed.sampling.window import SOON_KNOWN
from khop.forks import check_process
from khop.sampler.methods.access import together
from khop.sampler.plan import EpochPlan
from khop.sampler.rows.collect import Allocate, Collector, DrawnBatch
from khop.storage.pack import Pack
from khop.storage.part import Part
from khop.trace.clock import BatchTimings, Phase
from khop.trace.recording import OwnRecords
from khop.typing import Array, Int64Array

_UINT8 = np.dtype(np.uint8)


class InProcessBackend:
    """Maker of a loader's batches in the trainer's process, on request.

    It has the interface of `SamplerPool`, which makes them in sampler processes.

    Args:
        part: the home part.
        spec: specification of the batches.
        client: client of the other partitions. If None, there are none.
        weights: sampling weights of negative endpoints, by name: see `arrays` of `Pipeline`.
        timeout: seconds that a read of a row store may take.
        cache_bytes: bytes of the cache of other partitions' rows. 0 for no cache.
        lookahead: limits of the number of batches that are drawn ahead if there is a cache.
        pack: rows of the next epochs. If None, there is no pack.
        made_by: engine and collector of the batches, see `Pipeline`.
    """

    num_samplers = 0
    num_restarts = 0
    workers: Sequence[Worker] = ()

    def __init__(
        self,
        part: Part,
        spec: PipelineSpec,
        client: PartRequests | None,
        weights: Mapping[str, Array],
        timeout: float = TIMEOUT,
        cache_bytes: int = 0,
        lookahead: tuple[int, int] = (0, 0),
        pack: Pack | None = None,
        made_by: tuple[Any, Collector] | None = None,
    ) -> None:
        self._client = client
        self._owner = os.getpid()
        self._part, self._reported_disk, self._reported_bytes = part, DiskCounts(), 0
        self._timeout = timeout
        self._records = OwnRecords()
        self._pack = pack
        self._pipeline = Pipeline(
            part,
            spec,
            client,
            weights,
            self._records.clock,
            cache_bytes=cache_bytes,
            opened=None if pack is None else pack.rows,
            made_by=made_by,
        )
        self._lookahead = lookahead if self._pipeline.is_ordered else (0, 0)
        # Batches that are drawn ahead, in order, and the one whose rows are requested.
        self._drawn: dict[BatchKey, DrawnBatch] = {}
        self._requested: BatchKey | None = None
        self._given_up: list[DrawnBatch] = []
        self._pool = BufferPool()
        self._epochs: dict[int, Epoch] = {}
        self._num_epochs = 0
        self._is_making = False

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches of rows of other partitions."""
        return self._pipeline.cache_bytes

    def new_epoch(self) -> int:
        """Return an id for the epoch that begins next."""
        epoch_id = self._num_epochs
        self._num_epochs += 1
        return epoch_id

    def open_epoch(
        self, epoch_id: int, run_key: int, plan: EpochPlan, columns: Int64Array, first: int = 0
    ) -> None:
        """Begin an epoch. See `SamplerPool.open_epoch` for the arguments."""
        del first  # each batch is made on request
        self._epochs[epoch_id] = Epoch(run_key, plan, columns)

    def close_epoch(self, epoch_id: int) -> None:
        """End an epoch, whose batches are no longer requested."""
        self._epochs.pop(epoch_id, None)
        self._given_up += [self._drawn.pop(key) for key in [*self._drawn] if key[0] == epoch_id]
        if self._requested is not None and self._requested[0] == epoch_id:
            self._requested = None
        if not self._is_making:  # else `take` is on the stack, or an exception has ended it
            self._withdraw_given_up()

    def _withdraw_given_up(self) -> None:
        while self._given_up:
            self._pipeline.withdraw(self._given_up.pop())

    def has_arrived(self, epoch_id: int, batch: int) -> bool:
        """Return False: batches are made on request only."""
        del epoch_id, batch
        return False

    def take(self, epoch_id: int, batch: int) -> Received:
        """Make a batch."""
        if self._client is not None:  # a fork must not wait for replies to this process
            check_process(self._owner, "connection to other partitions", "make a loader there")
        if self._is_making:  # an exception ended the last call
            self._start_again()
        self._withdraw_given_up()
        self._is_making = True
        memory: list[Any] = []

        def allocate(record: Record) -> Mapping[str, Any]:
            arrays, taken = self._memory_of(record)
            memory.append(taken)
            return arrays

        records, client = self._records, self._client
        is_drawn = (epoch_id, batch) in self._drawn
        records.begin((epoch_id, batch), Phase.GATHERING if is_drawn else Phase.SAMPLING)
        if client is not None:
            client.log = records.log
        try:
            record, drawn = self._make((epoch_id, batch), allocate)
        finally:
            records.end()
        received = self._bytes_received()
        remote, self._reported_bytes = received - self._reported_bytes, received
        self._is_making = False
        record.note("made", self._made(record.nbytes, remote, drawn))
        return self._read(record, memory[0])._replace(extras=record.extras or None)

    def _memory_of(self, record: Record) -> tuple[Mapping[str, Any], Any]:
        """Return the arrays to fill for a batch, by name, and their memory, for `_read`."""
        memory = self._pool.empty((record.nbytes,), _UINT8)
        return record.write(memory.data), memory

    def _read(self, record: Record, memory: Any) -> Received:
        return record.layout.read(memory)

    def _bytes_received(self) -> int:
        return 0 if self._client is None else self._client.bytes_received

    def _made(self, nbytes: int, remote: int, drawn: DrawnBatch) -> BatchTimings:
        disk = self._part.disk_counts().plus(None if self._pack is None else self._pack.counts())
        read, self._reported_disk = disk.since(self._reported_disk), disk
        clock = self._records.clock
        return clock.made(nbytes, remote, drawn.reused_bytes, disk=read, rules=drawn.rules)

    def _make(self, key: BatchKey, allocate: Allocate) -> tuple[Record, DrawnBatch]:
        """Return a batch, as it is written and as it was drawn."""
        self._draw(key)
        self._draw_ahead(key)
        self._request(key)
        self._records.turn_to(key, Phase.GATHERING)
        record: Record = self._run(self._pipeline.write(self._drawn[key], allocate))
        drawn = self._drawn.pop(key)
        self._requested = None
        following = key[0], key[1] + 1
        if following in self._drawn:
            self._draw_ahead(following)
            self._request(following)
        return record, drawn

    def _run(self, steps: Generator[list[Ticket], None, Any]) -> Any:
        return run(steps, self._client, self._timeout, self._records.clock, Phase.REMOTE)

    def _draw(self, key: BatchKey) -> None:
        if key not in self._drawn:
            epoch = self._epochs[key[0]]
            self._records.turn_to(key, Phase.SAMPLING)
            steps = self._pipeline.draw(epoch.seeds_of(key[1]), *epoch.key_of(key[1]))
            drawn = self._run(steps)
            self._pipeline.announce(drawn)
            self._drawn[key] = drawn

    def _draw_ahead(self, key: BatchKey) -> None:
        epoch_id, batch = key
        known = self._pipeline.lookahead(self._lookahead)
        end = min(batch + 1 + known, self._epochs[epoch_id].plan.num_batches)
        missing = [b for b in range(batch + 1, end) if (epoch_id, b) not in self._drawn]
        # The first batch of an epoch does not wait for all.
        for later in missing[: SOON_KNOWN if len(missing) == known else 2]:
            try:
                self._draw((epoch_id, later))
            except Exception:  # raised when the batch is taken
                return

    def _request(self, key: BatchKey) -> None:
        """Request the rows of a batch. If another was expected, it requests its rows later."""
        if self._requested == key:
            return
        if self._requested is not None:
            other = self._drawn[self._requested]
            self._pipeline.withdraw(other)
            self._pipeline.announce(other)
        self._requested = key
        self._records.turn_to(key, Phase.GATHERING)
        self._pipeline.request(self._drawn[key])

    def _start_again(self) -> None:
        """Forget what the last call has begun: an exception ended it."""
        self._drawn.clear()
        self._given_up.clear()
        self._requested = None
        self._pipeline.clear()
        if self._client is not None:
            self._client.start_again()

    def close(self) -> None:
        """Close the connections to other partitions' servers."""
        self._epochs.clear()
        if self._client is not None:
            self._client.close()
            self._client = None


class Exchanger(Protocol):
    """Exchange of trainers that make batches together. See `ExchangedParts`."""

    def step(self, epoch: int, batch: int) -> AbstractContextManager[None]: ...
    def leave_epoch(self, epoch: int, num_batches: int) -> None: ...


class TogetherBackend(InProcessBackend):
    """Maker of batches that all trainers make together, each its own, by collective calls.

    `exchanger` makes these calls. Other arguments: see `InProcessBackend`.
    """

    def __init__(self, exchanger: Exchanger, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._exchanger = exchanger
        self._taken: dict[int, int] = {}  # batches of each open epoch

    def take(self, epoch_id: int, batch: int) -> Received:
        """Make a batch, while the other trainers make theirs."""
        taken = self._taken.get(epoch_id, 0)
        with self._exchanger.step(epoch_id, taken):
            received = super().take(epoch_id, batch)
        self._taken[epoch_id] = taken + 1
        return received

    def close_epoch(self, epoch_id: int) -> None:
        """End an epoch. If others take further batches of it, they get an error."""
        if epoch_id in self._epochs:
            self._exchanger.leave_epoch(epoch_id, self._taken.pop(epoch_id, 0))
        super().close_epoch(epoch_id)


class ExchangeBackend(TogetherBackend):
    """Maker of batches with requests to other trainers, in rounds.

    `parts` are the partitions of other trainers. Other arguments: see `InProcessBackend`.
    """

    def __init__(
        self,
        part: Part,
        spec: PipelineSpec,
        parts: ExchangedParts,
        weights: Mapping[str, Array],
        timeout: float,
        cache_bytes: int,
        lookahead: tuple[int, int],
        pack: Pack | None,
    ) -> None:
        super().__init__(parts, part, spec, parts, weights, timeout, cache_bytes, lookahead, pack)
        self._lookahead = lookahead  # also without a cache: batches share the rounds of their hops

    def _draw(self, key: BatchKey) -> None:
        """Draw a batch, and further ones with it: their hops share rounds of requests."""
        if key not in self._drawn:
            with contextlib.suppress(Exception):  # raised when the batch is taken that it is of
                self._draw_together(self._undrawn(key))
        if key not in self._drawn:
            self._draw_together([key])

    def _draw_ahead(self, key: BatchKey) -> None:
        """Draw further batches if fewer than `lookahead` are drawn beyond a batch."""
        missing = self._undrawn(key)
        if missing and missing[0][1] - key[1] <= self._pipeline.lookahead(self._lookahead):
            with contextlib.suppress(Exception):  # as in `_draw`
                self._draw_together(missing)

    def _undrawn(self, key: BatchKey) -> list[BatchKey]:
        """Return the first batches from `key` on that are not drawn: as many as share rounds."""
        epoch_id, first = key
        while (epoch_id, first) in self._drawn:
            first += 1
        count = SOON_KNOWN if self._pipeline.lookahead(self._lookahead) else 1
        end = min(first + count, self._epochs[epoch_id].plan.num_batches)
        return [(epoch_id, batch) for batch in range(first, end)]

    def _draw_together(self, keys: Sequence[BatchKey]) -> None:
        self._records.turn_to(keys[0], Phase.SAMPLING)
        draws = []
        for epoch_id, batch in keys:
            epoch = self._epochs[epoch_id]
            draws.append(self._pipeline.draw(epoch.seeds_of(batch), *epoch.key_of(batch)))
        for key, drawn in zip(keys, self._run(together(draws)), strict=True):
            self._pipeline.announce(drawn)
            self._drawn[key] = drawn
