"""HTTP server for a page of metrics, in a thread of a trainer or a graph server.

One thread serves all connections: it waits until a socket is ready, reads requests, writes replies,
and closes connections whose time is up. So a client that is slow, silent or hostile takes one of
`MAX_CONNECTIONS`, and never a thread. If all are taken, a new connection replaces one that waits.
The thread takes a bounded share of a processor (`ProcessorBudget`), because it shares the
interpreter with the trainer. The only page is /metrics. Every connection gets one answer and is
closed.

If the server listens at a loopback address, the Host header of a request must name one, too.
Otherwise, a web page in a local browser could read the metrics by a host name that its author
points at this machine (DNS rebinding).
"""

from __future__ import annotations

import re
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from khop import log
from khop.loopback import is_loopback
from khop.metrics.text import CONTENT_TYPE

MAX_REQUEST = 8192
"""Longest request, in bytes."""

MAX_CONNECTIONS = 32
"""Most connections at a time. A further one replaces one that waits."""

CONNECTION_SECONDS = 5.0
"""Time limit of a connection, from its acceptance to its end."""

PROCESSOR_SHARE = 0.2
"""Largest share of a processor that the thread takes in the long run."""

PROCESSOR_SECONDS = 0.5
"""Most seconds of a processor that the thread takes without a pause."""

# A reply that is being written is not ended for a new connection before this time.
_WRITE_SECONDS = 1.0
_HOST = re.compile(rb"\r\n[Hh][Oo][Ss][Tt]:[ \t]*([^\r\n]*)")
_log = log.get(__name__)
_PLAIN = "text/plain; charset=utf-8"


@dataclass
class _Connection:
    """A client's connection to the page of metrics, and its state. `deadline` is in seconds."""

    socket: socket.socket
    deadline: float
    received: bytes = b""
    unsent: bytes | memoryview = b""
    is_answered: bool = False


class ProcessorBudget:
    """Bound of a thread's processor time: a share in the long run, and some seconds at once.

    Args:
        share: seconds of the processor per second.
        at_once: seconds of the processor that may be used without a pause.
        clock: returns seconds.

    Example:
        >>> budget = ProcessorBudget(0.5, 1.0, clock=lambda: 0.0)
        >>> budget.spend(1.0), budget.spend(0.5)
        (0.0, 1.0)
    """

    def __init__(
        self, share: float, at_once: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._share, self._at_once, self._clock = share, at_once, clock
        self._left, self._since = at_once, clock()

    def spend(self, seconds: float) -> float:
        """Subtract used seconds of processor time from the budget. Return the seconds to pause."""
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._since) * self._share) - seconds
        self._since = now
        return max(0.0, -self._left / self._share)


