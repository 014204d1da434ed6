"""Pool of a loader's sampler processes, in its trainer: assigns batches and restarts samplers.

The pool requests batches by number, keeps each sampler a few batches ahead, and receives batches in
any order. When a sampler dies, its batches in flight are requested from the others at once: batches
are functions of their number, so they are the same. A new process with a new arena replaces it, and
gets requests when it is ready, or at once if it is the only one. If samplers die repeatedly on the
same batch, the loader ends. The end of a process interrupts every wait here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeAlias

from khop.channel.arena import ArenaReader, create_memory
from khop.channel.control import ONE, Message, Op
from khop.channel.device_arena import DeviceArenaReader
from khop.channel.layout import Layout, Received
from khop.channel.shared import share
from khop.distributed.processes.child import ChildProcess
from khop.distributed.rpc.endpoint import EndpointUpdate
from khop.distributed.rpc.protocol import rebuild_error
from khop.distributed.sampling.control_messages import encode_epoch
from khop.distributed.sampling.prefetch import EpochState, assign_least_loaded, schedule_prefetch
from khop.distributed.sampling.process_handle import Process, SamplerProcess, reap
from khop.distributed.sampling.restart_policy import RestartPolicy
from khop.errors import SamplerDiedError
from khop.forks import check_process
from khop.sampler.plan import EpochPlan
from khop.trace.recording import current
from khop.typing import Array, Int64Array

# While batches arrive before `take` needs them, control lines are polled at this interval, in
# seconds, to detect samplers that have died.
_LOOK_SECONDS = 0.05
Program: TypeAlias = Callable[[Mapping[str, Any], Sequence[int]], Process]


def start_sampler(config: Mapping[str, Any], memory: Sequence[int]) -> Process:
    """Start a sampler process on this machine; see `khop.distributed.sampling.worker`."""
    return ChildProcess("khop.distributed.sampling.worker", config, memory)


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
        self._restart_policy = RestartPolicy(max_restarts)
        self._endpoints = endpoints
        self._pin = pin
        self._epochs: dict[int, EpochState] = {}
        self._num_epochs = 0
        self._owner = os.getpid()
        self._is_recorded = False
        self._failure: Exception | None = None
        self._polled_at = 0.0
        self._samplers = [self._start(number) for number in range(len(devices))]

    def _start(self, number: int, is_starting: bool = False) -> SamplerProcess:
        device = self._devices[number]
        slab = self._make_device_arena(device)
        memory = [create_memory(self._ring_bytes, f"khop-ring-{number}")]
        try:
            ring = ArenaReader(memory[0])
            if self._pin is not None:
                self._pin(ring)
            memory += [] if slab is None else slab.descriptors
            memory += [] if self._shared is None else [self._shared]
            config = {
                **self._config,
                "number": number,
                "device": device,
                "slab": None if slab is None else slab.described,
                "has_arrays": self._shared is not None,
            }
            process = self._program(config, memory)
        finally:
            os.close(memory[0])
            if slab is not None:
                slab.passed_on()
        return SamplerProcess(number, process, ring, slab, self._in_bulk, is_starting)

    @property
    def num_restarts(self) -> int:
        """Number of restarts of samplers."""
        return self._restart_policy.num_restarts

    @property
    def num_samplers(self) -> int:
        """Number of sampler processes."""
        return len(self._samplers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the samplers."""
        return [sampler.process.pid for sampler in self._samplers]

    def open_epoch(self, run_key: int, plan: EpochPlan, columns: Int64Array, first: int = 0) -> int:
        """Begin an epoch.

        Args:
            run_key: its key.
            plan: division of the seeds into batches.
            columns: [num_columns, num_seeds] int64, ids and times of the seeds, in the epoch's
                order; see `Pipeline.make`.
            first: the first batch; those before it are not made.

        Returns:
            The number of the epoch.
        """
        self._check_alive()
        if not self._epochs:
            self._replace_fallbacks()
        number = self._num_epochs
        self._num_epochs += 1
        message, memory = encode_epoch(number, run_key, plan, columns)
        epoch = EpochState(message, memory, plan.num_batches, next_to_ask=first, num_taken=first)
        self._epochs[number] = epoch
        for sampler in self._samplers:
            self._send_epoch(sampler, epoch)
        self._follow_recording()
        self._prefetch(waiting=True)
        return number

    def _send_epoch(self, sampler: SamplerProcess, epoch: EpochState) -> None:
        with contextlib.suppress(ConnectionError):  # it has died: noticed when its line is read
            sampler.process.line.send_json(Op.OPEN_EPOCH, epoch.message, [epoch.seeds])

    def close_epoch(self, number: int) -> None:
        """End an epoch; its batches in flight are dropped."""
        epoch = self._epochs.pop(number, None)
        if epoch is None or os.getpid() != self._owner:
            return
        os.close(epoch.seeds)
        for sampler in self._samplers:
            sampler.in_flight = {task: None for task in sampler.in_flight if task[0] != number}
            sampler.process.line.post(Op.CLOSE_EPOCH, ONE.pack(number))

    def take(self, number: int, batch: int) -> Received:
        """Wait for a batch of an epoch; raises the error that its sampler raised.

        Raises:
            SamplerDiedError: samplers died more often than allowed.
            PartitionUnavailableError: a server of this trainer has ended.
            RuntimeError: in a fork of the trainer.
        """
        check_process(self._owner, "loader", "make a loader there")
        epoch = self._epochs[number]
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
        if isinstance(delivery, Exception):
            raise delivery
        return delivery

    def has_arrived(self, number: int, batch: int) -> bool:
        """Return whether `take` would return a batch at once. Errors are left to `take`."""
        check_process(self._owner, "loader", "make a loader there")
        arrived = self._epochs[number].arrived
        if batch not in arrived and self._failure is None and self._samplers:
            self._poll()
        return isinstance(arrived.get(batch), Received)

    def _poll(self) -> None:
        """Process messages of samplers. An error is kept until `take` has to wait for a batch."""
        try:
            self._wait(timeout_ms=0)
        except Exception as error:
            self._failure = self._failure or error

    def _reclaim_slots(self) -> None:
        """Free slots of device arenas when the device has finished with them."""
        for sampler in self._samplers:
            if sampler.slab is not None:
                sampler.slab.give_back()

    def _follow_recording(self) -> None:
        """Notify samplers when a recording begins or ends; it applies to their next requests."""
        recorded = current() is not None
        if recorded != self._is_recorded:
            self._is_recorded = recorded
            for sampler in self._samplers:
                sampler.process.line.post(Op.TRACE, ONE.pack(recorded))

    def _check_alive(self) -> None:
        """Raise if the pool has failed or is closed, or if this process is a fork."""
        check_process(self._owner, "loader", "make a loader there")
        if self._failure is not None:
            raise self._failure
        if not self._samplers:
            raise RuntimeError("the loader has been shut down: make a new one")

    def _prefetch(self, waiting: bool) -> None:
        schedule_prefetch(
            self._epochs, self._eligible(), self._depth, self._in_bulk and not waiting
        )

    def _eligible(self) -> list[SamplerProcess]:
        """Return the samplers to send requests to: those not starting, or all if all are."""
        return [s for s in self._samplers if not s.is_starting] or self._samplers

    def _wait(self, timeout_ms: int | None = None) -> None:
        """Wait for messages of samplers, endpoint updates or ended processes; process them."""
        self._polled_at = time.monotonic()
        poller = select.poll()
        by_line = {sampler.process.line.fileno(): sampler for sampler in self._samplers}
        if self._endpoints is not None:
            poller.register(self._endpoints, select.POLLIN)
        for line, sampler in by_line.items():
            room = select.POLLOUT if sampler.process.line.has_unsent else 0
            poller.register(line, select.POLLIN | room)
        for line, _ in poller.poll(timeout_ms):
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
            for sampler in self._samplers:
                _send_endpoint(sampler, part, update)
        self._endpoints.check_servers()

    def _look_for(self, part: int, sampler: SamplerProcess) -> None:
        """Look for a server that a sampler cannot reach; a new sampler may lack the last update."""
        if self._endpoints is None:
            return
        update = self._endpoints.latest(part)
        if update is not None:
            _send_endpoint(sampler, part, update)
        self._endpoints.look_for(part)

    def _read_messages(self, sampler: SamplerProcess) -> None:
        try:
            while (message := sampler.process.line.receive()) is not None:
                self._on_message(sampler, message)
        except EOFError:
            self._replace(sampler)

    def _on_message(self, sampler: SamplerProcess, message: Message) -> None:
        if message.op is Op.BATCH:
            number, batch, received = sampler.read(message)
            sampler.in_flight.pop((number, batch), None)
            if number in self._epochs:
                self._epochs[number].arrived[batch] = received
        elif message.op is Op.LAYOUT:
            sampler.learn(Layout.read_shared(message.descriptor()))
        elif message.op is Op.READY:
            sampler.is_ready, sampler.is_starting = True, False
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
        content = message.json()
        number, batch = message.integers("epoch", "batch")
        where = f"sampler process {sampler.number} (pid {sampler.process.pid})"
        if number is None or batch is None:  # it cannot start, and a restart would fail, too
            self._failure = rebuild_error(content, where)
            raise self._failure
        sampler.in_flight.pop((number, batch), None)
        if number in self._epochs:
            self._epochs[number].arrived[batch] = rebuild_error(content, where)

    def _replace(self, dead: SamplerProcess) -> None:
        """Restart a dead sampler, and request its batches in flight from the others."""
        in_flight = {task for sampler in self._samplers for task in sampler.in_flight}
        try:
            reap(dead, self._restart_policy, in_flight)
        except SamplerDiedError as error:
            self._failure = error
            raise
        fresh = self._start(dead.number, is_starting=True)
        self._samplers[self._samplers.index(dead)] = fresh
        fresh.process.line.post(Op.TRACE, ONE.pack(self._is_recorded))
        for epoch in self._epochs.values():
            self._send_epoch(fresh, epoch)
        assign_least_loaded(sorted(dead.in_flight), self._eligible())

    def _replace_fallbacks(self) -> None:
        """Replace fallback processes. Called while no epoch is open."""
        for place, sampler in enumerate(self._samplers):
            if self._is_fallback(sampler.process, sampler.number):
                self._samplers[place] = self._start(sampler.number)
                sampler.process.close()
                self._samplers[place].process.line.post(Op.TRACE, ONE.pack(self._is_recorded))

    def close(self) -> None:
        """End the samplers; batches that were returned stay valid."""
        for number in list(self._epochs):
            self.close_epoch(number)
        for sampler in self._samplers:
            sampler.process.line.close()  # all end at the same time
        for sampler in self._samplers:
            sampler.process.close()
        self._samplers.clear()
        self._program = start_sampler  # drops a `Standby`, whose reserve process ends with it
        if self._shared is not None and os.getpid() == self._owner:
            os.close(self._shared)
            self._shared = None


def _send_endpoint(sampler: SamplerProcess, part: int, update: EndpointUpdate) -> None:
    what = {"ended": update} if isinstance(update, str) else asdict(update)
    sampler.process.line.post(Op.ENDPOINT, json.dumps({"part": part, **what}).encode())
