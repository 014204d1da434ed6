"""The partition server: a process that answers requests of other trainers' samplers for one part.

`partition_handler` checks requests and makes replies. Sockets: `ipc://` in a folder that only the
owner can enter, for trainers of this machine; `tcp://` with CURVE (only the job's key is admitted)
for those of other machines. Imports no torch.

The server takes at most two requests per thread from ZeroMQ. The others stay in a queue for each
peer, and ZeroMQ takes one request of each peer in turn: a peer with many requests delays mostly
itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import zmq

from khop.channel.control import ControlLine, Op
from khop.channel.message import pack
from khop.distributed.processes.child import parent_has_gone, start_up
from khop.distributed.processes.socket_files import remove_socket
from khop.distributed.rpc.limits import DEFAULT, ENVELOPE_BYTES, Limits, RateLimiter, SendBacklog
from khop.distributed.rpc.listener import ConnectionLimiter, Listener, raise_descriptor_limit
from khop.distributed.rpc.partition_handler import FrameHandler, RequestHandler, refusal
from khop.distributed.rpc.protocol import describe_error
from khop.errors import ProtocolError
from khop.storage.folder import PartitionFolder
from khop.storage.part import Part

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

_WORKERS = "inproc://workers"
# Peers that a goodbye is sent to, and milliseconds that sending it may take.
_MAX_PEERS = 4096
_GOODBYE_MS = 300


class _Admitted:
    """Set of admitted public keys, for zmq's authenticator."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = {key.encode() for key in keys}

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client with this public key, in Z85, may connect."""
        del domain
        return key in self._keys


class PartitionServer:
    """Server that binds sockets and answers requests until its control line closes.

    Args:
        handler: makes the replies.
        ipc_path: path of the socket for this machine. If None, there is no such socket.
        tcp_host: address to listen at for other machines. If None, there is no such socket.
        curve: {'public', 'secret', 'clients': [..]} keys in Z85 text: its own pair, and the public
            keys that it admits. If None, CURVE is not used (insecure).
        num_threads: threads that answer requests.
        tcp_port: the TCP port. If None or 0, any free port.
        limits: bounds for each peer.

    Raises:
        zmq.ZMQError: an address cannot be bound.
    """

    def __init__(
        self,
        handler: FrameHandler,
        ipc_path: str | None,
        tcp_host: str | None,
        curve: Mapping[str, Any] | None,
        num_threads: int = 1,
        tcp_port: int | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._rates = RateLimiter(limits.rate, limits.burst)
        self._backlog = SendBacklog()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._fronts: list[zmq.Socket[bytes]] = []
        self._back: zmq.Socket[bytes] | None = None
        # Peers that have sent requests, as (front, name), the most recent last.
        self._peers: dict[tuple[int, bytes], None] = {}
        self._linger_ms = 0
        self.addresses: dict[str, str] = {}
        self._listener: Listener | None = None
        if ipc_path is not None:
            front = self._router()
            # Only the owner can enter the folder. If it is opened to others, ZeroMQ still admits
            # only this user and root, where the system has SO_PEERCRED (so on Linux).
            with contextlib.suppress(zmq.ZMQError):
                for user in {os.geteuid(), 0}:
                    front.setsockopt(zmq.IPC_FILTER_UID, user)
            front.bind(f"ipc://{ipc_path}")
            self.addresses["ipc"] = f"ipc://{ipc_path}"
        if tcp_host is not None:
            front = self._router()
            if curve is not None:
                self._secure(front, curve)
            try:
                self._listener = Listener(tcp_host, tcp_port or 0, limits.backlog)
                self.connections = ConnectionLimiter(self._context, front, self._listener, limits)
                self.addresses["tcp"] = self._listener.bind(front)
            except zmq.ZMQError:
                PartitionServer.close(self)  # not self.close(): a subclass is not set up yet
                raise
        self._at_work = 0
        self._max_at_work = 2 * num_threads
        if num_threads > 1:
            self._back = self._context.socket(zmq.DEALER)
            self._back.bind(_WORKERS)
            for _ in range(num_threads):
                threading.Thread(target=self._work, daemon=True).start()

    def _router(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.sndhwm = self._limits.unread
        # Not bounded: a peer that disconnects while its queue is full ends the whole process at the
        # next heartbeat (libzmq 4.3.5: "Assertion failed: !_io_error", stream_engine_base.cpp).
        socket.rcvhwm = 0
        socket.setsockopt(zmq.MAXMSGSIZE, ENVELOPE_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, self._limits.handshake_ms)
        socket.setsockopt(zmq.BACKLOG, self._limits.backlog)  # of the one at `ipc://`
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
        self._fronts.append(socket)
        return socket

    def _secure(self, socket: zmq.Socket[bytes], curve: Mapping[str, Any]) -> None:
        # Imported here: it imports asyncio, a fifth of the time that a server takes to start.
        from zmq.auth.thread import ThreadAuthenticator

        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        # Servers use the same pair to connect to each other.
        admitted = _Admitted([*curve["clients"], curve["public"]])
        self._authenticator.configure_curve_callback("*", admitted)
        socket.curve_server = True
        socket.curve_publickey = curve["public"].encode()
        socket.curve_secretkey = curve["secret"].encode()

    def serve(self, line: ControlLine) -> None:
        """Answer requests until the control line closes."""
        poller = zmq.Poller()
        if self._back is not None:
            poller.register(self._back, zmq.POLLIN)
        poller.register(line.fileno(), zmq.POLLIN)
        while True:
            for front in self._fronts:
                poller.register(front, zmq.POLLIN if self._at_work < self._max_at_work else 0)
            for ready, _ in poller.poll():
                if ready == line.fileno():
                    with contextlib.suppress(EOFError):
                        while line.receive() is not None:
                            pass
                        continue
                    return
                if ready is self._back:
                    self._at_work -= 1
                    index, peer, *reply = self._back.recv_multipart(copy=False)
                    self._backlog.send(self._fronts[index.bytes[0]], peer.bytes, reply)
                else:
                    self._take(ready)

    def _take(self, front: zmq.Socket[bytes]) -> None:
        peer, *frames = front.recv_multipart(copy=False)
        request = [frame.buffer for frame in frames]
        index = self._fronts.index(front)
        self._note_peer(index, peer.bytes)
        why = self._why_not(peer.bytes)
        if why is not None:
            self._backlog.send(front, peer.bytes, refusal(request, ProtocolError(why)))
        elif self._back is None:
            self._backlog.send(front, peer.bytes, self._handler(request))
        else:
            self._at_work += 1
            self._back.send_multipart([bytes([index]), peer, *frames], copy=False)

    def _note_peer(self, front: int, name: bytes) -> None:
        self._peers.pop((front, name), None)
        self._peers[front, name] = None
        if len(self._peers) > _MAX_PEERS:
            del self._peers[next(iter(self._peers))]

    def say_goodbye(self, why: str) -> None:
        """Notify all known peers that this server ends for good. Call before `close`.

        Args:
            why: the reason.
        """
        for front, name in [] if self._context.closed else list(self._peers):
            with contextlib.suppress(zmq.ZMQError):
                frames = [name, *pack({"id": None, "goodbye": why}, [])]
                self._fronts[front].send_multipart(frames, zmq.DONTWAIT)
        self._linger_ms = _GOODBYE_MS

    def _why_not(
        self, peer: bytes, user: bytes | None = None, is_limited: bool = True
    ) -> str | None:
        """Return the reason to refuse a request; None if it is admitted.

        Args:
            peer: its connection.
            user: user for whom the rate is counted. If None, it is counted for the connection.
            is_limited: True if the rate of requests is limited.
        """
        if is_limited and not self._rates.admit(user or peer):
            return (
                f"a peer asks for more than {self._limits.rate:.0f} answers a second: it must wait "
                "for answers before it asks again"
            )
        unread = self._backlog.of(peer)
        if unread > self._limits.unread_bytes:
            return f"a peer has not read {unread} bytes of replies: it must read before it asks"
        return None

    def _work(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.connect(_WORKERS)
        with contextlib.suppress(zmq.ContextTerminated):
            while True:
                index, peer, *frames = socket.recv_multipart(copy=False)
                reply = self._handler([frame.buffer for frame in frames])
                socket.send_multipart([index, peer, *reply], copy=False)
        socket.close(0)

    def close(self) -> None:
        """Close the sockets; harmless if called again."""
        if self._context.closed:
            return
        if self._authenticator is not None:
            self._authenticator.stop()
        for socket in self._fronts:
            socket.close(self._linger_ms)
        if self._back is not None:
            self._back.close(0)
        self._context.term()
        if self._listener is not None:
            self._listener.close()


def run_server(make_handler: Callable[[Mapping[str, Any]], FrameHandler]) -> None:
    """Run a server for the trainer at the other end of the control line.

    Args:
        make_handler: makes the request handler from the trainer's configuration.
    """
    line, message = start_up()
    raise_descriptor_limit()
    config = message.json()
    if config["ipc_path"] is not None:
        atexit.register(remove_socket, config["ipc_path"])
    try:
        server = _make_server(make_handler(config), config)
    except Exception as error:
        line.send_json(Op.ERROR, describe_error(error))
        sys.exit(1)
    # Twice: when the trainer is terminated the line closes and a signal comes. The signal may
    # interrupt the first call, but it comes only once.
    for _ in range(2):
        atexit.register(_end, server, line, config["parent"])
    with contextlib.suppress(ConnectionError):  # the trainer is gone
        line.send_json(Op.READY, {"addresses": server.addresses})
        server.serve(line)


def _end(server: PartitionServer, line: ControlLine, parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if parent_has_gone(line, parent):  # else this server is started again
        server.say_goodbye("the trainer that kept it has ended, or keeps it no more")
    server.close()


def _make_server(handler: FrameHandler, config: Mapping[str, Any]) -> PartitionServer:
    """Make a server at its predecessor's port, or at another if that is in use now."""
    common = handler, config["ipc_path"], config["tcp_host"], config["curve"], config["num_threads"]
    if config.get("tcp_port") is not None:
        with contextlib.suppress(zmq.ZMQError):
            return PartitionServer(*common, tcp_port=config["tcp_port"])
    return PartitionServer(*common)


def main() -> None:
    """Serve a partition."""
    run_server(lambda c: RequestHandler(Part(PartitionFolder(c["root"]), c["part"])))
