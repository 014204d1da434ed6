"""A process that makes batches: its start, its control line, its arena, and its batches in flight.

Run by trainers and graph servers. The process samples, or receives batches from a graph server.
Both use the same control messages. `process_pool` assigns batches to processes.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from khop.channel.arena import ArenaReader, create_memory
from khop.channel.control import BATCH, ON_DEVICE, U64, ControlLine, Message, Op
from khop.channel.device_arena import DeviceArenaReader
from khop.channel.layout import Layout, Received, layout_of, read_record
from khop.distributed.processes.child import ChildProcess
from khop.distributed.rpc.endpoint import EndpointUpdate
from khop.distributed.sampling.control_messages import BatchKey, SampleRequest
from khop.errors import ProtocolError
from khop.placement import Placement
from khop.typing import Array

_SAMPLER = "khop.distributed.sampling.worker"
# Slots and batches in one message to a sampler, within what a message holds.
_MAX_FREED = 2048
_MAX_REQUESTED = 1024


@dataclass(frozen=True)
class Worker:
    """Process of a distributed loader: it samples batches, or receives them from graph servers.

    Attributes:
        pid: process id on this machine.
        number: index of the process in its loader. A replacement has the index of the replaced one.
        device: device on which it samples or gathers, `"cuda:0"` for example, or `"cpu"`.

    Example:
        >>> workers = MpDistSamplingWorkerOptions(num_workers=2)
        >>> loader = DistNeighborLoader(DistDataset().load(folder), [2], worker_options=workers)
        >>> loader.workers
        [Worker(pid=..., number=0, device='cpu'), Worker(pid=..., number=1, device='cpu')]
    """

    pid: int
    number: int
    device: str


class Process(Protocol):
    """Interface of a trainer or graph server to a process that makes or receives batches."""

    line: ControlLine

    @property
    def pid(self) -> int:
        """Process id."""

    def exit_status(self) -> str:
        """Return how the process ended, in words. Call when it is ending."""

    @property
    def ended_with_server(self) -> bool:
        """True if it ended because the graph server that had started it ended."""

    def last_task(self) -> BatchKey | None:
        """Return the (epoch, batch) that the process worked on last. None if this is not known."""

    def log_tail(self) -> str:
        """Return the last lines of the process's log."""

    def close(self) -> None:
        """End the process. A second call does nothing."""


Program: TypeAlias = Callable[[Mapping[str, Any], Sequence[int]], Process]
"""Factory of processes: `(config, descriptors) -> Process`."""


def start_sampler(
    config: Mapping[str, Any], memory: Sequence[int], placement: Placement | None = None
) -> Process:
    """Start `khop.distributed.sampling.worker` in a process on this machine."""
    return ChildProcess(_SAMPLER, config, memory, placement=placement)


