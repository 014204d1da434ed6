"""The sampler process: makes the batches that its trainer or graph server requests.

Single-threaded. Several batches are in flight: while one waits for another partition, the next is
sampled. `window` decides which batch is drawn, fetches its rows and is written next. A finished
batch is in the arena, and the trainer gets its offset. The process sleeps until a message of its
trainer, a reply of a server or the rows of a store arrive.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from khop.channel.control import BATCH, MAX_PAYLOAD, U64, ControlLine, Message, Op
from khop.channel.layout import Layout
from khop.channel.shared import read_shared
from khop.data.direct_reads import DiskCounts
from khop.data.direct_rows import DiskOptions
from khop.data.waiter import waiter
from khop.distributed.processes.child import start_up, task_page
from khop.distributed.rpc.protocol import describe_error
from khop.distributed.sampling.control_messages import (
    Epoch,
    SampleRequest,
    SingleBatch,
    read_epoch,
    read_request,
)
from khop.distributed.sampling.pipeline import Pipeline, PipelineSpec
from khop.distributed.sampling.slots import HostSlots, Slot, Slots
from khop.distributed.sampling.window import Stage, Task, Window
from khop.sampler.methods.modules import import_methods
from khop.sampler.rows.collect import DrawnBatch
from khop.storage.folder import PartitionFolder
from khop.storage.named_stores import NamedStore
from khop.storage.pack import Pack
from khop.storage.part import Part
from khop.trace.clock import BatchTimings, Phase, PhaseClock
from khop.trace.requests import RequestLog, pack_records
from khop.typing import Array

if TYPE_CHECKING:
    from khop.distributed.rpc.partition_client import PartitionClient
    from khop.distributed.sampling.device_slots import DeviceOfSampler

_TICK_MS = 250
_REPORT_LOST_SECONDS = 1.0


class Sampler:
    """Event loop of a sampler process.

    Args:
        line: the control line.
        config: configuration from the trainer: folder, part, further parts to read (`others`),
            pipeline, modules of users' methods, endpoints, concurrency, cache_bytes, limits of the
            lookahead, path of a pack or None. Of graph servers: bytes of batches that are drawn
            ahead (`ahead_bytes`). On a device also: its name, the placement of graph
            and attributes, the description of a device arena.
        memory: descriptors of the arena's memory, and of the device arena's if it has one.
        arrays: extra arrays of `Pipeline`.
    """

    def __init__(
        self,
        line: ControlLine,
        config: Mapping[str, Any],
        memory: Sequence[int],
        arrays: Mapping[str, Array],
    ) -> None:
        self._line = line
        self._page = task_page()
        device, packed = _device(config), config.get("packed")
        self._slots = _slots(config, memory, device)
        self._client = _client(config, self._report_lost)
        self._reported_lost: dict[int, float] = {}
        stores = map(NamedStore.from_json, config.get("stores", ()))
        disk = DiskOptions.from_json(config.get("disk"))
        folder = PartitionFolder(config["root"]).attach(stores, disk)
        self._part = Part(folder, config["part"], config.get("others", ()))
        spec = PipelineSpec.from_json(config["pipeline"])
        self._clock = PhaseClock()
        self._pack = None if packed is None else Pack(packed)
        self._pipeline = Pipeline(
            self._part,
            spec,
            self._client,
            arrays,
            self._clock,
            device,
            config["cache_bytes"],
            None if self._pack is None else self._pack.rows,
        )
        self._lookahead: tuple[int, int] = config["lookahead"]  # limits
        self._window = Window(
            config["concurrency"],
            self._lookahead[0],
            self._pipeline.is_ordered,
            config.get("ahead_bytes"),
        )
        self._epochs: dict[int, Epoch | SingleBatch] = {}
        self._reported_bytes, self._reported_disk = 0, DiskCounts()
        self._announced: set[int] = set()
        self._waiter, self._timeout = waiter(), config["timeout"]
        # For messages of the trainer and of servers, and for reads of row stores.
        self._poller: Any = select.poll() if self._client is None else self._client.poller
        for descriptor in (self._line.fileno(), self._waiter.descriptor):
            self._poller.register(descriptor, select.POLLIN)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches of rows of other partitions."""
        return self._pipeline.cache_bytes

    def run(self) -> None:
        """Make batches until the trainer closes the line.

        Raises:
            EOFError: the trainer closed it.
        """
        while True:
            while (message := self._line.receive()) is not None:
                self._handle(message)
            if self._client is not None:
                self._client.pump()
            self._waiter.collect()
            progressed = self._advance()
            if self._begin_next() or progressed:
                continue
            # Idle until a message arrives. A tick lets requests in flight expire, and lost
            # connections be made again.
            idle = Phase.IDLE if self._epochs else Phase.CLOSED
            is_busy = self._window.is_busy
            self._clock.enter(Phase.REMOTE if is_busy else idle)
            is_lost = self._client is not None and not self._client.is_connected
            self._poller.poll(_TICK_MS if is_busy or is_lost else None)
            self._clock.enter(Phase.OTHER)

    def _handle(self, message: Message) -> None:
        if message.op is Op.SAMPLE:
            request = SampleRequest.decode(message.payload)
            for offset in request.freed:
                self._slots.free(offset)
            self._window.add(request.requested, request.ahead)
        elif message.op is Op.FREE:
            self._slots.free(U64.unpack(message.payload)[0])
        elif message.op is Op.OPEN_EPOCH:
            epoch_id, self._epochs[epoch_id] = read_epoch(message)
        elif message.op is Op.CLOSE_EPOCH:
            self._close_epoch(U64.unpack(message.payload)[0])
        elif message.op is Op.MAKE:  # a request of a graph server, which has no epochs
            key, batch, is_ahead = read_request(message)
            if key not in self._window:
                self._epochs[key[0]] = batch
            self._window.add([] if is_ahead else [key], [key] if is_ahead else [])
        elif message.op is Op.TRACE:
            is_recorded = bool(U64.unpack(message.payload)[0])
            self._clock.keep_segments(is_recorded)
            if self._client is not None:
                self._client.log = RequestLog() if is_recorded else None
        elif message.op is Op.ENDPOINT and self._client is not None:
            self._relocate(self._client, message.json())

    def _report_lost(self, part: int, since: float) -> None:
        """Report an unreachable server to the trainer, once per second while requests wait."""
        now = time.monotonic()
        if now - self._reported_lost.get(part, 0.0) > _REPORT_LOST_SECONDS:
            self._reported_lost[part] = now
            self._line.send_json(Op.LOST, {"part": part, "seconds": now - since})

    def _relocate(self, client: PartitionClient, content: Mapping[str, Any]) -> None:
        # Imported here: see `_client`.
        from khop.distributed.rpc.endpoint import Endpoint

        part = content["part"]
        if "ended" in content:
            client.give_up(part, content["ended"])
        else:
            client.relocate(part, Endpoint(content["address"], content["server_key"]))

    def _close_epoch(self, epoch: int) -> None:
        self._epochs.pop(epoch, None)
        # The last first: a batch that is given up makes later ones request their rows anew.
        for task in reversed(self._window.remove(epoch)):
            self._give_up(task)

    def _give_up(self, task: Task) -> None:
        """Release what a batch that is not made to its end has taken."""
        task.steps.close()
        task.slot.abandon()
        if task.drawn is not None and task.stage >= Stage.ANNOUNCED:
            self._pipeline.withdraw(task.drawn)

    def _begin_next(self) -> bool:
        """Begin the next stages of batches. Return whether there were any.

        Batches that are further along go first: they are the ones that the trainer waits for.
        """
        return self._write_next() or (self._draw_next() and (self._write_next() or True))

    def _write_next(self) -> bool:
        """Announce and request what has been drawn, and write a batch."""
        window, pipeline = self._window, self._pipeline
        progressed = False
        while (task := window.next_to_announce()) is not None:
            progressed = self._enter(task, Stage.ANNOUNCED, pipeline.announce)
            if window.lookahead:
                window.lookahead = pipeline.lookahead(self._lookahead)
        while (task := window.next_to_fetch()) is not None:
            progressed = self._enter(task, Stage.FETCHING, pipeline.request)
        task = window.next_to_write(pipeline.may_write)
        if task is None or task.drawn is None:
            return progressed
        task.steps = pipeline.write(task.drawn, task.slot.allocate)
        task.stage = Stage.WRITING
        self._step(task)
        return True

    def _enter(self, task: Task, stage: Stage, function: Callable[[DrawnBatch], object]) -> bool:
        """Enter a stage that takes one call. Return True."""
        assert task.drawn is not None
        self._resume(task)
        task.stage = stage
        try:
            function(task.drawn)
        except Exception as error:
            self._fail(task, error)
        self._clock.enter(Phase.OTHER)
        return True

    def _draw_next(self) -> bool:
        following = self._window.next_to_draw()
        if following is None:
            return False
        key, is_requested = following
        epoch = self._epochs[key[0]]  # open: the line keeps the order of messages
        if isinstance(epoch, SingleBatch):
            del self._epochs[key[0]]
        slot = self._slots.new(self._announce)
        steps = self._pipeline.draw(epoch.seeds_of(key[1]), *epoch.key_of(key[1]))
        task = Task(key, slot, steps, is_requested)
        self._window.tasks.append(task)
        self._step(task)
        return True

    def _advance(self) -> bool:
        ready = [task for task in self._window.tasks if task.is_ready]
        for task in ready:
            self._step(task)
        return bool(ready)

    def _resume(self, task: Task) -> None:
        """Count time and requests for a batch from now on."""
        self._page.write(*task.key)
        self._clock.enter(task.phase, task.key)
        if self._client is not None and self._client.log is not None:
            self._client.log.task = task.key

    def _step(self, task: Task) -> None:
        """Continue a batch's generator: until it waits, or to its end."""
        self._resume(task)
        try:
            is_written = self._run(task)
        except Exception as error:
            self._fail(task, error)
            return
        task.phase = self._clock.phase
        self._clock.enter(Phase.OTHER)
        if is_written:
            self._window.tasks.remove(task)
            self._deliver(task)

    def _run(self, task: Task) -> bool:
        """Run the next step of making a batch. Return True if the batch is complete in its slot."""
        try:
            task.waiting_for = next(task.steps)
        except StopIteration as end:
            task.waiting_for = []
            if task.stage == Stage.DRAWING:
                task.drawn, task.stage = end.value, Stage.DRAWN
                return False
            task.slot.finish()
            return True
        self._waiter.add(task.waiting_for, self._timeout)
        return False

    def _fail(self, task: Task, error: Exception) -> None:
        """Send the error of a batch in its place."""
        self._clock.enter(Phase.OTHER)
        self._window.tasks.remove(task)
        self._give_up(task)
        epoch, batch = task.key
        content = {"epoch": epoch, "batch": batch, **described_error(error)}
        self._line.send_json(Op.ERROR, content)

    def _announce(self, layout: Layout) -> None:
        """Send a layout (list of a batch's arrays) to the trainer, before the first such batch."""
        if layout.id in self._announced:
            return
        memory = layout.share()
        try:
            self._line.send(Op.LAYOUT, b"", [memory])
        finally:
            os.close(memory)
        self._announced.add(layout.id)

    def _deliver(self, task: Task) -> None:
        slot = task.slot
        self._send_records()
        payload = BATCH.pack(*task.key, slot.offset, slot.nbytes)
        if slot.record is not None:
            slot.record.note("made", self._made(slot, task.drawn))
            payload += slot.header
            if slot.record.extras:
                payload += json.dumps(slot.record.extras).encode()
        if slot.own_memory is None:
            self._line.send(Op.BATCH, payload)
        else:
            self._line.send(Op.BATCH, payload, [slot.own_memory])
            os.close(slot.own_memory)

    def _made(self, slot: Slot, drawn: DrawnBatch | None) -> BatchTimings:
        received = self._client.bytes_received if self._client is not None else 0
        remote_bytes, self._reported_bytes = received - self._reported_bytes, received
        me = os.getpid()
        overflows = int(slot.own_memory is not None)
        disk = self._part.disk_counts().plus(None if self._pack is None else self._pack.counts())
        read, self._reported_disk = disk.since(self._reported_disk), disk
        reused, rules = (0, (0, 0)) if drawn is None else (drawn.reused_bytes, drawn.rules)
        counts = slot.nbytes, remote_bytes, reused, overflows
        return self._clock.made(*counts, (me, me), read, rules)

    def _send_records(self) -> None:
        segments = self._clock.segments
        if not segments:
            return
        log = None if self._client is None else self._client.log
        for payload in pack_records(segments, [] if log is None else log.answered):
            self._line.send(Op.RECORDS, payload)
        segments.clear()
        if log is not None:
            log.answered.clear()


