"""Pool of a loader's sampler processes, in its trainer: requests batches ahead and hands them out.

The pool requests batches by number, keeps each sampler a few batches ahead, and receives batches in
any order. `process_pool` assigns them and restarts samplers that die; if samplers die repeatedly on
the same batch, the loader ends. The end of a process interrupts every wait here.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from khop import log
from khop.channel.arena import ArenaReader
from khop.channel.control import ONE, Message, Op
from khop.channel.device_arena import DeviceArenaReader
from khop.channel.layout import Received
from khop.channel.shared import share
from khop.distributed.rpc.endpoint import EndpointUpdate
from khop.distributed.rpc.protocol import rebuild_error
from khop.distributed.sampling.control_messages import encode_epoch
from khop.distributed.sampling.prefetch import EpochState, due_batches, missing_batches
from khop.distributed.sampling.process_handle import (
    Process,
    Program,
    SamplerProcess,
    Worker,
    send_endpoint,
    start_process,
    start_sampler,
)
from khop.distributed.sampling.process_pool import ProcessPool
from khop.errors import SamplerDiedError
from khop.forks import check_process
from khop.sampler.plan import EpochPlan
from khop.trace.recording import current
from khop.typing import Array, Int64Array

_log = log.get(__name__)

# While batches arrive before `take` needs them, control lines are polled at this interval, in
# seconds, to detect samplers that have died.
_LOOK_SECONDS = 0.05


class EndpointSource(Protocol):
    """Source of endpoint updates: addresses of the servers of other partitions, as they change."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are changes."""

    def changes(self) -> dict[int, EndpointUpdate]:
        """Return the updates since the last call, by partition."""

    def latest(self, part: int) -> EndpointUpdate | None:
        """Return the last update of a partition; None if its endpoint has not changed."""

    def look_for(self, part: int) -> None:
        """Start to look for the server of a partition, which is unreachable. Returns at once."""

    def check_servers(self) -> None:
        """Raise PartitionUnavailableError if a server of this trainer has been given up."""


