"""Table of a graph server's sessions: their requests, their turns to send, and their expiry.

A session is identified by its name and the secret of the loader that has opened it. Only the
connection that opened a session last can send requests for it. An unexpected error fails one
session alone.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from khop import codec, log
from khop.distributed.membership.leases import LeaseTable
from khop.distributed.remote.messages import Done
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.server.send_queue import BatchRequest
from khop.distributed.remote.server.session import Session
from khop.distributed.remote.server.session_environment import SessionEnvironment
from khop.distributed.remote.server.validation import SessionLimits, SessionValidator, columns_of
from khop.distributed.remote.session_messages import (
    Acknowledge,
    Alive,
    Batch,
    Cancel,
    Close,
    Open,
    Progress,
    SessionSpec,
)
from khop.distributed.remote.statistics import SessionState
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.fair_queue import FairQueue
from khop.distributed.rpc.frame_handler import pack_or_refuse
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.limits import RateLimiter
from khop.distributed.rpc.protocol import describe_error
from khop.distributed.sampling.process_handle import SamplerProcess
from khop.typing import Array

_log = log.get(__name__)

# Chunks that are sent before messages are read again.
_CHUNKS_PER_TURN = 64
# Sessions are bounded elsewhere.
_ANY_NUMBER = 1 << 62
# Sampler processes that a user can start per second, and at once. Each costs a quarter of a second
# of a core.
_STARTS_RATE, _STARTS_BURST = 16.0, 1024.0

SendFrames: TypeAlias = Callable[[int, bytes, Sequence[Any]], None]
"""Sender of frames to a peer: index of the socket, ZeroMQ's name of the peer there, frames."""