def described_error(error: Exception) -> dict[str, str]:
    """Return an exception with its traceback, cut to the size of a control message."""
    described = describe_error(error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    limit = MAX_PAYLOAD // 8  # JSON may need several bytes for a character
    return {
        "module": type(error).__module__,
        "type": described["type"],
        "message": described["message"][:limit],
        "traceback": trace[-limit:],
    }


def _client(
    config: Mapping[str, Any], on_lost: Callable[[int, float], None]
) -> PartitionClient | None:
    if not config["endpoints"]:
        return None
    # Imported here: without other partitions, a sampler without ZeroMQ starts 60 ms earlier.
    from khop.distributed.rpc.endpoint import Endpoint, KeyPair
    from khop.distributed.rpc.partition_client import PartitionClient

    credentials = config["credentials"]
    return PartitionClient(
        {int(part): Endpoint(**e) for part, e in config["endpoints"].items()},
        None if credentials is None else KeyPair(**credentials),
        config["timeout"],
        on_lost,
    )


def _device(config: Mapping[str, Any]) -> DeviceOfSampler | None:
    if config["device"] is None:
        return None
    # Imported here: samplers on the CPU start without it.
    from khop.data.device import open_device
    from khop.distributed.sampling.device_slots import DeviceOfSampler

    modes = config["graph_mode"], config["feature_mode"]
    return DeviceOfSampler(open_device(config["device"]), *modes)


def _slots(
    config: Mapping[str, Any], memory: Sequence[int], device: DeviceOfSampler | None
) -> Slots:
    arena, *device_arena = memory
    if device is None:
        slots: Slots = HostSlots(arena)
    else:
        from khop.distributed.sampling.device_slots import DeviceSlots

        slots = DeviceSlots(
            arena, device.native, config["device_arena"], device_arena, config["pin_memory"]
        )
    for descriptor in memory:
        os.close(descriptor)
    return slots


def main() -> None:
    """Run a sampler process, which `start_up` connects to its parent."""
    line, message = start_up()
    try:
        config, memory = message.json(), message.descriptors
        import_methods(config["methods"])
        arrays: dict[str, Array] = {}
        for _ in range(config["num_shared"]):
            shared = memory.pop()
            arrays.update(read_shared(shared))
            os.close(shared)
        sampler = Sampler(line, config, memory, arrays)
        line.send_json(Op.READY, {"cache_bytes": sampler.cache_bytes})
        sampler.run()
    except (EOFError, ConnectionError):
        pass  # the trainer has closed the line
    except Exception as error:
        with contextlib.suppress(ConnectionError):
            line.send_json(Op.ERROR, {"epoch": None, "batch": None, **described_error(error)})
        sys.exit(1)
