"""The graph server: its sockets, its loop, and who answers what.

One thread, the loop, owns the sockets, the sessions with their sampler processes, and on server 0
the directory: it answers what changes them, sends chunks of batches in turns, and never does
anything that takes long. What concerns the graph alone (requests of other servers' samplers, ids,
splits) is answered by threads of their own, so that it does not wait for streams. A third thread
(`RemoteClient`) tells the directory every second that this server lives, and hears from it where
the others are.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from khop import log
from khop.channel.control import ControlLine
from khop.channel.message import unpack
from khop.distributed.handler import pack_or_refuse, refusal
from khop.distributed.limits import Unread
from khop.distributed.remote.addresses import endpoint_of
from khop.distributed.remote.answers import peek_op
from khop.distributed.remote.directory import Directory
from khop.distributed.remote.hosting import Hosting
from khop.distributed.remote.sampling import ServedSampler
from khop.distributed.remote.session_table import Asker, SessionTable
from khop.distributed.remote.sessions import Session
from khop.distributed.remote.statistics import ServerCounters
from khop.distributed.server import PartitionServer
from khop.distributed.transport import Endpoint
from khop.distributed.wire import PROTOCOL, describe_error
from khop.errors import ProtocolError
from khop.typing import Array

_log = log.get(__name__)

_TICK_MS = 250
# Requests that wait until a thread has time; further ones stay where they came in.
_MAX_PARKED = 256
# Seconds that server 0 stays for others to hear that all clients have gone.
_FAREWELL = 5.0

_QUIET = ("batch", "cancel", "ack")
"""Requests whose only reply is an error."""


class _Peer:
    """Who has sent a message: where its replies go."""

    __slots__ = ("_front", "_peer", "_unread")

    def __init__(self, front: zmq.Socket[bytes], peer: bytes, unread: Unread) -> None:
        self._front = front
        self._peer = peer
        self._unread = unread

    def send(self, header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Sends a message; what is for somebody who has gone is dropped.

        What is more than a client accepts becomes an error.
        """
        # A socket of other machines refuses only when the machine has no memory left.
        self._unread.send(self._front, self._peer, pack_or_refuse(header, arrays))


