"""Session of a client's loader on a graph server: its samplers, requests and batches to send.

A session makes batches in the order of their requests and sends them in chunks, with as many bytes
in flight as its client allows (`Acknowledge` allows more). Samplers get work only while the batches
that are made and not sent fit in the session's buffer, so a client that stops reading fills only
its own buffer. A sampler that dies is restarted, and gets its batches in flight again; batches are
functions of their requests. A session that is opened again is taken over as it is: receivers do so
after each loss of their connection, with the batches that they still wait for.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from khop import log
from khop.channel.control import Message, Op
from khop.channel.layout import Layout
from khop.channel.shared import share
from khop.distributed.processes.child import ChildProcess
from khop.distributed.remote.messages import SessionSpec
from khop.distributed.remote.server.counters import SessionState
from khop.distributed.remote.server.send_queue import Send, SendQueue
from khop.distributed.remote.server.session_sampler import (
    BatchRequest,
    EncodedBatch,
    SessionSampler,
)
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.sampling.restart_policy import RestartPolicy
from khop.errors import ProtocolError, SamplerDiedError
from khop.typing import Array

_log = log.get(__name__)

LEASE_SECONDS = 10.0
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
    """

    sampler: Mapping[str, Any]
    parts: Sequence[int]
    num_parts: int
    endpoints: Mapping[int, Endpoint]
    labels: int | None
    counted: Callable[[str, int, float], None]
    restarted: Callable[[], None]

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
            "slab": None,
        }


