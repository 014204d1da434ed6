"""Session of a client's loader on a graph server: its samplers, requests and batches to send.

A session makes batches in the order of their requests and sends them in chunks, with as many bytes
in flight as its client allows (`Acknowledge` allows more). Samplers get work only while the batches
that are made and not sent fit in the session's buffer, so a client that stops reading fills only
its own buffer. `sampling.process_pool` assigns batches to samplers, and restarts those that die. A
session that is opened again is taken over as it is: receivers do so
after each loss of their connection, with the batches that they still wait for.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from khop import log
from khop.channel.control import U64, Op
from khop.channel.shared import share
from khop.distributed.membership.leases import Lease
from khop.distributed.remote.server.counters import SessionState
from khop.distributed.remote.server.send_queue import BatchRequest, EncodedBatch, Send, SendQueue
from khop.distributed.remote.session_messages import SessionSpec
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.sampling.control_messages import BatchKey, send_request
from khop.distributed.sampling.process_handle import (
    Program,
    RawBatch,
    SamplerProcess,
    start_sampler,
)
from khop.distributed.sampling.process_pool import ProcessPool, SamplerError
from khop.errors import ProtocolError, SamplerDiedError
from khop.typing import Array

_log = log.get(__name__)

# Lease of a session, if that of processes is not shorter: a session holds samplers and memory, and
# its client can open it again without a loss.
SESSION_LEASE = 10.0
# Minimum bound of the bytes of a session's queued requests.
_LEAST_WAITING = 16 << 20
# Errors if no descriptor, memory or process is left; they may go away.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_START_AGAIN = 0.5
# Requests that a sampler has in addition to `concurrency`, so that it never waits for the next.
_AHEAD = 2


@dataclass(frozen=True)
class SessionEnvironment:
    """Environment of sessions on their server.

    Attributes:
        sampler: configuration that all samplers have in common: root, credentials, modes.
        parts: partitions of the server.
        num_parts: number of partitions of the folder.
        endpoints: {partition: endpoint of its server}, kept up to date.
        labels: descriptor of labels that samplers read. None if there are none.
        counted: called with session, bytes and seconds of a batch that was sent.
        restarted: called when a sampler has died and is restarted.
        program: starts a sampler.
    """

    sampler: Mapping[str, Any]
    parts: Sequence[int]
    num_parts: int
    endpoints: Mapping[int, Endpoint]
    labels: int | None
    counted: Callable[[str, int, float], None]
    restarted: Callable[[], None]
    program: Program = start_sampler

    def missing_parts(self) -> list[int]:
        """Return the partitions that samplers need and that no server has registered yet."""
        homes = set(self.parts) if len(self.parts) == 1 else set()
        every = set(range(self.num_parts)) - homes
        return sorted(every - set(self.endpoints)) if self.num_parts > 1 else []

    def sampler_config(self, spec: SessionSpec, number: int, device: str | None) -> dict[str, Any]:
        """Return a sampler's configuration; see `khop.distributed.sampling.worker.Sampler`."""
        part = self.parts[number % len(self.parts)]
        others = {p: asdict(e) for p, e in self.endpoints.items() if p != part}
        return {
            **self.sampler,
            "part": part,
            "pipeline": spec.pipeline.to_json(),
            "endpoints": others if self.num_parts > 1 else {},
            "timeout": spec.timeout,
            "concurrency": spec.concurrency,
            "device": device,
            "device_arena": None,
        }