class GraphServer(PartitionServer):
    """Serves a graph, and makes batches for clients.

    Args:
        handler: answers what concerns the graph; see `answers.ServerHandler`.
        sessions: of clients.
        hosting: samplers in the memory of clients of this machine.
        parts: partitions that it serves.
        endpoints: {partition: where it is served}, kept up to date here.
        counters: counts.
        directory: of server 0; None: this is another.
        server_key: of servers' sockets that other machines can reach; None: no CURVE.
        rank: of this server.
        sockets: for `PartitionServer`: ipc_path, tcp_host, tcp_port, curve, num_threads (at least
            two, so that the loop never answers itself).
    """

    def __init__(
        self,
        handler: Any,
        sessions: SessionTable,
        hosting: Hosting,
        parts: Sequence[int],
        endpoints: dict[int, Endpoint],
        counters: ServerCounters,
        directory: Directory | None,
        server_key: str | None,
        rank: int,
        **sockets: Any,
    ) -> None:
        super().__init__(handler, **sockets)
        self._sessions = sessions
        self._parts = parts
        self._endpoints = endpoints
        self._counters = counters
        self._directory = directory
        self._server_key = server_key
        self._rank = rank
        self._tables: deque[Mapping[str, Any]] = deque()
        self._parked: deque[list[Any]] = deque()
        self._finished_at: float | None = None
        self._hosting = hosting
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.refused: Exception | None = None
        self.finished = False
        self.gone: dict[str, str] = {}
        self._answers: dict[str, Callable[..., dict[str, Any] | None]] = {
            "statistics": self._statistics,
            "ping": self._ping,
            **sessions.answers,
        }
        for name in ("register", "lookup", "tell", "hear", "goodbye"):
            self._answers[name] = self._ask_directory

    # What other threads call --------------------------------------------------------------------

    def take_table(self, table: Mapping[str, Any]) -> None:
        """The directory has said what is known."""
        self._tables.append(table)
        os.eventfd_write(self._wake, 1)

    def take_refusal(self, error: Exception) -> None:
        """The directory refuses this server: it ends."""
        self.refused = error
        os.eventfd_write(self._wake, 1)

    # The loop -----------------------------------------------------------------------------------

    def serve(self, line: ControlLine) -> None:
        """Answers until the control line closes, all clients have gone, or the directory refuses.

        Raises:
            RendezvousError: the directory refuses this server.
        """
        poller, polled = zmq.Poller(), dict[Any, int]()
        for source in (self._back, line.fileno(), self._wake):
            poller.register(source, zmq.POLLIN)
        tick_at = 0.0
        while not self.finished:
            lines = self._follow_lines(poller, polled)
            for front in self._fronts:
                poller.register(front, zmq.POLLIN if len(self._parked) < _MAX_PARKED else 0)
            for ready, _ in poller.poll(0 if self._sessions.has_turns else _TICK_MS):
                if ready == line.fileno():
                    if _has_ended(line):
                        return
                elif ready in lines:
                    self._sessions.listen(*lines[ready])
                else:
                    self._look_at(ready)
            if self.refused is not None:
                raise self.refused
            while self._tables:
                self._follow_table(self._tables.popleft())
            self._sessions.stream()
            if time.monotonic() >= tick_at:
                self._tick()
                tick_at = time.monotonic() + _TICK_MS / 1000

    def _look_at(self, ready: Any) -> None:
        if ready == self._wake:
            os.eventfd_read(self._wake)
        elif ready is self._back:
            self._hand_back()
        elif isinstance(ready, int):
            self._hosting.look_at(ready)
        else:
            self._take(ready)

    def _follow_lines(
        self, poller: zmq.Poller, polled: dict[Any, int]
    ) -> dict[Any, tuple[Session, ServedSampler]]:
        """Polls the lines of the samplers that there are now, and clients of this machine."""
        lines: dict[Any, tuple[Session, ServedSampler]] = {}
        wanted: dict[Any, int] = dict.fromkeys(self._hosting.descriptors(), zmq.POLLIN)
        for session, sampler in self._sessions.samplers():
            line = sampler.process.line
            lines[line.fileno()] = session, sampler
            wanted[line.fileno()] = zmq.POLLIN | (zmq.POLLOUT if line.has_unsent else 0)
        for descriptor in polled.keys() - wanted.keys():
            poller.unregister(descriptor)
            del polled[descriptor]
        for descriptor, flags in wanted.items():
            if polled.get(descriptor) != flags:
                poller.register(descriptor, flags)
                polled[descriptor] = flags
        return lines

    def _take(self, front: zmq.Socket[bytes]) -> None:
        """Answers, or passes on, what has arrived at a socket; a few messages at a time."""
        for _ in range(16):
            try:
                peer, *frames = front.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            request = [frame.buffer for frame in frames]
            answer = self._answers.get(peek_op(request[0]) if request else "")
            if (why := self._why_not(peer.bytes)) is not None:
                self._counters.refused("too much at a time")
                _log.debug("request-refused", why)
                self._unread.send(front, peer.bytes, refusal(request, ProtocolError(why)))
            elif answer is not None:
                self._answer(answer, _Peer(front, peer.bytes, self._unread), request)
            else:
                self._parked.append([bytes([self._fronts.index(front)]), peer, *frames])
                self._pass_on()

    def _pass_on(self) -> None:
        """Gives requests to the threads, no more than they can work at soon."""
        assert self._back is not None
        while self._parked and self._at_work < self._max_at_work:
            self._at_work += 1
            self._back.send_multipart(self._parked.popleft(), copy=False)

    def _hand_back(self) -> None:
        """Sends what a thread has answered."""
        assert self._back is not None
        self._at_work -= 1
        index, peer, *reply = self._back.recv_multipart(copy=False)
        self._unread.send(self._fronts[index.bytes[0]], peer.bytes, reply)
        self._pass_on()

    def _answer(
        self, answer: Callable[..., dict[str, Any] | None], asker: Asker, frames: list[Any]
    ) -> None:
        """Answers a request here and now, unless its answer comes later."""
        began, header, is_refused = time.monotonic(), dict[str, Any](), False
        reply: Mapping[str, Any] | None
        try:
            header, arrays = unpack(frames)
            if header.get("protocol") != PROTOCOL:
                raise ProtocolError(
                    f"protocol {header.get('protocol')} instead of {PROTOCOL}: all machines must "
                    "run the same khop"
                )
            reply = answer(header, arrays, asker)
        except Exception as error:
            is_refused = True
            _log.debug("request-refused", f"{header.get('op')}: {error}")
            reply = {"error": describe_error(error), "session": header.get("session")}
        op = str(header.get("op", ""))
        if reply is not None and (is_refused or op not in _QUIET):
            asker.send({"id": header.get("id"), **reply})
        if op in self._answers:
            nbytes = sum(map(len, frames))
            seconds = time.monotonic() - began
            self._counters.count_request(op, seconds, nbytes, 0, is_refused)

    def _tick(self) -> None:
        self._hosting.flush()
        if self._directory is not None:
            self._directory.tick()
        self._sessions.expire()

    # Servers and clients ------------------------------------------------------------------------

    def _ask_directory(
        self, header: Mapping[str, Any], arrays: list[Array], asker: Asker
    ) -> dict[str, Any] | None:
        if self._directory is None:
            raise ProtocolError("this is not server 0, which has the directory")
        if arrays:
            raise ProtocolError("the directory takes no arrays")
        op, number = header["op"], header.get("id")
        if op == "lookup":
            return self._directory.lookup()
        if op == "hear":
            self._directory.hear(header, lambda reply: asker.send({"id": number, **reply}))
            return None
        answers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "register": self._directory.register,
            "tell": self._directory.tell,
            "goodbye": self._directory.goodbye,
        }
        return answers[op](header)

    def _follow_table(self, table: Mapping[str, Any]) -> None:
        """Notes where partitions are served, and who has gone."""
        for client, entry in table["clients"].items():
            if entry["gone"]:
                self.gone[client] = entry["incarnation"]
            else:
                self.gone.pop(client, None)
        if table["finished"]:
            self._say_farewell(table)
        for entry in table["servers"].values():
            for part in entry["parts"]:
                if part not in self._parts:
                    self._note_endpoint(part, endpoint_of(entry, self._server_key))
        self._sessions.start()
        self._hosting.grant_wishes()

    def _note_endpoint(self, part: int, endpoint: Endpoint) -> None:
        if self._endpoints.get(part) == endpoint:
            return
        self._endpoints[part] = endpoint
        self._sessions.relocate(part, endpoint)
        self._hosting.relocate(part, endpoint)

    def _say_farewell(self, table: Mapping[str, Any]) -> None:
        """All clients have gone. Server 0 stays until the others have heard it."""
        now = time.monotonic()
        if self._finished_at is None:
            self._finished_at = now
            _log.info("clients-gone", "all clients have gone: ending")
        is_last = self._directory is None or len(table["servers"]) <= 1
        self.finished = is_last or now - self._finished_at > _FAREWELL

    # This server -------------------------------------------------------------------------------

    def _statistics(
        self, header: Mapping[str, Any], arrays: list[Array], asker: Asker
    ) -> dict[str, Any]:
        return {"statistics": self._counters.snapshot()}

    def _ping(self, header: Mapping[str, Any], arrays: list[Array], asker: Asker) -> dict[str, Any]:
        return {"rank": self._rank}

    def close(self) -> None:
        """Ends the sessions and closes the sockets."""
        self._hosting.close()
        self._sessions.close()
        super().close()
        os.close(self._wake)


def _has_ended(line: ControlLine) -> bool:
    """Reads what the other end of the line says; whether it has closed it."""
    with contextlib.suppress(EOFError):
        while line.receive() is not None:
            pass
        return False
    return True