class Requester:
    """Sender of a request about a session, to whom replies and events are sent.

    `source` is its connection and key, and `send_frames` sends frames there. `request_id` is the id
    in the request, which its reply repeats. If None, it had none.
    """

    __slots__ = ("_send_frames", "request_id", "source")

    def __init__(self, source: Source, request_id: int | None, send_frames: SendFrames) -> None:
        self.source = source
        self.request_id = request_id
        self._send_frames = send_frames

    def send(self, header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Send JSON `header` and arrays, dropped if the sender of the request has disconnected.

        If the message is larger than clients accept, an error is sent in its place.
        """
        self._send_frames(*self.source.connection, pack_or_refuse(header, arrays))

    def reply(self, fields: object, arrays: Sequence[Array] = ()) -> None:
        """Send the reply to the request: `fields`, a dataclass, and arrays."""
        self.send({"id": self.request_id, **codec.to_json(fields)}, arrays)


Answer: TypeAlias = Callable[[Any, list[Array], Requester], None]
"""Function of a request, its arrays and its sender. It replies at once, later or never."""


class SessionTable:
    """All sessions (clients' loaders) of a graph server: their requests, turns and ends.

    One thread calls the methods, any thread may call `states`.

    Args:
        checks: checks requests against the graph.
        host: settings and functions of the server.
        counters: counters of the server.
        allowed: maximum numbers of sessions, processes and bytes, in all and per user.
        leases: table of the clients' leases. If None, a new one.

    Attributes:
        answers: {class of a request: function that answers it}.
    """

    def __init__(
        self,
        checks: SessionValidator,
        host: SessionEnvironment,
        counters: ServerCounters,
        allowed: SessionLimits,
        leases: LeaseTable | None = None,
    ) -> None:
        self._checks = checks
        self._host = host
        self._counters = counters
        self._allowed = allowed
        self._leases = leases or LeaseTable()
        self._sessions: dict[tuple[str, str], Session] = {}
        # Sessions by the connection that can send requests for them, and their name.
        self._opened: dict[tuple[tuple[int, bytes], str], Session] = {}
        # Sessions with chunks to send. A session that has ended leaves the queue at its turn.
        self._turns: FairQueue[Session] = FairQueue(_ANY_NUMBER, _ANY_NUMBER)
        self._queued: set[Session] = set()
        self._num_started: Counter[str] = Counter()
        self._starts = RateLimiter(_STARTS_RATE, _STARTS_BURST)
        self.answers: dict[type, Answer] = {
            Open: self._open,
            Batch: self._batch,
            Cancel: self._cancel,
            Acknowledge: self._acknowledge,
            Alive: self._alive,
            Close: self._close,
        }

    @property
    def has_turns(self) -> bool:
        """True if a session has a chunk of a batch to send, or a sampler to start."""
        return bool(self._turns) or self._next_to_start() is not None

    def _next_to_start(self) -> Session | None:
        """Return the session whose sampler is started next: its user has the fewest starts."""
        lacking = [s for s in self._sessions.values() if s.lacks_sampler]
        if not lacking or self._host.missing_parts():
            return None
        return min(lacking, key=lambda s: self._num_started[s.user])

    def states(self) -> list[SessionState]:
        """Return the sessions' state, for statistics. Any thread can call it."""
        return [session.state() for session in list(self._sessions.values())]

    def samplers(self) -> list[tuple[Session, SamplerProcess]]:
        return [(s, sampler) for s in self._sessions.values() for sampler in s.samplers]

    @contextlib.contextmanager
    def _guarded(self, session: Session) -> Iterator[None]:
        """Fail this session alone, if the `with` block raises an error. Other sessions continue."""
        try:
            yield
        except Exception as error:
            name = session.spec.session
            _log.error("session-failed", f"session {name}: {error!r}", exc_info=error, session=name)
            session.fail({**describe_error(error), "traceback": ""})

    def listen(self, session: Session, sampler: SamplerProcess) -> None:
        """Process the messages of a sampler, unless the session has ended it."""
        if sampler in session.samplers:
            with self._guarded(session):
                sampler.process.line.flush()
                session.listen(sampler)
                self._give_turn(session)

    def relocate(self, part: int, endpoint: Endpoint) -> None:
        for session in self._sessions.values():
            with self._guarded(session):
                session.pool.relocate(part, endpoint)

    def start(self) -> None:
        """Start one sampler for a session that lacks one. Users take turns."""
        session = self._next_to_start()
        if session is not None:
            self._num_started[session.user] += 1
            with self._guarded(session):
                session.start()

    def tick(self, heard_until: Callable[[str, float], float] = lambda user, now: now) -> None:
        """End sessions whose clients are silent. Called every 0.25 s.

        Args:
            heard_until: from (user, now), the time up to which messages of the user are read.
        """
        now = time.monotonic()
        for session in list(self._sessions.values()):
            with self._guarded(session):
                silent = session.lease.silence(now)
                if silent > self._allowed.lease:
                    silent = session.lease.silence(heard_until(session.user, now))
                if silent > self._allowed.lease:
                    name = session.spec.session
                    text = f"session {name} of {session.spec.client}: silent for {silent:.0f} s"
                    _log.warning("session-expired", text, session=name)
                    self._end(session, expired=True)

    def close(self) -> None:
        for session in list(self._sessions.values()):
            self._end(session)

    def _give_turn(self, session: Session) -> None:
        if session.queue.can_send and session not in self._queued:
            self._queued.add(session)
            self._turns.put(session.user, session, connection=session)

    def stream(self) -> None:
        """Start a sampler, then send chunks of batches. Users and their sessions take turns."""
        self.start()
        for _ in range(_CHUNKS_PER_TURN):
            turn = self._turns.take()
            if turn is None:
                return
            session = turn.entry
            self._queued.discard(session)
            with self._guarded(session):
                if session.queue.can_send:
                    session.queue.send_chunk()
                    self._turns.charge(turn, 1.0)
                    self._give_turn(session)

    # Requests -----------------------------------------------------------------------------------

    def _session(self, name: str, requester: Requester) -> Session:
        session = self._opened.get((requester.source.connection, name))
        if session is None:
            raise LookupError(f"no session '{name}': open it")
        session.lease.renew()
        return session

    def _open(self, request: Open, arrays: list[Array], requester: Requester) -> None:
        spec = request.spec
        known = self._sessions.get((spec.session, spec.secret))
        if known is not None and known.spec == spec:
            known.lease.renew()
            held = known.reattach(request.outstanding, requester.send)
            self._belongs_to(known, requester)
            self._give_turn(known)
            requester.reply(known.opened(held))
            return
        if known is not None:
            self._end(known)
        self._check_limits(spec, sum(array.nbytes for array in arrays))
        self._checks.pipeline(spec.pipeline)
        named = self._checks.arrays(spec.pipeline, request.names, arrays)
        user = requester.source.user.encode()
        if not all(self._starts.admit(user) for _ in range(spec.num_workers)):
            raise MemoryError(
                f"sessions of yours have started {_STARTS_BURST:.0f} sampler processes in a short "
                "time: this graph server starts no more for a minute"
            )
        session = Session(spec, named, self._host, requester.send)
        self._leases.follow(session.lease)
        self._sessions[spec.session, spec.secret] = session
        self._belongs_to(session, requester)
        self._counters.session_opened(spec.session)
        _log.info(
            "session-opened",
            f"session {spec.session} of {spec.client}",
            session=spec.session,
            samplers=spec.num_workers,
            buffer_bytes=spec.buffer_bytes,
            cache_bytes=session.grant.cache_bytes,
        )
        requester.reply(session.opened([]))

    def _belongs_to(self, session: Session, requester: Requester) -> None:
        """Make the connection of `requester` the only one that can use the session."""
        self._opened.pop(session.opened_by, None)
        session.user = requester.source.user
        session.opened_by = requester.source.connection, session.spec.session
        self._opened[session.opened_by] = session

    def _check_limits(self, spec: SessionSpec, nbytes: int) -> None:
        """Raise MemoryError if a session with arrays of `nbytes` bytes exceeds the limits."""
        known, allowed = self._sessions.values(), self._allowed
        if len(known) >= allowed.sessions:
            raise MemoryError(f"this graph server has {len(known)} sessions, its limit")
        processes = sum(session.spec.num_workers for session in known)
        if processes + spec.num_workers > allowed.samplers:
            raise MemoryError(
                f"a session requests {spec.num_workers} sampler processes, but this graph server "
                f"has {processes}, and its limit is {allowed.samplers}"
            )
        taken, requested = sum(s.promised_bytes for s in known), spec.buffer_bytes + nbytes
        if taken + requested > allowed.buffer_bytes:
            raise MemoryError(
                f"a session requests {requested} bytes, but {len(known)} sessions have {taken} of "
                f"this graph server's {allowed.buffer_bytes} (--buffer-limit): pass a smaller "
                "buffer_size, or raise the limit"
            )

    def _batch(self, request: Batch, arrays: list[Array], requester: Requester) -> None:
        session = self._session(request.session, requester)
        try:
            columns = columns_of(arrays)
            self._checks.columns(session.spec.pipeline, columns)
            now = time.monotonic()
            accept = session.draw_ahead if request.ahead else session.enqueue
            accept(BatchRequest(request.batch_id, request.batch, request.run_key, columns, now))
        except Exception as error:
            session.queue.send_error(request.batch_id, describe_error(error))
        self._give_turn(session)

    def _cancel(self, request: Cancel, arrays: list[Array], requester: Requester) -> None:
        self._session(request.session, requester).cancel(request.ids)

    def _acknowledge(self, request: Acknowledge, arrays: list[Array], requester: Requester) -> None:
        session = self._session(request.session, requester)
        session.queue.acknowledge(request.bytes)
        self._give_turn(session)

    def _alive(self, request: Alive, arrays: list[Array], requester: Requester) -> None:
        session = self._session(request.session, requester)
        requester.reply(Progress(request.session, session.made, session.waiting_for))

    def _close(self, request: Close, arrays: list[Array], requester: Requester) -> None:
        session = self._opened.get((requester.source.connection, request.session))
        if session is not None:
            self._end(session)
        requester.reply(Done())

    def _end(self, session: Session, expired: bool = False) -> None:
        name = session.spec.session
        del self._sessions[name, session.spec.secret]
        self._opened.pop(session.opened_by, None)
        session.close()
        if not any(s.user == session.user for s in self._sessions.values()):
            self._num_started.pop(session.user, None)
        self._counters.session_ended(name, expired)
        _log.info("session-closed", f"session {name} has ended", session=name)