class SamplerPool:
    """Sampler processes that make the batches of one loader.

    Args:
        config: configuration of samplers; see `khop.distributed.sampling.worker.Sampler`.
        devices: name of each sampler's device; None for the CPU.
        depth: batches requested from each sampler ahead of the trainer.
        in_bulk: request batches, and return slots, for half of `depth` at a time.
        ring_bytes: bytes of each sampler's arena.
        max_restarts: maximum number of restarts of samplers.
        endpoints: updates of other partitions' endpoints. If None, they do not change.
        pin: called with an arena, to register it with CUDA. If None, arenas are not registered.
        arrays: arrays that all samplers read, by name; shared, not sent.
        make_device_arena: makes the device arena that a sampler on this device shares with the
            trainer, or returns None if they share none.
        program: factory `(config, descriptors) -> Process`. The process samples itself, or receives
            batches from a graph server; both use the same control messages.
        is_fallback: predicate `(process, number) -> bool`: True if this process of `program` is a
            fallback, to be replaced while no epoch is open.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        devices: Sequence[str | None],
        depth: int,
        in_bulk: bool,
        ring_bytes: int,
        max_restarts: int,
        endpoints: EndpointSource | None,
        pin: Callable[[ArenaReader], None] | None = None,
        arrays: Mapping[str, Array] | None = None,
        make_device_arena: Callable[[str | None], DeviceArenaReader | None] = lambda device: None,
        program: Program = start_sampler,
        is_fallback: Callable[[Process, int], bool] = lambda process, number: False,
    ) -> None:
        self._config = dict(config)
        self._devices = devices
        self._make_device_arena = make_device_arena
        self._program = program
        self._is_fallback = is_fallback
        self._shared = None if not arrays else share(arrays)
        self._depth = depth
        self._in_bulk = in_bulk
        self._ring_bytes = ring_bytes
        self._endpoints = endpoints
        self._pin = pin
        self._epochs: dict[int, EpochState] = {}
        self._num_epochs = 0
        self._owner = os.getpid()
        self._is_recorded = False
        self._failure: Exception | None = None
        self._polled_at = 0.0
        self._is_closed = False
        # See `_begin`.
        self._is_changing = False
        self._num_closing = 0
        self._pool = ProcessPool(len(devices), max_restarts, SamplerProcess.ask)
        self._start_missing()

    def _start_missing(self) -> None:
        """Start the processes that are missing. If that fails, the loader ends."""
        try:
            while (number := self._pool.missing) is not None:
                self._pool.add(self._start(number))
        except Exception as error:
            self._failure = error
            raise

    def _start(self, number: int) -> SamplerProcess:
        """Start a process and open the epochs there."""
        device = self._devices[number]
        device_arena = self._make_device_arena(device)
        sampler = start_process(
            self._program,
            number,
            {
                **self._config,
                "device": device,
                "device_arena": None if device_arena is None else device_arena.described,
            },
            self._ring_bytes,
            [] if self._shared is None else [self._shared],
            device_arena,
            self._in_bulk,
            self._pin,
        )
        if self._is_recorded:
            sampler.process.line.post(Op.TRACE, ONE.pack(True))
        for epoch in self._epochs.values():
            _send_epoch(sampler, epoch)
        return sampler

    @property
    def num_restarts(self) -> int:
        """Number of restarts of samplers."""
        return self._pool.num_restarts

    @property
    def num_samplers(self) -> int:
        """Number of sampler processes."""
        return len(self._pool.samplers)

    @property
    def workers(self) -> list[Worker]:
        """The processes that run, by number."""
        samplers, devices = self._pool.samplers, self._devices
        return [Worker(s.process.pid, s.number, devices[s.number] or "cpu") for s in samplers]

    def new_epoch(self) -> int:
        """Return the number of the next epoch; only `open_epoch` tells samplers of it."""
        number = self._num_epochs
        self._num_epochs += 1
        return number

    def open_epoch(
        self, number: int, run_key: int, plan: EpochPlan, columns: Int64Array, first: int = 0
    ) -> None:
        """Begin an epoch. Whatever exception ends the call, `close_epoch` must follow.

        Args:
            number: from `new_epoch`.
            run_key: its key.
            plan: division of the seeds into batches.
            columns: [num_columns, num_seeds] int64, ids and times of the seeds, in the epoch's
                order; see `Pipeline.make`.
            first: the first batch; those before it are not made.
        """
        self._check_alive()
        self._begin()
        if not self._epochs:
            self._replace_fallbacks()
        message, memory = encode_epoch(number, run_key, plan, columns)
        epoch = EpochState(message, memory, plan.num_batches, next_to_ask=first, num_taken=first)
        self._epochs[number] = epoch
        for sampler in self._pool.samplers:
            _send_epoch(sampler, epoch)
        self._follow_recording()
        self._prefetch(waiting=True)
        self._is_changing = False

    def _begin(self) -> None:
        """Begin a call that changes what trainer and samplers know of each other.

        Ctrl-C, or whatever a signal handler raises, may end such a call between any two steps:
        then a message may be lost, or sent twice. Samplers are started anew at the next call, and
        the batches that open epochs wait for are requested again.
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
            self._pool.restart_all(missing_batches(self._epochs))
            self._start_missing()

    def close_epoch(self, number: int) -> None:
        """End an epoch; its batches in flight are dropped."""
        self._num_closing += 1  # a destructor may call this anywhere, also in itself
        epoch = self._epochs.pop(number, None)
        if epoch is not None and os.getpid() == self._owner:
            os.close(epoch.seeds)
            self._pool.forget(lambda key: key[0] == number)
            self._pool.post(Op.CLOSE_EPOCH, ONE.pack(number))
        self._num_closing -= 1

    def take(self, number: int, batch: int) -> Received:
        """Wait for a batch of an epoch; raises the error that its sampler raised.

        Raises:
            SamplerDiedError: samplers died more often than allowed.
            PartitionUnavailableError: a server of this trainer has ended.
            RuntimeError: in a fork of the trainer.
        """
        check_process(self._owner, "loader", "make a loader there")
        epoch = self._epochs[number]
        self._begin()
        self._follow_recording()
        self._reclaim_slots()
        if self._failure is None and time.monotonic() - self._polled_at > _LOOK_SECONDS:
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

    def has_arrived(self, number: int, batch: int) -> bool:
        """Return whether `take` would return a batch at once. Errors are left to `take`."""
        check_process(self._owner, "loader", "make a loader there")
        arrived = self._epochs[number].arrived
        if batch not in arrived and self._failure is None and not self._is_closed:
            self._begin()
            self._poll()
            self._is_changing = False
        return isinstance(arrived.get(batch), Received)

    def _poll(self) -> None:
        """Process messages of samplers. An error is kept until `take` has to wait for a batch."""
        try:
            self._wait(timeout_ms=0)
        except Exception as error:
            self._failure = self._failure or error

    def _reclaim_slots(self) -> None:
        """Free slots of device arenas when the device has finished with them."""
        for sampler in self._pool.samplers:
            if sampler.device_arena is not None:
                sampler.device_arena.give_back()

    def _follow_recording(self) -> None:
        """Notify samplers when a recording begins or ends; it applies to their next requests."""
        recorded = current() is not None
        if recorded != self._is_recorded:
            self._is_recorded = recorded
            self._pool.post(Op.TRACE, ONE.pack(recorded))

    def _check_alive(self) -> None:
        """Raise if the pool has failed or is closed, or if this process is a fork."""
        check_process(self._owner, "loader", "make a loader there")
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise RuntimeError("the loader has been shut down: make a new one")

    def _prefetch(self, waiting: bool) -> None:
        """Request the batches that are due."""
        limit = self._depth * len(self._pool.eligible())
        batches = due_batches(self._epochs, limit, self._in_bulk and not waiting)
        if batches:
            self._pool.assign(batches)

    def _wait(self, timeout_ms: int | None = None) -> None:
        """Wait for messages of samplers, endpoint updates or ended processes; process them."""
        self._polled_at = time.monotonic()
        poller = select.poll()
        by_line = {sampler.process.line.fileno(): sampler for sampler in self._pool.samplers}
        if self._endpoints is not None:
            poller.register(self._endpoints, select.POLLIN)
        for line, sampler in by_line.items():
            room = select.POLLOUT if sampler.process.line.has_unsent else 0
            poller.register(line, select.POLLIN | room)
        self._is_changing = False  # nothing is lost if this is interrupted
        ready = poller.poll(timeout_ms)
        self._is_changing = True
        for line, _ in ready:
            if line in by_line:
                by_line[line].process.line.flush()
                self._read_messages(by_line[line])
            else:
                self._on_endpoint_update()

    def _on_endpoint_update(self) -> None:
        """Send new endpoints to all samplers, and keep them for those that start later."""
        assert self._endpoints is not None
        for part, update in self._endpoints.changes().items():
            if not isinstance(update, str):
                self._config["endpoints"][part] = asdict(update)
            self._pool.relocate(part, update)
        self._is_changing = False
        self._endpoints.check_servers()
        self._is_changing = True

    def _look_for(self, part: int, sampler: SamplerProcess) -> None:
        """Look for a server that a sampler cannot reach; a new sampler may lack the last update."""
        if self._endpoints is None:
            return
        update = self._endpoints.latest(part)
        if update is not None:
            send_endpoint(sampler.process, part, update)
        self._endpoints.look_for(part)

    def _read_messages(self, sampler: SamplerProcess) -> None:
        try:
            for message in self._pool.messages(sampler):
                self._on_message(sampler, message)
        except SamplerDiedError as error:
            self._failure = error
            raise
        self._start_missing()

    def _on_message(self, sampler: SamplerProcess, message: Message) -> None:
        if message.op is Op.BATCH:
            number, batch, received = sampler.read(message)
            if number in self._epochs:
                self._epochs[number].arrived[batch] = received
        elif message.op is Op.LOST:
            (part,) = message.integers("part")
            if part is not None:
                self._look_for(part, sampler)
        elif message.op is Op.RECORDS:
            recording = current()
            if recording is not None:
                recording.add_message(sampler.process.pid, sampler.number, message.payload)
        elif message.op is Op.ERROR:
            self._take_failure(sampler, message)

    def _take_failure(self, sampler: SamplerProcess, message: Message) -> None:
        """Process the failure of a batch, or of the sampler."""
        key, content = sampler.read_error(message)
        where = f"sampler process {sampler.number} (pid {sampler.process.pid})"
        error = rebuild_error(content, where, is_own=True)
        if key is None:  # it cannot start, and a restart would fail, too
            self._failure = error
            raise error
        if key[0] in self._epochs:
            self._epochs[key[0]].arrived[key[1]] = error

    def _replace_fallbacks(self) -> None:
        """Replace fallback processes. Called while no epoch is open."""
        for sampler in list(self._pool.samplers):
            if self._is_fallback(sampler.process, sampler.number):
                self._pool.replace(sampler, self._start(sampler.number))

    def close(self) -> None:
        """End the samplers; batches that were returned stay valid."""
        for number in list(self._epochs):
            self.close_epoch(number)
        self._is_closed = True
        self._pool.close(wait=True)
        self._program = start_sampler  # drops a `Standby`, whose reserve process ends with it
        if self._shared is not None and os.getpid() == self._owner:
            os.close(self._shared)
            self._shared = None


def _send_epoch(sampler: SamplerProcess, epoch: EpochState) -> None:
    with contextlib.suppress(ConnectionError):  # it has died: noticed when its line is read
        sampler.process.line.send_json(Op.OPEN_EPOCH, epoch.message, [epoch.seeds])
