"""The partition server: a process that answers requests of other trainers' samplers for one part.

`partition_handler` checks requests and makes replies; `server_sockets` has the sockets, at which
only the job's key is admitted. Imports no torch.

The server takes at most two requests per thread from ZeroMQ. The others stay in a queue for each
peer, and ZeroMQ takes one request of each peer in turn: a peer with many requests delays mostly
itself.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from khop.channel.control import ControlLine, Op
from khop.channel.message import pack
from khop.distributed.processes.child import parent_has_gone, start_up
from khop.distributed.processes.socket_files import remove_socket
from khop.distributed.rpc.limits import DEFAULT, Limits
from khop.distributed.rpc.listener import raise_descriptor_limit
from khop.distributed.rpc.partition_handler import FrameHandler, RequestHandler, refusal
from khop.distributed.rpc.protocol import describe_error
from khop.distributed.rpc.server_sockets import HandlerThreads, ServerSockets
from khop.errors import ProtocolError
from khop.storage.folder import PartitionFolder
from khop.storage.part import Part

# Peers that a goodbye is sent to, and milliseconds that sending it may take.
_MAX_PEERS = 4096
_GOODBYE_MS = 300


class PartitionServer:
    """Server that answers requests until its control line closes.

    Args:
        handler: makes the replies.
        ipc_path: see `ServerSockets`, as of `tcp_host`, `curve`, `tcp_port` and `limits`.
        tcp_host: see there.
        curve: see there.
        num_threads: threads that answer requests. If 1, the loop itself answers them.
        tcp_port: see there.
        limits: see there.

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
        self.sockets = ServerSockets(ipc_path, tcp_host, curve, tcp_port, limits)
        self.addresses = self.sockets.addresses
        self._threads: HandlerThreads | None = None
        if num_threads > 1:
            self._threads = HandlerThreads(self.sockets.context, handler, num_threads)
        # Peers that have sent requests, as (front, name), the most recent last.
        self._peers: dict[tuple[int, bytes], None] = {}
        self._linger_ms = 0

    def serve(self, line: ControlLine) -> None:
        """Answer requests until the control line closes."""
        poller, threads = zmq.Poller(), self._threads
        if threads is not None:
            poller.register(threads.socket, zmq.POLLIN)
        poller.register(line.fileno(), zmq.POLLIN)
        while True:
            has_room = threads is None or threads.has_room
            self.sockets.note_reading(has_room)
            for front in self.sockets.fronts:
                poller.register(front, zmq.POLLIN if has_room else 0)
            for ready, _ in poller.poll():
                if ready == line.fileno():
                    with contextlib.suppress(EOFError):
                        while line.receive() is not None:
                            pass
                        continue
                    return
                if threads is not None and ready is threads.socket:
                    self.sockets.send(*threads.receive())
                else:
                    self._take(self.sockets.fronts.index(ready))

    def _take(self, front: int) -> None:
        message = self.sockets.receive(front)
        if message is None:
            return
        name, *frames = message
        request, peer = [frame.buffer for frame in frames], name.bytes
        self._note_peer(front, peer)
        why = self.sockets.why_not(peer)
        if why is not None:
            self.sockets.send(front, peer, refusal(request, ProtocolError(why)))
        elif self._threads is None:
            self.sockets.send(front, peer, self._handler(request))
        else:
            self._threads.submit([bytes([front]), name, *frames])

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
        for front, name in [] if self.sockets.context.closed else list(self._peers):
            with contextlib.suppress(zmq.ZMQError):
                frames = [name, *pack({"id": None, "goodbye": why}, [])]
                self.sockets.fronts[front].send_multipart(frames, zmq.DONTWAIT)
        self._linger_ms = _GOODBYE_MS

    def close(self) -> None:
        """Close the sockets; harmless if called again."""
        if self._threads is not None:
            self._threads.close()
        self.sockets.close(self._linger_ms)


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
