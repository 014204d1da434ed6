"""Session of a client's loader on a graph server: its samplers, requests and batches to send.

A session makes batches in the order of their requests. It sends them in chunks, with as many bytes
in flight as its client allows. Samplers get work only while the batches that are made and not sent
fit in the session's buffer. So a client that stops reading fills only its own buffer.
`sampling.process_pool` assigns batches to samplers, and restarts samplers that die. After the loss
of its connection, a receiver opens its session again and lists the batches that it still waits for.
The session keeps its samplers and these batches.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from khop import log
from khop.channel.control import U64, Op
from khop.channel.shared import share
from khop.distributed.membership.leases import Lease
from khop.distributed.remote.messages import MAX_DEPTH
from khop.distributed.remote.server.send_queue import BatchRequest, EncodedBatch, Send, SendQueue
from khop.distributed.remote.server.session_environment import SessionEnvironment
from khop.distributed.remote.session_messages import Held, SessionSpec
from khop.distributed.remote.statistics import SamplerState, SessionState
from khop.distributed.sampling.control_messages import BatchKey, send_request
from khop.distributed.sampling.process_handle import RawBatch, SamplerProcess
from khop.distributed.sampling.process_pool import ProcessPool, SamplerError
from khop.errors import ProtocolError, SamplerDiedError
from khop.typing import Array

_log = log.get(__name__)

# Longest lease of a session, shorter than a process's: a session holds samplers and memory, and its
# client can open it again without a loss.
SESSION_LEASE = 10.0
# Minimum bound of the bytes of a session's queued requests.
_LEAST_WAITING = 16 << 20
# Errors if no descriptor, memory or process is left, which can pass.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_RETRY_SECONDS = 0.5
# Requests that a sampler has in addition to `concurrency`, so that it never waits for the next.
_AHEAD = 2


class Session:
    """State of a client's loader on this server: samplers, requests, batches to send.

    Args:
        spec: specification of the session: batches, samplers, limits.
        arrays: arrays that its samplers read, by name.
        host: settings and functions of the server.
        send: sends an event to the client.
        clock: returns the time in seconds.

    Attributes:
        lease: lease of the client, renewed by each of its messages.
        made: batches that its samplers have made so far.
        opened_by: connection that opened the session last, and the session's name.
        user: user of this connection.
        promised_bytes: maximum bytes of its buffer, and of arrays that its samplers read.
        queue: batches to send.
        pool: its sampler processes. It is empty before all partitions can be reached.
        grant: bytes for rows of other partitions, of its samplers.
        lookahead: maximum number of batches that are drawn ahead.
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
        # Requests for batches that are not made, and the keys of those not assigned to a sampler.
        self._requests: dict[BatchKey, BatchRequest] = {}
        self._waiting: deque[BatchKey] = deque()
        # {id: key} of the requests for batches that are only drawn.
        self._ahead: dict[int, BatchKey] = {}
        self._most_waiting = max(spec.buffer_bytes, _LEAST_WAITING)
        self.queue = SendQueue(spec.session, spec.credits, send, self._on_sent)
        self._failure: dict[str, str] | None = None
        self._start_at = 0.0
        self.pool = ProcessPool(
            spec.num_workers,
            spec.max_restarts,
            self._request,
            SamplerProcess.read_raw,
            session=spec.session,
        )
        self.grant = host.grant(spec)
        each = spec.lookahead[1] + spec.concurrency
        is_known = self.grant.cache_bytes > 0 and spec.lookahead[1] > 0
        self.lookahead = min(each * spec.num_workers, MAX_DEPTH) if is_known else 0

    def opened(self, held: list[int]) -> Held:
        """Return the reply to the request that opens the session, which has the batches `held`."""
        return Held(held, self.lookahead, self.grant.cache_bytes, self.grant.reason)

    # Samplers -----------------------------------------------------------------------------------

    @property
    def samplers(self) -> list[SamplerProcess]:
        return self.pool.samplers

    @property
    def waiting_for(self) -> str | None:
        """Reason in words why samplers cannot be started. None if there is no reason."""
        missing = self._host.missing_parts()
        if self.samplers or self._failure is not None or not missing:
            return None
        return f"no graph server has registered partition(s) {missing}"

    @property
    def lacks_sampler(self) -> bool:
        """True if a sampler is missing, and no recent attempt to start it has failed."""
        return self.pool.missing is not None and self._clock() >= self._start_at

    def start(self) -> None:
        """Start one sampler, if one is missing and can be started.

        One call starts one sampler, which takes a moment, so that a session with hundreds of them
        does not delay others. If memory, processes or descriptors run out, try again later.
        """
        index, spec = self.pool.missing, self.spec
        if index is None or not self.lacks_sampler or self._host.missing_parts():
            return
        config = self._host.sampler_config(spec, index, spec.device(index), self.grant)
        shared = [d for d in (self._host.labels, self._shared) if d is not None]
        arena_bytes = max(spec.buffer_bytes // spec.num_workers, 1 << 16)
        try:
            sampler = SamplerProcess.start(self._host.program, index, config, arena_bytes, shared)
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._start_at = self._clock() + _RETRY_SECONDS
            text = f"session {spec.session}: {error}"
            _log.warning("sampler-not-started", text, session=spec.session)
            return
        self.pool.add(sampler)
        self.dispatch()

    def listen(self, sampler: SamplerProcess) -> None:
        """Process the messages of a sampler, and the end of its process."""
        restarts_before = self.pool.num_restarts
        try:
            for key, batch in self.pool.receive(sampler):
                if isinstance(batch, SamplerError):
                    self._on_error(sampler, key, batch.content)
                elif key is not None:
                    self._on_batch(key, batch)
        except SamplerDiedError as error:
            name = self.spec.session
            _log.error("session-failed", f"session {name}: {error}", session=name)
            self.fail({"type": type(error).__name__, "message": str(error), "traceback": ""})
        if self.pool.num_restarts > restarts_before:
            self._host.restarted()
            self.start()
        self.dispatch()

    def _on_batch(self, key: BatchKey, batch: RawBatch) -> None:
        request = self._requests.pop(key, None)
        if request is None:  # it was cancelled
            return
        self.made += 1
        self._made_bytes += len(batch.raw)
        layout = self.queue.layout_number(batch.layout)
        text = batch.extras.decode() if batch.extras else None
        self.queue.ready[request.id] = EncodedBatch(request, batch.raw, layout, text)

    def _on_error(
        self, sampler: SamplerProcess, key: BatchKey | None, content: Mapping[str, Any]
    ) -> None:
        error = {name: str(content[name]) for name in ("type", "message", "traceback")}
        error["message"] += f"\n\nRaised in sampler process {sampler.index} on this server."
        if key is None:  # the sampler could not start, and a restart would fail, too
            self.fail(error)
            return
        request = self._requests.pop(key, None)
        if request is not None and self._ahead.pop(request.id, None) is None:
            self.queue.send_error(request.id, error)

    # Requests -----------------------------------------------------------------------------------

    def enqueue(self, request: BatchRequest) -> None:
        """Queue a client's request for a batch. Do nothing if it is queued, or its batch made.

        Raises:
            ProtocolError: the session has too many requests, or too many bytes of seeds.
        """
        if self._failure is not None:
            self.queue.send_error(request.id, self._failure)
            return
        known = self._known()
        if request.id in known:
            return
        if len(known) >= self.spec.depth:
            raise ProtocolError(f"more than {self.spec.depth} batches are requested at once")
        if not self._has_room_for(request):
            raise ProtocolError(f"seeds of more than {self._most_waiting} bytes wait")
        key = self._ahead.pop(request.id, None) or self._new_key(request)
        self._requests[key] = request
        self._waiting.append(key)
        self.dispatch()

    def draw_ahead(self, request: BatchRequest) -> None:
        """Have a sampler draw a batch that will be requested. Ignored beyond the limits."""
        if self._failure is not None or len(self._ahead) >= self.lookahead:
            return
        is_known = request.id in self._ahead or request.id in self._known()
        if is_known or not self._has_room_for(request):
            return
        key = self._ahead[request.id] = self._new_key(request)
        self._requests[key] = request
        self.pool.assign([], [key])

    def _new_key(self, request: BatchRequest) -> BatchKey:
        # Not the client's id: a batch that was cancelled can be requested again.
        self._num_requests += 1
        return self._num_requests, request.batch

    def _has_room_for(self, request: BatchRequest) -> bool:
        """Return True if the seeds of requests that wait are within their bound with this one."""
        waiting = (*self._waiting, *self._ahead.values())
        nbytes = sum(self._requests[key].columns.nbytes for key in waiting)
        return nbytes + request.columns.nbytes <= self._most_waiting

    def _known(self) -> set[int]:
        """Return the ids of the batches that were requested and are not sent."""
        requested = {request.id for request in self._requests.values()} - self._ahead.keys()
        return {*requested, *self.queue.ready}

    def cancel(self, ids: Sequence[int]) -> None:
        unwanted = set(ids)
        for batch_id in unwanted:
            self.queue.ready.pop(batch_id, None)
        self._requests = {k: r for k, r in self._requests.items() if r.id not in unwanted}
        self._waiting = deque(key for key in self._waiting if key in self._requests)
        self._ahead = {i: key for i, key in self._ahead.items() if i not in unwanted}
        for sampler, key in self.pool.forget(lambda key: key not in self._requests):
            sampler.process.line.post(Op.CLOSE_EPOCH, U64.pack(key[0]))
        self.dispatch()

    def dispatch(self) -> None:
        """Assign queued requests to the least busy samplers, while their batches fit the buffer."""
        limit = self.spec.concurrency + _AHEAD
        while self._waiting and self._next_fits():
            sampler = self.pool.holder(self._waiting[0]) or self.pool.least_loaded()
            if sampler is None or sum(sampler.in_flight.values()) >= limit:
                return
            self.pool.assign([self._waiting.popleft()])

    def _request(
        self, sampler: SamplerProcess, keys: Sequence[BatchKey], ahead: Sequence[BatchKey]
    ) -> None:
        for key in (*keys, *ahead):
            request = self._requests[key]
            run_key, columns = request.run_key, request.columns
            send_request(sampler.process.line, key, run_key, columns, key in ahead)

    def _next_fits(self) -> bool:
        """Return True if one more batch, of the mean size so far, fits in the session's buffer."""
        making = len(self._requests) - len(self._waiting) - len(self._ahead)
        if making == 0 and not self.queue.ready:
            return True
        mean = self._made_bytes / self.made if self.made else 0.0
        return self.queue.nbytes + (making + 1) * mean <= self.spec.buffer_bytes

    # The client ---------------------------------------------------------------------------------

    def reattach(self, outstanding: Sequence[int], send: Send) -> list[int]:
        """Continue over the client's new connection, with unfinished batches from their start.

        Args:
            outstanding: ids of batches that the client waits for. Others are dropped.
            send: sends an event over the new connection.

        Returns:
            Ids of the outstanding batches that the session has: the client need not request them.
        """
        self.cancel([*self._known().difference(outstanding), *self._ahead])
        self.queue.reset(send)
        return sorted(self._known())

    def _on_sent(self, ready: EncodedBatch) -> None:
        seconds = self._clock() - ready.request.requested_at
        self._host.counted(self.spec.session, len(ready.raw), seconds)
        self.dispatch()

    def fail(self, error: Mapping[str, str]) -> None:
        """Fail all current and later requests with an error, and end the samplers."""
        if self._failure is not None:
            return
        self._failure = dict(error)
        self.pool.close(wait=False)
        requests, self._requests = list(self._requests.values()), {}
        ahead, self._ahead = self._ahead, {}
        self._waiting.clear()
        for request in requests:
            if request.id not in ahead:
                self.queue.send_error(request.id, error)

    def state(self) -> SessionState:
        samplers = list(self.samplers)
        return SessionState(
            session=self.spec.session,
            loader=self.spec.session,
            client=self.spec.client,
            direct=False,
            samplers=[
                SamplerState(s.process.pid, len(s.in_flight), s.num_made, s.nbytes_made)
                for s in samplers
            ],
            restarts=self.pool.num_restarts,
            buffered_bytes=self.queue.nbytes,
            unsent_chunks=self.queue.num_chunks,
            ring_bytes=sum(sampler.arena.capacity for sampler in samplers),
            cache_bytes=self.grant.cache_bytes,
        )

    def close(self) -> None:
        """End the samplers and drop all requests and batches."""
        self._host.budget.give_back(self.grant)
        self._requests.clear()
        self._ahead.clear()
        self._waiting.clear()
        self.queue.ready.clear()
        self.pool.close(wait=False)
        if self._shared is not None:
            os.close(self._shared)
            self._shared = None