class Session:
    """A loader's session on this server.

    Args:
        spec: specification from the client.
        arrays: arrays that its samplers read, by name.
        host: environment of sessions on this server.
        send: sends an event to the client.
        clock: current time in seconds.

    Attributes:
        lease: lease of the client, renewed by each of its messages.
        made: batches that its samplers have made so far.
        opened_by: connection that opened it last, and its name.
        user: user of this connection.
        promised_bytes: memory that it may take: its buffer, and arrays that its samplers read.
    """

    def __init__(
        self,
        spec: SessionSpec,
        arrays: Mapping[str, Array],
        host: SessionEnvironment,
        send: Send,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.opened_by: tuple[tuple[int, bytes], str] = (-1, b""), ""
        self.user = ""
        self._host = host
        self._shared = share(arrays) if arrays else None
        self.promised_bytes = spec.buffer_bytes + sum(a.nbytes for a in arrays.values())
        self._clock = clock
        self.lease = Lease(clock)
        self.made = 0
        self._made_bytes = 0
        self._num_requests = 0
        # Requests for batches that are not made, and the keys of those that no sampler has.
        self._requests: dict[BatchKey, BatchRequest] = {}
        self._waiting: deque[BatchKey] = deque()
        self._most_waiting = max(spec.buffer_bytes, _LEAST_WAITING)
        self._send_queue = SendQueue(spec.session, spec.credits, send, self._is_sent)
        self._failure: dict[str, str] | None = None
        self._start_at = 0.0
        self._pool = ProcessPool(
            spec.num_workers,
            spec.max_restarts,
            self._request,
            SamplerProcess.read_raw,
            session=spec.session,
        )

    # Samplers -----------------------------------------------------------------------------------

    @property
    def samplers(self) -> list[SamplerProcess]:
        """Its sampler processes; none before all partitions can be reached."""
        return self._pool.samplers

    @property
    def num_restarts(self) -> int:
        """Number of restarts of its samplers."""
        return self._pool.num_restarts

    @property
    def waiting_for(self) -> str | None:
        """Reason for which samplers cannot be started, in words; None if there is none."""
        missing = self._host.missing_parts()
        if self.samplers or self._failure is not None or not missing:
            return None
        return f"no graph server has registered partition(s) {missing}"

    @property
    def lacks_sampler(self) -> bool:
        """True if a sampler is missing, and no recent attempt to start it has failed."""
        return self._pool.missing is not None and self._clock() >= self._start_at

    @property
    def can_start(self) -> bool:
        """True if `start` would start a sampler now."""
        return self.lacks_sampler and not self._host.missing_parts()

    def start(self) -> None:
        """Start one sampler, if one is missing and can be started.

        One at a time, as each takes a moment: a session of hundreds must not delay others. If the
        machine has no process, memory or descriptor left, try again later.
        """
        index = self._pool.missing
        if index is None or not self.can_start:
            return
        try:
            fresh = self._start(index)
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._start_at = self._clock() + _START_AGAIN
            name = self.spec.session
            _log.warning("sampler-not-started", f"session {name}: {error}", session=name)
            return
        self._pool.add(fresh)
        self.dispatch()

    def _start(self, index: int) -> SamplerProcess:
        config = self._host.sampler_config(self.spec, index, self.spec.device(index))
        shared = [d for d in (self._host.labels, self._shared) if d is not None]
        arena_bytes = max(self.spec.buffer_bytes // self.spec.num_workers, 1 << 16)
        return SamplerProcess.start(self._host.program, index, config, arena_bytes, shared)

    def relocate(self, part: int, endpoint: Endpoint) -> None:
        """Send the new endpoint of a partition to the samplers."""
        self._pool.relocate(part, endpoint)

    def listen(self, sampler: SamplerProcess) -> None:
        """Process a sampler's messages, or its end."""
        restarts_before = self.num_restarts
        try:
            for key, batch in self._pool.receive(sampler):
                if isinstance(batch, SamplerError):
                    self._on_error(sampler, key, batch.content)
                elif key is not None:
                    self._on_batch(key, batch)
        except SamplerDiedError as error:
            name = self.spec.session
            _log.error("session-failed", f"session {name}: {error}", session=name)
            self.fail({"type": type(error).__name__, "message": str(error), "traceback": ""})
        if self.num_restarts > restarts_before:
            self._host.restarted()
            self.start()
        self.dispatch()

    def _on_batch(self, key: BatchKey, batch: RawBatch) -> None:
        request = self._requests.pop(key, None)
        if request is None:  # it was cancelled
            return
        self.made += 1
        self._made_bytes += len(batch.raw)
        layout = self._send_queue.number_of(batch.layout)
        text = batch.extras.decode() if batch.extras else None
        self._send_queue.put(EncodedBatch(request, batch.raw, layout, text))

    def _on_error(
        self, sampler: SamplerProcess, key: BatchKey | None, content: Mapping[str, Any]
    ) -> None:
        error = {name: str(content[name]) for name in ("type", "message", "traceback")}
        error["message"] += f"\n\nRaised in sampler process {sampler.index} on this server."
        if key is None:  # the sampler could not start, and a restart would fail, too
            self.fail(error)
            return
        request = self._requests.pop(key, None)
        if request is not None:
            self.send_error(request.id, error)

    # Requests -----------------------------------------------------------------------------------

    def order(self, order: BatchRequest) -> None:
        """Queue a request for a batch; ignore it if it is known already.

        Raises:
            ProtocolError: too many requests, or too many bytes of seeds, at a time.
        """
        if self._failure is not None:
            self.send_error(order.id, self._failure)
            return
        known = self._known()
        if order.id in known:
            return
        if len(known) >= self.spec.depth:
            raise ProtocolError(f"more than {self.spec.depth} batches are asked for at a time")
        if order.nbytes + sum(self._requests[k].nbytes for k in self._waiting) > self._most_waiting:
            raise ProtocolError(f"seeds of more than {self._most_waiting} bytes wait")
        # Not the client's id: it may request a batch again that it has cancelled.
        self._num_requests += 1
        key = self._num_requests, order.batch
        self._requests[key] = order
        self._waiting.append(key)
        self.dispatch()

    def _known(self) -> set[int]:
        return {*(order.id for order in self._requests.values()), *self._send_queue.ids}

    def cancel(self, ids: Sequence[int]) -> None:
        """Drop requests and their batches."""
        unwanted = set(ids)
        for number in unwanted:
            self._send_queue.drop(number)
        self._requests = {k: o for k, o in self._requests.items() if o.id not in unwanted}
        self._waiting = deque(key for key in self._waiting if key in self._requests)
        for sampler, key in self._pool.forget(lambda key: key not in self._requests):
            sampler.process.line.post(Op.CLOSE_EPOCH, U64.pack(key[0]))
        self.dispatch()

    def dispatch(self) -> None:
        """Assign queued requests to the least busy samplers, as far as the buffer has room."""
        limit = self.spec.concurrency + _AHEAD
        while self._waiting and self._has_room():
            sampler = self._pool.least_loaded()
            if sampler is None or len(sampler.in_flight) >= limit:
                return
            self._pool.assign([self._waiting.popleft()])

    def _request(self, sampler: SamplerProcess, keys: Sequence[BatchKey]) -> None:
        for key in keys:
            order = self._requests[key]
            send_request(sampler.process.line, key, order.run_key, order.columns)

    def _has_room(self) -> bool:
        """Return whether one more batch fits, by the mean size of batches so far."""
        making = len(self._requests) - len(self._waiting)
        if making == 0 and not self._send_queue.ids:
            return True
        mean = self._made_bytes / self.made if self.made else 0.0
        return self._send_queue.nbytes + (making + 1) * mean <= self.spec.buffer_bytes

    # The client ---------------------------------------------------------------------------------

    def reattach(self, outstanding: Sequence[int], send: Send) -> list[int]:
        """Move to the client's new connection; drop batches that are no longer outstanding.

        Returns:
            Ids of the batches that the client need not request again.
        """
        wanted = set(outstanding)
        self.cancel([number for number in self._known() if number not in wanted])
        self._send_queue.reset(send, self.spec.credits)
        return sorted(self._known())

    def acknowledge(self, nbytes: int) -> None:
        """Add bytes that the client has acknowledged to the credits."""
        self._send_queue.acknowledge(nbytes)

    @property
    def can_send(self) -> bool:
        """True if a chunk may be sent now."""
        return self._send_queue.can_send

    def send_chunk(self) -> None:
        """Send the next chunk."""
        self._send_queue.send_chunk()

    def _is_sent(self, ready: EncodedBatch) -> None:
        seconds = self._clock() - ready.request.requested_at
        self._host.counted(self.spec.session, len(ready.raw), seconds)
        self.dispatch()

    def send_error(self, number: int, error: Mapping[str, str]) -> None:
        """Send the error of a batch that cannot be made."""
        self._send_queue.send_error(number, error)

    def fail(self, error: Mapping[str, str]) -> None:
        """Fail all requests, present and future, with an error; end the samplers."""
        if self._failure is not None:
            return
        self._failure = dict(error)
        self._pool.close(wait=False)
        orders, self._requests = list(self._requests.values()), {}
        self._waiting.clear()
        for order in orders:
            self.send_error(order.id, error)

    def state(self) -> SessionState:
        """Return the session's state, for statistics."""
        samplers = list(self.samplers)
        return {
            "session": self.spec.session,
            "loader": self.spec.session,
            "client": self.spec.client,
            "direct": False,
            "samplers": [
                {
                    "pid": sampler.process.pid,
                    "outstanding": len(sampler.in_flight),
                    "made": sampler.num_made,
                    "bytes": sampler.nbytes_made,
                }
                for sampler in samplers
            ],
            "restarts": self.num_restarts,
            "buffered_bytes": self._send_queue.nbytes,
            "unsent_chunks": self._send_queue.num_chunks,
            "ring_bytes": sum(sampler.arena.capacity for sampler in samplers),
        }

    def close(self) -> None:
        """End the samplers and drop all requests and batches."""
        self._requests.clear()
        self._waiting.clear()
        self._send_queue.clear()
        self._pool.close(wait=False)
        if self._shared is not None:
            os.close(self._shared)
            self._shared = None