class Standby:
    """Factory of sampler processes that keeps one more process in reserve.

    The reserve replaces a sampler that has ended, without the start-up time. It has imported its
    modules, which takes nearly all of that time, and waits for a configuration. It takes some 30
    MB, and ends with the last reference to this object.

    Args:
        num_samplers: number of processes to start before a further process is kept in reserve.
        imports: further modules that the reserve imports.
        placement: placement of all of its processes. If None, as this process.
    """

    def __init__(
        self, num_samplers: int, imports: Sequence[str], placement: Placement | None = None
    ) -> None:
        self._num_unstarted = num_samplers
        self._imports, self._placement = imports, placement
        self._reserve: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the process in reserve. None if there is none."""
        return None if self._reserve is None else self._reserve.pid

    def __call__(self, config: Mapping[str, Any], memory: Sequence[int]) -> Process:
        """Return a process with this configuration: the reserve if there is one, else a new one."""
        process, self._reserve = self._reserve, None
        if process is None or process.has_ended:
            process = ChildProcess(_SAMPLER, config, memory, placement=self._placement)
        else:
            process.configure(config, memory)
        self._num_unstarted -= 1
        if self._num_unstarted <= 0:
            self._reserve = ChildProcess(
                _SAMPLER, None, imports=self._imports, placement=self._placement
            )
        return process


def end_process(process: Process) -> None:
    """End a process in a separate thread: a process that makes a batch ends with a delay."""
    process.line.close()
    threading.Thread(target=process.close, name="khop-end").start()


def send_endpoint(process: Process, part: int, update: EndpointUpdate) -> None:
    """Send the new endpoint of a partition, or the reason why it is no longer served."""
    content = {"ended": update} if isinstance(update, str) else asdict(update)
    process.line.post(Op.ENDPOINT, json.dumps({"part": part, **content}).encode())


class RawBatch(NamedTuple):
    """Batch as bytes, [nbytes] uint8, with its layout, and its extra data as JSON or None."""

    raw: Array
    layout: Layout
    extras: bytes


class SamplerProcess:
    """A sampler process, its arena, and its batches in flight.

    Args:
        index: index of the sampler in its loader.
        process: the process.
        arena: its arena.
        device_arena: the device arena that it shares with this process, if any.
        in_bulk: slots are freed with the next request, not at once.

    Attributes:
        is_starting: True while a replacement of a dead sampler is not ready: others are preferred.
        in_flight: batches that were assigned and not delivered, in order: whether each was
            requested. Others may be drawn, and are requested later.
        layouts: layouts of its batches, by id.
        cache_bytes: bytes of its caches of rows of other partitions, as it reports them.
        num_made, nbytes_made: number of batches made so far, and their bytes.
    """

    def __init__(
        self,
        index: int,
        process: Process,
        arena: ArenaReader,
        device_arena: DeviceArenaReader | None = None,
        in_bulk: bool = False,
    ) -> None:
        self.is_starting = False
        self.index = index
        self.process = process
        self.arena = arena
        self.device_arena = device_arena
        self.in_flight: dict[BatchKey, bool] = {}
        self.layouts: dict[int, Layout] = {}
        self.cache_bytes = 0
        self.num_made = self.nbytes_made = 0
        # Slots without references, freed with the next request. Destructors append to it.
        self._freed: deque[int] = deque()
        self._free: Callable[[int], None] = self._freed.append
        if not in_bulk:
            self._free = partial(_free, weakref.ref(process.line), os.getpid())

    @classmethod
    def start(
        cls,
        program: Program,
        index: int,
        config: Mapping[str, Any],
        arena_bytes: int,
        shared: Sequence[int],
        device_arena: DeviceArenaReader | None = None,
        in_bulk: bool = False,
        pin: Callable[[ArenaReader], None] | None = None,
    ) -> SamplerProcess:
        """Start a process with a new arena.

        Args:
            program: factory of the process.
            index: index of the sampler in its loader.
            config: configuration of `worker.Sampler`, `device_arena` included if there is one.
            arena_bytes: bytes of the arena.
            shared: descriptors of arrays that the process reads. They stay open here.
            device_arena: device arena that it shares with this process, if any.
            in_bulk: slots are freed with the next request, not at once.
            pin: called with the arena, to register it with CUDA. If None, it is not registered.

        Raises:
            OSError: no process, memory or descriptor is left.
        """
        memory = create_memory(arena_bytes, f"khop-ring-{index}")
        try:
            arena = ArenaReader(memory)
            if pin is not None:
                pin(arena)
            own = {"number": index, "has_arrays": bool(shared), "num_shared": len(shared)}
            on_device = [] if device_arena is None else device_arena.descriptors
            process = program({**config, **own}, [memory, *on_device, *shared])
        finally:
            os.close(memory)
            if device_arena is not None:
                device_arena.passed_on()
        return cls(index, process, arena, device_arena, in_bulk)

    def request_batches(self, keys: Sequence[BatchKey], ahead: Sequence[BatchKey] = ()) -> None:
        """Request batches, and return the slots without references since the last request.

        Args:
            keys: the batches.
            ahead: batches that will be requested later.
        """
        # Other threads append, only this one removes.
        count = min(len(self._freed), _MAX_FREED)
        freed = [self._freed.popleft() for _ in range(count)]
        for start in range(0, max(len(keys), len(ahead), 1), _MAX_REQUESTED):
            piece = slice(start, start + _MAX_REQUESTED)
            request = SampleRequest(freed, keys[piece], ahead[piece])
            self.process.line.post(Op.SAMPLE, request.encode())
            freed = []

    def read(self, message: Message) -> tuple[BatchKey, Received]:
        """Read a BATCH message: key and batch. Closes its descriptors.

        If the user keeps batches, the sampler must not run out of slots: while more than half of
        the arena is in use, batches are copied.

        Raises:
            ProtocolError: the message is malformed.
        """
        try:
            key, offset, nbytes, rest = self._read_head(message)
            if offset & ON_DEVICE:
                received, rest = self._lease_on_device(rest, offset, nbytes)
            else:
                is_short = self.arena.bytes_leased > self.arena.capacity // 2
                raw = self._lease(message, offset, nbytes)
                if is_short and not message.descriptors:
                    raw = raw.copy()
                received = read_record(raw, self.layouts)
            if rest:
                received = received._replace(extras=message._replace(payload=rest).json())
            return key, received
        finally:
            message.close_descriptors()

    def read_raw(self, message: Message) -> tuple[BatchKey, RawBatch]:
        """Read a BATCH message without its arrays. Return key and bytes. Closes its descriptors.

        Raises:
            ProtocolError: the message is malformed.
        """
        try:
            key, offset, nbytes, extras = self._read_head(message)
            raw = self._lease(message, offset, nbytes)
            return key, RawBatch(raw, layout_of(raw.data, self.layouts), extras)
        finally:
            message.close_descriptors()

    def _read_head(self, message: Message) -> tuple[BatchKey, int, int, bytes]:
        """Read the head of a BATCH message, and count the batch as delivered.

        Returns its key, offset, size, and the message's other bytes.
        """
        if len(message.payload) < BATCH.size:
            raise ProtocolError(f"a sampler's BATCH message has {len(message.payload)} bytes")
        epoch, batch, offset, nbytes = BATCH.unpack_from(message.payload)
        self.in_flight.pop((epoch, batch), None)
        self.num_made += 1
        self.nbytes_made += nbytes
        return (epoch, batch), offset, nbytes, message.payload[BATCH.size :]

    def _lease(self, message: Message, offset: int, nbytes: int) -> Array:
        if message.descriptors:  # the arena was full
            return ArenaReader(message.descriptor()).lease(0, nbytes, None)
        return self.arena.lease(offset, nbytes, self._free)

    def _lease_on_device(self, header: bytes, offset: int, nbytes: int) -> tuple[Received, bytes]:
        """Return a batch in the device arena, and the rest of its message."""
        if self.device_arena is None or len(header) < U64.size:
            raise ProtocolError("a batch is in device memory, but there is no device arena")
        end = U64.size + U64.unpack_from(header)[0]
        free = self._free
        received = self.device_arena.lease(
            offset - ON_DEVICE,
            nbytes,
            header[U64.size : end],
            self.layouts,
            lambda slot: free(slot | ON_DEVICE),
        )
        return received, header[end:]


def _free(line: weakref.ref[ControlLine], owner: int, slot: int) -> None:
    """Report a slot as free to its sampler. Runs in any thread, of the user or of ZeroMQ."""
    open_line = line()
    if open_line is not None and os.getpid() == owner:  # a fork drops copies, not the batch
        open_line.post(Op.FREE, U64.pack(slot))
