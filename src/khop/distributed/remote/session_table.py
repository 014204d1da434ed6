"""All sessions of a graph server: what is asked of them, whose turn it is, who is silent."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from khop import log
from khop.distributed.fields import integer, ranks, text
from khop.distributed.remote.checks import Allowed, SessionChecks, columns_of, session_spec
from khop.distributed.remote.nearby import Nearby
from khop.distributed.remote.sampling import Order, ServedSampler
from khop.distributed.remote.sessions import Host, Session, SessionSpec
from khop.distributed.remote.statistics import ServerCounters, ServerState
from khop.distributed.transport import Endpoint
from khop.distributed.wire import describe_error
from khop.typing import Array

_log = log.get(__name__)

# Chunks that are sent before messages are looked at again.
_CHUNKS_A_TURN = 64
_MAX_ID = 2**63 - 1


class Asker(Protocol):
    """Who has sent a message: where its replies go."""

    def send(self, header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Sends a message; what is for somebody who has gone is dropped."""


Answer = Callable[[Mapping[str, Any], list[Array], Asker], "dict[str, Any] | None"]


class SessionTable:
    """The sessions of a server. Belongs to one thread, but for `state`.

    Args:
        checks: raises what is wrong with a session and the columns of its batches.
        host: what sessions have of their server.
        counters: counts.
        allowed: what clients may take.

    Attributes:
        answers: name of a request -> what answers it.
        nearby: lends samplers to clients of this machine; None before `lend`.
    """

    def __init__(
        self, checks: SessionChecks, host: Host, counters: ServerCounters, allowed: Allowed
    ) -> None:
        self._checks = checks
        self._host = host
        self._counters = counters
        self._allowed = allowed
        self._sessions: dict[str, Session] = {}
        self._turns: deque[Session] = deque()
        self.nearby: Nearby | None = None
        self.answers: dict[str, Answer] = {
            "open": self._open,
            "batch": self._batch,
            "cancel": self._cancel,
            "ack": self._acknowledge,
            "alive": self._alive,
            "close": self._close,
        }

    @property
    def has_turns(self) -> bool:
        """Whether there is something to `stream`."""
        return bool(self._turns)

    def state(self) -> ServerState:
        """Clients and sessions, for statistics."""
        sessions = [session.state() for session in list(self._sessions.values())]
        sessions += [] if self.nearby is None else self.nearby.states()
        return {"clients": sorted({s["client"] for s in sessions}), "sessions": sessions}

    def samplers(self) -> list[tuple[Session, ServedSampler]]:
        """All sampler processes, and whose they are."""
        return [(s, sampler) for s in self._sessions.values() for sampler in s.samplers]

    def listen(self, session: Session, sampler: ServedSampler) -> None:
        """Takes in what a sampler says, if it has not been ended meanwhile."""
        if sampler in session.samplers:
            sampler.process.line.flush()
            session.listen(sampler)
            self._give_turn(session)

    def relocate(self, part: int, endpoint: Endpoint) -> None:
        """A partition is served there from now on."""
        for session in self._sessions.values():
            session.relocate(part, endpoint)

        if self.nearby is not None:
            self.nearby.relocate(part, endpoint)

    def lend(self, path: str) -> None:
        """Lends samplers to clients of this machine from now on, at a Unix socket."""
        self.nearby = Nearby(path, self._checks, self._host, self._has_room)

    def _has_room(self, count: int) -> bool:
        """Whether there may be so many samplers more."""
        return self._num_samplers() + count <= self._allowed.samplers

    def _num_samplers(self) -> int:
        lent = 0 if self.nearby is None else self.nearby.count
        return lent + sum(session.spec.num_workers for session in self._sessions.values())

    def start(self) -> None:
        """Starts samplers that waited for partitions to be served."""
        for session in self._sessions.values():
            session.start()

    def expire(self) -> None:
        """Ends sessions whose clients are silent."""
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            silent = now - session.heard
            if silent > self._allowed.lease:
                said = f"session {name} of {session.spec.client}: silent for {silent:.0f} s"
                _log.warning("session-expired", said, session=name)
                self._end(name, expired=True)

    def close(self) -> None:
        """Ends all sessions."""
        for name in list(self._sessions):
            self._end(name)
        if self.nearby is not None:
            self.nearby.close()

    def _give_turn(self, session: Session) -> None:
        if session.can_send and session not in self._turns:
            self._turns.append(session)

    def stream(self) -> None:
        """Sends chunks, one of each session that may send, in turns."""
        for _ in range(_CHUNKS_A_TURN):
            if not self._turns:
                return
            session = self._turns.popleft()
            if session.can_send:
                session.send_chunk()
                self._give_turn(session)

    def _session(self, header: Mapping[str, Any]) -> Session:
        name = text(header, "session", 256)
        session = self._sessions.get(name)
        if session is None:
            raise LookupError(f"no session '{name}': open it")
        session.heard = time.monotonic()
        return session

    def _open(self, header: Mapping[str, Any], arrays: list[Array], asker: Asker) -> dict[str, Any]:
        spec = session_spec(header)
        outstanding = ranks(header, "outstanding", _MAX_ID)
        known = self._sessions.get(spec.session)
        if known is not None and known.spec == spec:
            known.heard = time.monotonic()
            held = known.taken_over(spec, outstanding, asker.send)
            self._give_turn(known)
            return {"held": held}
        if known is not None:
            self._end(spec.session)
        pipeline = self._checks.pipeline(spec.pipeline)
        named = self._checks.arrays(header, arrays)
        self._check_room(spec, sum(array.nbytes for array in arrays))
        session = Session(spec, pipeline, named, self._host, asker.send)
        self._sessions[spec.session] = session
        self._counters.session_opened(spec.session)
        _log.info(
            "session-opened",
            f"session {spec.session} of {spec.client}",
            session=spec.session,
            samplers=spec.num_workers,
            buffer_bytes=spec.buffer_bytes,
        )
        return {"held": []}

    def _check_room(self, spec: SessionSpec, nbytes: int) -> None:
        """Raises MemoryError if there is none for a session with arrays of `nbytes` bytes."""
        known = self._sessions.values()
        if len(known) >= self._allowed.sessions:
            raise MemoryError(f"this graph server has {len(known)} sessions, and no room for more")
        processes = self._num_samplers()
        if not self._has_room(spec.num_workers):
            raise MemoryError(
                f"a session asks for {spec.num_workers} sampler processes, but this graph server "
                f"has {processes} of the {self._allowed.samplers} that it may have"
            )
        taken, wanted = sum(s.promised_bytes for s in known), spec.buffer_bytes + nbytes
        if taken + wanted > self._allowed.buffer_bytes:
            raise MemoryError(
                f"a session asks for {wanted} bytes, but of this graph server's "
                f"{self._allowed.buffer_bytes} (--buffer-limit) {taken} are taken by "
                f"{len(known)} sessions: pass a smaller buffer_size, or raise the limit"
            )

    def _batch(self, header: Mapping[str, Any], arrays: list[Array], asker: Asker) -> None:
        session = self._session(header)
        order = Order(
            integer(header, "batch_id", 0, _MAX_ID),
            integer(header, "batch", 0, _MAX_ID),
            integer(header, "run_key", 0, 2**64 - 1),
            columns_of(arrays),
            time.monotonic(),
        )
        try:
            self._checks.columns(session.pipeline, order.columns)
            session.order(order)
        except Exception as error:
            described = {**describe_error(error), "traceback": ""}
            failed = {"event": "failed", "session": session.spec.session, "batch_id": order.id}
            asker.send({**failed, "error": described})
        self._give_turn(session)

    def _cancel(self, header: Mapping[str, Any], arrays: list[Array], asker: Asker) -> None:
        self._session(header).cancel(ranks(header, "ids", _MAX_ID))

    def _acknowledge(self, header: Mapping[str, Any], arrays: list[Array], asker: Asker) -> None:
        session = self._session(header)
        session.acknowledge(integer(header, "bytes", 0, _MAX_ID))
        self._give_turn(session)

    def _alive(
        self, header: Mapping[str, Any], arrays: list[Array], asker: Asker
    ) -> dict[str, Any]:
        session = self._session(header)
        return {
            "session": session.spec.session,
            "made": session.made,
            "waiting_for": session.waiting_for,
        }

    def _close(
        self, header: Mapping[str, Any], arrays: list[Array], asker: Asker
    ) -> dict[str, Any]:
        name = text(header, "session", 256)
        if name in self._sessions:
            self._end(name)
        return {}

    def _end(self, name: str, expired: bool = False) -> None:
        session = self._sessions.pop(name)
        session.close()
        with contextlib.suppress(ValueError):
            self._turns.remove(session)
        self._counters.session_ended(name, expired)
        _log.info("session-closed", f"session {name} has ended", session=name)