class Session:
    """A loader's session on this server.

    Args:
        spec: specification from the client.
        arrays: arrays that its samplers read, by name.
        host: environment of sessions on this server.
        send: sends an event to the client.

    Attributes:
        samplers: its sampler processes; none before all partitions can be reached.
        heard: time of the client's last message (`time.monotonic`).
        made: batches that its samplers have made so far.
        opened_by: connection that opened it last, and its name.
        promised_bytes: memory that it may take: its buffer, and arrays that its samplers read.
    """

    def __init__(
        self,
        spec: SessionSpec,
        arrays: Mapping[str, Array],
        host: SessionEnvironment,
        send: Send,
    ) -> None:
        self.spec = spec
        self.opened_by: tuple[tuple[int, bytes], str] = (-1, b""), ""
        self._host = host
        self._shared = share(arrays) if arrays else None
        self.promised_bytes = spec.buffer_bytes + sum(a.nbytes for a in arrays.values())
        self.samplers: list[SessionSampler] = []
        self.heard = time.monotonic()
        self.made = 0
        self._made_bytes = 0
        self._waiting: deque[BatchRequest] = deque()
        self._most_waiting = max(spec.buffer_bytes, _LEAST_WAITING)
        self._send_queue = SendQueue(spec.session, spec.credits, send, self._is_sent)
        self._restart_policy = RestartPolicy(spec.max_restarts)
        self._failure: dict[str, str] | None = None
        self._begun = 0  # samplers started, without restarts
        self._start_at = 0.0
        self._to_replace: deque[SessionSampler] = deque()  # samplers that have died

    # Samplers -----------------------------------------------------------------------------------

    @property
    def waiting_for(self) -> str | None:
        """Reason for which samplers cannot be started, in words; None if there is none."""
        missing = self._host.missing_parts()
        if self.samplers or self._failure is not None or not missing:
            return None
        return f"no graph server has registered partition(s) {missing}"

    @property
    def can_start(self) -> bool:
        """True if `start` would start a sampler now."""
        is_due = self._begun < self.spec.num_workers or bool(self._to_replace)
        is_ready = self._failure is None and time.monotonic() >= self._start_at
        return is_due and is_ready and not self._host.missing_parts()

    def start(self) -> None:
        """Start one sampler, if one is missing and can be started.

        One at a time, as each takes a moment: a session of hundreds must not delay others. If the
        machine has no process, memory or descriptor left, try again later.
        """
        if not self.can_start:
            return
        dead = self._to_replace[0] if self._to_replace else None
        try:
            fresh = self._start(self._begun if dead is None else dead.number)
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._start_at = time.monotonic() + _START_AGAIN
            name = self.spec.session
            _log.warning("sampler-not-started", f"session {name}: {error}", session=name)
            return
        self.samplers.append(fresh)
        if dead is None:
            self._begun += 1
        else:
            self._to_replace.popleft()
            for order in dead.orders.values():
                fresh.submit(order)
        self.dispatch()

    def _start(self, number: int) -> SessionSampler:
        config = self._host.sampler_config(self.spec, number, self.spec.device(number))
        shared = [d for d in (self._host.labels, self._shared) if d is not None]
        ring_bytes = max(self.spec.buffer_bytes // self.spec.num_workers, 1 << 16)
        return SessionSampler(number, config, ring_bytes, shared)

    def relocate(self, part: int, endpoint: Endpoint) -> None:
        """Send the new endpoint of a partition to the samplers."""
        for sampler in self.samplers:
            send_endpoint(sampler.process, part, endpoint)

    def listen(self, sampler: SessionSampler) -> None:
        """Process a sampler's messages, or its end."""
        try:
            while sampler in self.samplers:
                message = sampler.process.line.receive()
                if message is None:
                    break
                self._on_message(sampler, message)
        except EOFError:
            self._replace(sampler)
        self.dispatch()

    def _on_message(self, sampler: SessionSampler, message: Message) -> None:
        if message.op is Op.BATCH:
            ready = sampler.read(message)
            if ready is not None:
                self.made += 1
                self._made_bytes += len(ready.raw)
                self._send_queue.put(ready)
        elif message.op is Op.LAYOUT:
            layout = Layout.read_shared(message.descriptor())
            sampler.layouts[layout.number] = self._send_queue.number_of(layout)
        elif message.op is Op.ERROR:
            content = message.json()
            error = {name: str(content[name]) for name in ("type", "message", "traceback")}
            error["message"] += f"\n\nRaised in sampler process {sampler.number} on this server."
            if content["epoch"] is None:  # its start failed, and would fail again
                self.fail(error)
                return
            order = sampler.orders.pop(content["epoch"], None)
            if order is not None:
                self.send_error(order.id, error)

    def _replace(self, dead: SessionSampler) -> None:
        """Restart a dead sampler with its batches in flight; fail if no restarts are left."""
        status = dead.process.exit_status()
        end_process(dead.process)
        self.samplers.remove(dead)
        owed = sorted(order.batch for order in dead.orders.values())
        _log.warning(
            "sampler-died",
            f"session {self.spec.session}: sampler {dead.number} (pid {dead.process.pid}) {status}",
            session=self.spec.session,
            sampler=dead.number,
            pid=dead.process.pid,
            owed=len(owed),
            restarts_left=self.spec.max_restarts - self.num_restarts,
        )
        ticket, batch = dead.process.last_task() or (None, None)
        order = None if ticket is None else dead.orders.get(ticket)
        task = None if order is None else order.id
        in_flight = self._known() | {order.id for order in dead.orders.values()}
        why = self._restart_policy.record_exit(task, in_flight, f"batch {batch}")
        if why is not None:
            error = SamplerDiedError(
                f"sampler process {dead.number} (pid {dead.process.pid}) of the graph server "
                f"{status} while batches {owed} were due, and {why}. Killed processes often mean "
                f"that memory ran out.{_end_of_log(dead.process)}"
            )
            self._waiting.extendleft(reversed(dead.orders.values()))
            self.fail({"type": type(error).__name__, "message": str(error), "traceback": ""})
            return
        self._host.restarted()
        self._to_replace.append(dead)
        self.start()

    @property
    def num_restarts(self) -> int:
        """Number of restarts of its samplers."""
        return self._restart_policy.num_restarts

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
        if order.nbytes + sum(o.nbytes for o in self._waiting) > self._most_waiting:
            raise ProtocolError(f"seeds of more than {self._most_waiting} bytes wait")
        self._waiting.append(order)
        self.dispatch()

    def _known(self) -> set[int]:
        making = {o.id for s in (*self.samplers, *self._to_replace) for o in s.orders.values()}
        return {*(order.id for order in self._waiting), *making, *self._send_queue.ids}

    def cancel(self, ids: Sequence[int]) -> None:
        """Drop requests and their batches."""
        unwanted = set(ids)
        self._waiting = deque(o for o in self._waiting if o.id not in unwanted)
        for number in unwanted:
            if not self._send_queue.drop(number):
                for sampler in (*self.samplers, *self._to_replace):
                    if sampler.drop(number):
                        break
        self.dispatch()

    def dispatch(self) -> None:
        """Assign queued requests to the least busy samplers, as far as the buffer has room."""
        limit = self.spec.concurrency + _AHEAD
        while self._waiting and self.samplers and self._has_room():
            sampler = min(self.samplers, key=lambda s: len(s.orders))
            if len(sampler.orders) >= limit:
                return
            sampler.submit(self._waiting.popleft())

    def _has_room(self) -> bool:
        """Return whether one more batch fits, by the mean size of batches so far."""
        making = sum(len(sampler.orders) for sampler in self.samplers)
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
        seconds = time.monotonic() - ready.order.asked
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
        ended = [*self.samplers, *self._to_replace]
        self.samplers.clear()
        self._to_replace.clear()
        orders = [*self._waiting, *(o for s in ended for o in s.orders.values())]
        self._waiting.clear()
        for sampler in ended:
            end_process(sampler.process)
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
                    "outstanding": len(sampler.orders),
                    "made": sampler.made,
                    "bytes": sampler.nbytes,
                }
                for sampler in samplers
            ],
            "restarts": self.num_restarts,
            "buffered_bytes": self._send_queue.nbytes,
            "unsent_chunks": self._send_queue.num_chunks,
            "ring_bytes": sum(sampler.ring_bytes for sampler in samplers),
        }

    def close(self) -> None:
        """End the samplers and drop all requests and batches."""
        self._waiting.clear()
        self._send_queue.clear()
        for sampler in self.samplers:
            end_process(sampler.process)
        self.samplers.clear()
        self._to_replace.clear()
        if self._shared is not None:
            os.close(self._shared)
            self._shared = None


def _end_of_log(dead: ChildProcess) -> str:
    log = dead.log_tail()
    return f"\nThe end of its log:\n{log}" if log else ""


def send_endpoint(sampler: ChildProcess, part: int, endpoint: Endpoint) -> None:
    """Send the new endpoint of a partition to a sampler."""
    content = json.dumps({"part": part, **asdict(endpoint)}).encode()
    sampler.line.post(Op.ENDPOINT, content)


def end_process(sampler: ChildProcess) -> None:
    """End a sampler in a separate thread: one that is making a batch takes a moment."""
    sampler.line.close()
    threading.Thread(target=sampler.close, name="khop-end").start()