class MetricsServer:
    """HTTP server that answers GET /metrics until it is closed. A context manager.

    Args:
        port: port to listen on. 0 takes any free port.
        collect: returns the page. The server's thread calls it, once per request.
        host: address to listen at.
        insecure: allow an address that other machines reach. Nothing is encrypted. Anyone can then
            read counts, and names of clients and loaders.

    Attributes:
        host: address that the server listens at.
        port: port that the server listens on.

    Raises:
        ValueError: an address beyond this machine without `insecure`.
        OSError: the address cannot be bound.

    Example:
        >>> loader = NeighborLoader(data, [2], batch_size=3)
        >>> with MetricsServer(0, lambda: of_loaders({"train": loader})) as server:
        ...     print(server.host)
        127.0.0.1
    """

    def __init__(
        self, port: int, collect: Callable[[], str], host: str = "127.0.0.1", insecure: bool = False
    ) -> None:
        if not is_loopback(host) and not insecure:
            raise ValueError(
                f"metrics are neither encrypted nor protected, and '{host}' is not of this machine "
                "alone: pass insecure=True if everybody who reaches it may read them"
            )
        self._is_local = is_loopback(host)
        self._collect = collect
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=64)
        self._listener.setblocking(False)
        self.host, self.port = self._listener.getsockname()[:2]
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_accepting = True
        self._accept_again = 0.0
        self._connections: dict[int, _Connection] = {}
        self._thread = threading.Thread(target=self._run, name="khop-metrics", daemon=True)
        self._thread.start()
        _log.info("metrics-served", f"metrics are at {self.url}")

    @property
    def url(self) -> str:
        """URL of the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Close all connections and end the thread. Further calls do nothing."""
        if self._thread.is_alive():
            with suppress(OSError):
                self._wake.send(b"x")
            self._thread.join()
        self._wake.close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self) -> None:
        budget, used = ProcessorBudget(PROCESSOR_SHARE, PROCESSOR_SECONDS), time.thread_time()
        woken = select.poll()  # `select.select` takes no descriptor above 1,023
        woken.register(self._woken, select.POLLIN)
        try:
            while True:
                before, used = used, time.thread_time()
                if pause := budget.spend(used - before):
                    woken.poll(1000 * pause)
                for key, _ in self._selector.select(self._seconds_left()):
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._on_ready(self._connections[key.fd])
                now = time.monotonic()
                for connection in list(self._connections.values()):
                    if connection.deadline <= now:
                        self._end(connection)
                self._accept_or_not()
        finally:
            for connection in list(self._connections.values()):
                self._end(connection)
            self._selector.close()
            self._listener.close()
            self._woken.close()

    def _seconds_left(self) -> float | None:
        """Return the seconds until a connection is overdue or accepting resumes, or None."""
        due = [connection.deadline for connection in self._connections.values()]
        if not self._is_accepting:
            waits = self._accept_again
            if len(due) >= MAX_CONNECTIONS:  # all are being written to
                waits = max(waits, min(due) - CONNECTION_SECONDS + _WRITE_SECONDS)
            due.append(waits)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # the client has gone
            return
        except OSError:  # no descriptor left: the client stays queued, without waking this thread
            self._accept_again = time.monotonic() + 1.0
            return
        accepted.setblocking(False)
        if len(self._connections) == MAX_CONNECTIONS:
            self._end(self._replaceable()[0])
        connection = _Connection(accepted, time.monotonic() + CONNECTION_SECONDS)
        self._connections[accepted.fileno()] = connection
        self._selector.register(accepted, selectors.EVENT_READ)

    def _replaceable(self) -> list[_Connection]:
        """Return the connections that may be ended to make room for a new one, the best first.

        First the idle ones, which wait for a request or have been answered, by age. Then the ones
        whose client does not read its reply.
        """
        connections = sorted(self._connections.values(), key=lambda one: bool(one.unsent))
        until = time.monotonic() + CONNECTION_SECONDS - _WRITE_SECONDS
        return [one for one in connections if not one.unsent or one.deadline < until]

    def _accept_or_not(self) -> None:
        """Stop accepting connections while none is free, or no descriptor is left. Else resume."""
        can_accept = time.monotonic() >= self._accept_again and (
            len(self._connections) < MAX_CONNECTIONS or bool(self._replaceable())
        )
        if can_accept and not self._is_accepting:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._is_accepting and not can_accept:
            self._selector.unregister(self._listener)
        self._is_accepting = can_accept

    def _on_ready(self, connection: _Connection) -> None:
        try:
            if connection.unsent:
                self._write(connection)
            else:
                self._read(connection)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._end(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(MAX_REQUEST)
        if not data:
            self._end(connection)
        elif not connection.is_answered:  # else: read and drop, until the client ends
            connection.received += data
            self._answer(connection)

    def _answer(self, connection: _Connection) -> None:
        head, end, _ = connection.received.partition(b"\r\n\r\n")
        if not end and len(connection.received) <= MAX_REQUEST:
            return  # the request is not complete
        if len(head) > MAX_REQUEST:
            text = f"A request has {MAX_REQUEST} bytes at most.\n"
            connection.unsent = _response("431 Request Header Fields Too Large", _PLAIN, text)
        else:
            connection.unsent = self._reply(head)
        connection.received = b""
        connection.is_answered = True
        self._selector.modify(connection.socket, selectors.EVENT_WRITE)
        self._write(connection)

    def _reply(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if self._is_local and not all(map(_is_local_name, _HOST.findall(head))):
            text = f"These metrics are of this machine alone: ask for {self.url}\n"
            return _response("403 Forbidden", _PLAIN, text)
        if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            return _response("400 Bad Request", _PLAIN, "This is no request of HTTP/1.1.\n")
        method, path = words[0], words[1].partition(b"?")[0]
        if path != b"/metrics":
            return _response("404 Not Found", _PLAIN, "There is only /metrics.\n")
        if method != b"GET":
            text = "There is only GET.\n"
            return _response("405 Method Not Allowed", _PLAIN, text, "Allow: GET\r\n")
        try:
            page = self._collect()
        except Exception as error:
            _log.error("metrics-failed", f"metrics could not be collected: {error!r}")
            text = "Metrics could not be collected; the server's log says why.\n"
            return _response("500 Internal Server Error", _PLAIN, text)
        return _response("200 OK", CONTENT_TYPE, page)

    def _write(self, connection: _Connection) -> None:
        sent = connection.socket.send(connection.unsent)
        connection.unsent = memoryview(connection.unsent)[sent:]
        if connection.unsent:
            return
        # If closed with unread data, the reply could be lost on its way: the client closes.
        connection.socket.shutdown(socket.SHUT_WR)
        self._selector.modify(connection.socket, selectors.EVENT_READ)

    def _end(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        del self._connections[connection.socket.fileno()]
        connection.socket.close()


def serve(
    port: int, collect: Callable[[], str], host: str = "127.0.0.1", insecure: bool = False
) -> MetricsServer:
    """Serve a page of metrics in a new thread, until it is closed or the process ends.

    `collect` returns the page, once per request. `port` 0 takes any free port. `host` must be an
    address of this machine alone, unless `insecure`. Errors are as for `MetricsServer`.

    Example:
        >>> loader = NeighborLoader(data, [2], batch_size=3)
        >>> server = serve(0, lambda: of_loaders({"train": loader}))
        >>> server.close()
    """
    return MetricsServer(port, collect, host, insecure)


def _response(status: str, content_type: str, body: str, further: str = "") -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n"
        f"{further}Connection: close\r\n\r\n"
    )
    return head.encode() + content


def _is_local_name(header: bytes) -> bool:
    """Return True if a Host header names a loopback address, with or without a port."""
    host = header.decode("latin-1").strip()
    return is_loopback(host) or is_loopback(re.sub(r":\d+$", "", host))
