"""Batches of a loader's epochs from sampler processes: requested ahead, and handed out in order.

Run by trainers. `SamplerPool` requests batches by index, keeps each sampler a few batches ahead,
and keeps arrived batches until the trainer takes them. Its `process_pool` assigns requests to
samplers, reads their messages, and restarts samplers that die. If samplers die repeatedly on the
same batch, the loader ends. The end of a process interrupts every wait here. Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from khop import log
from khop.channel.arena import ArenaReader
from khop.channel.control import U64, Op
from khop.channel.device_arena import DeviceArenaReader
from khop.channel.layout import Received
from khop.channel.shared import share
from khop.distributed.rpc.protocol import rebuild_error
from khop.distributed.sampling.control_messages import encode_epoch
from khop.distributed.sampling.process_handle import (
    Process,
    Program,
    SamplerProcess,
    Worker,
    start_sampler,
)
from khop.distributed.sampling.process_pool import EndpointSource, ProcessPool, SamplerError
from khop.errors import SamplerDiedError
from khop.forks import check_process
from khop.sampler.plan import EpochPlan
from khop.trace.recording import current
from khop.typing import Array, Int64Array

_log = log.get(__name__)

# While batches arrive before `take` needs them, control lines are polled at this interval, in
# seconds, to detect samplers that have died.
_POLL_SECONDS = 0.05


@dataclass
class _Epoch:
    """An epoch of a loader that is being iterated, as its pool of samplers tracks it.

    Attributes:
        message: content of OPEN_EPOCH.
        seeds: descriptor of the memory of its seeds.
        num_batches: number of its batches.
        next_due: index of the first batch that was not requested.
        next_ahead: index of the first batch that no sampler may draw yet.
        num_taken: batches that the trainer has taken.
        arrived: batches that arrived and were not taken, or the errors that they raised.
    """

    message: dict[str, Any]
    seeds: int
    num_batches: int
    next_due: int = 0
    next_ahead: int = 0
    num_taken: int = 0
    arrived: dict[int, Received | Exception] = field(default_factory=dict)

    def due(self, limit: int, enough: int) -> range:
        """Return the indices of the batches to request now, and count them as requested.

        Args:
            limit: maximum number of batches that are requested ahead of the trainer.
            enough: number of batches ahead. If more are ahead already, none is due.
        """
        if self.next_due - self.num_taken > enough:
            return range(0)
        last = min(self.num_taken + limit, self.num_batches)
        due = range(self.next_due, last)
        self.next_due = max(self.next_due, last)
        return due

    def ahead(self, limit: int, enough: int) -> range:
        """Return the next batches to draw, and count them. For the arguments, see `due`."""
        first = max(self.next_ahead, self.next_due)
        last = min(self.num_taken + limit, self.num_batches)
        if first - self.num_taken > enough or last <= first:
            return range(0)
        self.next_ahead = last
        return range(first, last)


class SamplerPool:
    """Sampler processes that make the batches of one loader.

    Args:
        config: configuration of `khop.distributed.sampling.worker.Sampler`s.
        devices: name of each sampler's device, or None for the CPU.
        depth: batches requested from each sampler ahead of the trainer.
        in_bulk: request batches, and return slots, for half of `depth` at a time.
        arena_bytes: bytes of each sampler's arena.
        max_restarts: maximum number of restarts of samplers.
        endpoints: updates of other partitions' endpoints. If None, they do not change.
        pin: called with an arena, to register it with CUDA. If None, arenas are not registered.
        arrays: arrays that all samplers read, by name. They are shared, not sent.
        make_device_arena: function from a sampler's device to the device arena that sampler and
            trainer share, or to None if they share none.
        program: factory `(config, descriptors) -> Process`. The process samples itself, or receives
            batches from a graph server. Both use the same control messages.
        is_fallback: predicate `(process, index) -> bool`: True if this process of `program` is a
            fallback, to be replaced while no epoch is open.
        lookahead: batches that each sampler may draw before they are requested.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        devices: Sequence[str | None],
        depth: int,
        in_bulk: bool,
        arena_bytes: int,
        max_restarts: int,
        endpoints: EndpointSource | None,
        pin: Callable[[ArenaReader], None] | None = None,
        arrays: Mapping[str, Array] | None = None,
        make_device_arena: Callable[[str | None], DeviceArenaReader | None] = lambda device: None,
        program: Program = start_sampler,
        is_fallback: Callable[[Process, int], bool] = lambda process, index: False,
        lookahead: int = 0,
    ) -> None:
        self._config = dict(config)
        self._devices = devices
        self._make_device_arena = make_device_arena
        self._program = program
        self._is_fallback = is_fallback
        self._shared = None if not arrays else share(arrays)
        self._depth = depth
        self._in_bulk = in_bulk
        self._lookahead = lookahead
        self._arena_bytes = arena_bytes
        self._endpoints = endpoints
        self._pin = pin
        self._epochs: dict[int, _Epoch] = {}
        self._num_epochs = 0
        self._owner = os.getpid()
        self._is_recorded = False
        self._failure: Exception | None = None
        self._polled_at = 0.0
        self._is_closed = False
        # See `_begin`.
        self._is_changing = False
        self._num_closing = 0
        self._pool = ProcessPool(
            len(devices),
            max_restarts,
            SamplerProcess.request_batches,
            SamplerProcess.read,
            endpoints,
        )
        self._start_missing()

    def _start_missing(self) -> None:
        """Start the sampler processes that are missing. If that fails, the loader ends."""
        try:
            while (index := self._pool.missing) is not None:
                self._pool.add(self._start(index))
        except Exception as error:
            self._failure = error
            raise

    def _start(self, index: int) -> SamplerProcess:
        """Start the sampler process of this index, and open the loader's epochs there."""
        device = self._devices[index]
        device_arena = self._make_device_arena(device)
        described = None if device_arena is None else device_arena.described
        sampler = SamplerProcess.start(
            self._program,
            index,
            {**self._config, "device": device, "device_arena": described},
            self._arena_bytes,
            [] if self._shared is None else [self._shared],
            device_arena,
            self._in_bulk,
            self._pin,
        )
        if self._is_recorded:
            sampler.process.line.post(Op.TRACE, U64.pack(True))
        for epoch in self._epochs.values():
            _send_epoch(sampler, epoch)
        return sampler

    @property
    def num_restarts(self) -> int:
        """Number of samplers of this loader that were restarted."""
        return self._pool.num_restarts

    @property
    def num_samplers(self) -> int:
        """Number of sampler processes."""
        return len(self._pool.samplers)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the samplers' caches of rows of other partitions, together."""
        return sum(sampler.cache_bytes for sampler in self._pool.samplers)

    @property
    def workers(self) -> list[Worker]:
        """Processes that make the loader's batches now, by index."""
        samplers, devices = self._pool.samplers, self._devices
        return [Worker(s.process.pid, s.index, devices[s.index] or "cpu") for s in samplers]

    def new_epoch(self) -> int:
        """Return an id for the epoch that begins next. `open_epoch` sends it to the samplers."""
        epoch_id = self._num_epochs
        self._num_epochs += 1
        return epoch_id

    def open_epoch(
        self, epoch_id: int, run_key: int, plan: EpochPlan, columns: Int64Array, first: int = 0
    ) -> None:
        """Begin an epoch. Whatever exception ends the call, `close_epoch` must follow.

        Args:
            epoch_id: from `new_epoch`.
            run_key: its key.
            plan: division of the seeds into batches.
            columns: [num_columns, num_seeds] int64, ids and times of the seeds in the epoch's
                order, as for `Pipeline.make`.
            first: index of the first batch that is made.
        """
        self._check_alive()
        self._begin()
        if not self._epochs:
            for sampler in list(self._pool.samplers):
                if self._is_fallback(sampler.process, sampler.index):
                    self._pool.replace(sampler, self._start(sampler.index))
        message, memory = encode_epoch(epoch_id, run_key, plan, columns)
        epoch = _Epoch(message, memory, plan.num_batches, next_due=first, num_taken=first)
        self._epochs[epoch_id] = epoch
        for sampler in self._pool.samplers:
            _send_epoch(sampler, epoch)
        self._follow_recording()
        self._prefetch(waiting=True)
        self._is_changing = False

    def _begin(self) -> None:
        """Begin a call that changes the state that trainer and samplers share.

        Ctrl-C, or any exception of a signal handler, may end such a call between two steps. Then a
        message may be lost, or sent twice. The next call restarts all samplers, and again requests
        the batches that open epochs wait for.
        """
        if self._failure is not None or self._is_closed:  # what has arrived can be taken
            return
        was_interrupted = (
            self._is_changing
            or self._num_closing > 0
            or any(sampler.process.line.was_interrupted() for sampler in self._pool.samplers)
        )
        self._is_changing = True
        if was_interrupted:
            _log.info("samplers-interrupted", "an exception came between two messages: restart")
            self._num_closing = 0
            for epoch in self._epochs.values():
                epoch.next_ahead = epoch.next_due
            self._pool.restart_all(
                (epoch_id, batch)
                for epoch_id, epoch in self._epochs.items()
                for batch in range(epoch.num_taken, epoch.next_due)
                if batch not in epoch.arrived
            )
            self._start_missing()

    def close_epoch(self, epoch_id: int) -> None:
        """End an epoch. Its batches in flight are dropped."""
        self._num_closing += 1  # a destructor may call this anywhere, also in itself
        epoch = self._epochs.pop(epoch_id, None)
        if epoch is not None and os.getpid() == self._owner:
            os.close(epoch.seeds)
            self._pool.forget(lambda key: key[0] == epoch_id)
            self._pool.post(Op.CLOSE_EPOCH, U64.pack(epoch_id))
        self._num_closing -= 1

    def take(self, epoch_id: int, batch: int) -> Received:
        """Wait for a batch of an epoch, or raise the error that its sampler raised.

        Raises:
            SamplerDiedError: samplers died more often than allowed.
            PartitionUnavailableError: a server of this trainer has ended.
            RuntimeError: in a fork of the trainer.
        """
        check_process(self._owner, "loader", "make a loader there")
        epoch = self._epochs[epoch_id]
        self._begin()
        self._follow_recording()
        for sampler in self._pool.samplers:
            if sampler.device_arena is not None:
                sampler.device_arena.give_back()
        if self._failure is None and time.monotonic() - self._polled_at > _POLL_SECONDS:
            self._poll()
        while batch not in epoch.arrived:
            self._check_alive()
            self._prefetch(waiting=True)
            self._wait()
        delivery = epoch.arrived.pop(batch)
        epoch.num_taken += 1
        self._prefetch(waiting=False)
        self._is_changing = False
        if isinstance(delivery, Exception):
            raise delivery
        return delivery

    def has_arrived(self, epoch_id: int, batch: int) -> bool:
        """Return whether `take` would return a batch at once. Errors are left to `take`."""
        check_process(self._owner, "loader", "make a loader there")
        arrived = self._epochs[epoch_id].arrived
        if batch not in arrived and self._failure is None and not self._is_closed:
            self._begin()
            self._poll()
            self._is_changing = False
        return isinstance(arrived.get(batch), Received)

    def _poll(self) -> None:
        """Process the samplers' messages. An error is kept until `take` has to wait for a batch."""
        try:
            self._wait(timeout_ms=0)
        except Exception as error:
            self._failure = self._failure or error

    def _follow_recording(self) -> None:
        """Notify samplers when a recording begins or ends, which applies to their next requests."""
        recorded = current() is not None
        if recorded != self._is_recorded:
            self._is_recorded = recorded
            self._pool.post(Op.TRACE, U64.pack(recorded))

    def _check_alive(self) -> None:
        """Raise an error if the pool has failed or is closed, or if this process is a fork."""
        check_process(self._owner, "loader", "make a loader there")
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise RuntimeError("the loader has been shut down: make a new one")

    def _prefetch(self, waiting: bool) -> None:
        """Request from samplers the next batches that should be made ahead.

        A message to a sampler that sleeps costs the trainer 60 to 150 us, more than receiving a
        small batch. So small batches are requested in bulk: when half of the batches made ahead
        have been taken, or when the trainer waits.
        """
        limit = self._depth * len(self._pool.eligible())
        enough = limit // 2 if self._in_bulk and not waiting else limit - 1
        batches = [
            (epoch_id, batch)
            for epoch_id, epoch in self._epochs.items()
            for batch in epoch.due(limit, enough)
            if batch not in epoch.arrived  # its drawing failed
        ]
        # In a few messages: a quarter of the batches ahead in each.
        further = self._lookahead * len(self._pool.eligible())
        ahead = [
            (epoch_id, batch)
            for epoch_id, epoch in (self._epochs.items() if further else ())
            for batch in epoch.ahead(limit + further, limit + further * 3 // 4)
        ]
        if batches or ahead:
            self._pool.assign(batches, ahead)

    def _wait(self, timeout_ms: int | None = None) -> None:
        """Wait for messages of samplers, endpoint updates or ended processes. Process them."""
        self._polled_at = time.monotonic()
        poller = select.poll()
        by_line = {sampler.process.line.fileno(): sampler for sampler in self._pool.samplers}
        if self._endpoints is not None:
            poller.register(self._endpoints, select.POLLIN)
        for line, sampler in by_line.items():
            writable = select.POLLOUT if sampler.process.line.has_unsent else 0
            poller.register(line, select.POLLIN | writable)
        self._is_changing = False  # nothing is lost if this is interrupted
        ready = poller.poll(timeout_ms)
        self._is_changing = True
        for line, _ in ready:
            if line in by_line:
                by_line[line].process.line.flush()
                self._receive(by_line[line])
            else:
                self._on_endpoint_update()

    def _on_endpoint_update(self) -> None:
        """Send new addresses of partition servers to all samplers, also to ones started later."""
        assert self._endpoints is not None
        for part, update in self._endpoints.changes().items():
            if not isinstance(update, str):
                self._config["endpoints"][part] = asdict(update)
            self._pool.relocate(part, update)
        self._is_changing = False
        self._endpoints.check_servers()
        self._is_changing = True

    def _receive(self, sampler: SamplerProcess) -> None:
        """Keep the batches that a sampler has sent. If it has ended, start another one."""
        try:
            for key, batch in self._pool.receive(sampler):
                arrived: Received | Exception
                if isinstance(batch, SamplerError):
                    where = f"sampler process {sampler.index} (pid {sampler.process.pid})"
                    arrived = rebuild_error(batch.content, where, is_own=True)
                    if key is None:  # the sampler cannot start, and a restart would fail, too
                        self._failure = arrived
                        raise arrived
                else:
                    arrived = batch
                if key is not None and key[0] in self._epochs:
                    self._epochs[key[0]].arrived[key[1]] = arrived
        except SamplerDiedError as error:
            self._failure = error
            raise
        self._start_missing()

    def close(self) -> None:
        """End the samplers. Batches that were returned stay valid."""
        for epoch_id in list(self._epochs):
            self.close_epoch(epoch_id)
        self._is_closed = True
        self._pool.close(wait=True)
        self._program = start_sampler  # drops a `Standby`, whose reserve process ends with it
        if self._shared is not None and os.getpid() == self._owner:
            os.close(self._shared)
            self._shared = None


def _send_epoch(sampler: SamplerProcess, epoch: _Epoch) -> None:
    with contextlib.suppress(ConnectionError):  # it has died: noticed when its line is read
        sampler.process.line.send_json(Op.OPEN_EPOCH, epoch.message, [epoch.seeds])
