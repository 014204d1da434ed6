"""The partition server: a process that answers requests of other trainers' samplers for one part.

`partition_handler` checks requests and makes replies. `server_sockets` has the sockets, which admit
only the job's key. Imports no torch.

Requests are processed in slices. Connections take turns, not users, since all processes of a job
have the same key. A peer with many or expensive requests delays mostly itself (`request_threads`).
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from khop.channel.control import ControlLine, Op
from khop.channel.message import pack
from khop.channel.pool import reuse_heaps
from khop.data.direct_rows import DiskOptions
from khop.distributed.processes.child import parent_has_gone, start_up
from khop.distributed.processes.socket_files import remove_socket
from khop.distributed.rpc.frame_handler import FrameHandler, refusal
from khop.distributed.rpc.identity import CurveKeys, source_of
from khop.distributed.rpc.limits import DEFAULT, Limits
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import describe_error, peek_op
from khop.distributed.rpc.request_threads import RequestThreads
from khop.distributed.rpc.server_sockets import ServerSockets
from khop.distributed.rpc.state_handler import WriterThread, users_requests
from khop.distributed.rpc.tcp_sockets import raise_descriptor_limit
from khop.distributed.rpc.transport import Transport, own_transport
from khop.errors import ProtocolError
from khop.storage.folder import PartitionFolder
from khop.storage.named_stores import NamedStore
from khop.storage.part import Part

# Messages read from a socket before other work of the loop.
_READ_AT_ONCE = 64
# Seconds for which the loop itself processes requests before it looks for more.
_WORK_SECONDS = 0.005
# Milliseconds after which a signal is seen that came just before the wait for messages.
_IDLE_MS = 1000
# Peers that a goodbye is sent to, and milliseconds that sending it may take.
_MAX_PEERS = 4096
_GOODBYE_MS = 300


class PartitionServer:
    """Server that answers requests until its control line closes.

    Args:
        handler: makes the replies.
        ipc_path, tcp_host, curve, tcp_port, limits, transport: sockets, as for `ServerSockets`.
        num_threads: number of threads that process requests. If 1, the loop processes them itself.

    Raises:
        zmq.ZMQError: an address cannot be bound.
    """

    def __init__(
        self,
        handler: FrameHandler,
        ipc_path: str | None,
        tcp_host: str | None,
        curve: CurveKeys | None,
        num_threads: int = 1,
        tcp_port: int | None = None,
        limits: Limits = DEFAULT,
        transport: Transport | None = None,
    ) -> None:
        self.sockets = ServerSockets(ipc_path, tcp_host, curve, tcp_port, limits, transport)
        self.addresses = self.sockets.addresses
        in_threads = num_threads if num_threads > 1 else 0
        self._threads = RequestThreads(handler, in_threads, limits, self.sockets.backlog.of)
        # Requests that write or read state have a thread of their own.
        self._writer = None
        if isinstance(handler, RequestHandler) and handler.state is not None:
            self._writer = WriterThread(handler.state, self.sockets)
        # Peers that have sent requests, as (front, name), the most recent last.
        self._peers: dict[tuple[int, bytes], None] = {}
        self._linger_ms = 0
        self._is_ending = False

    def serve(self, line: ControlLine) -> None:
        """Answer requests until the trainer closes the control line, or `end` is called."""
        poller, threads = zmq.Poller(), self._threads
        fronts = {
            front if isinstance(front, zmq.Socket) else front.fileno(): index
            for index, front in enumerate(self.sockets.fronts)
        }
        ready_threads = [t.descriptor for t in (threads, self._writer) if t is not None]
        for source in (*ready_threads, line.fileno(), *fronts):
            poller.register(source, zmq.POLLIN)
        while True:
            for ready, _ in poller.poll(0 if threads.has_work else _IDLE_MS):
                if ready == line.fileno():
                    with contextlib.suppress(EOFError):
                        while line.receive() is not None:
                            pass
                        continue
                    return
                if ready not in ready_threads:
                    for _ in range(_READ_AT_ONCE):
                        message = self.sockets.receive(fronts[ready])
                        if message is None:
                            break
                        self._queue(fronts[ready], *message)
            end = time.monotonic() + _WORK_SECONDS
            while threads.has_work and time.monotonic() < end and not self._is_ending:
                threads.work()
                self._send_replies()
            if self._is_ending:
                return
            self._send_replies()

    def end(self, *_signal: object) -> None:
        """Have `serve` return after the message that is being sent. Called at SIGTERM.

        An exception instead could interrupt `serve` between two frames of a message. The goodbye,
        which is sent next, would then become part of this message.
        """
        self._is_ending = True
        self._threads.wake()

    def _send_replies(self) -> None:
        for threads in (self._threads, self._writer):
            for reply in [] if threads is None else threads.replies():
                self.sockets.send(*reply)

    def _queue(self, front: int, name: zmq.Frame, *frames: zmq.Frame) -> None:
        peer = name.bytes
        self._peers.pop((front, peer), None)
        self._peers[front, peer] = None
        if len(self._peers) > _MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        why = self.sockets.why_not(peer)
        if why is None and not self._put(front, name, frames):
            why = "too many requests of a peer wait: it must wait for answers before it asks again"
        if why is not None:
            request = [frame.buffer for frame in frames]
            self.sockets.send(front, peer, refusal(request, ProtocolError(why)))

    def _put(self, front: int, name: zmq.Frame, frames: Sequence[zmq.Frame]) -> bool:
        peer, writer = name.bytes, self._writer
        if writer is not None and frames and writer.handles(peek_op(frames[0].buffer)):
            source = source_of(front, name, frames[0], self.sockets.curve)
            return writer.put(source.user, front, peer, frames, source=source)
        return self._threads.put(f"{front} {peer.hex()}", front, peer, frames)

    def say_goodbye(self, why: str) -> None:
        """Send all known peers the reason why this server ends for good. Call before `close`."""
        for front, name in [] if self.sockets.context.closed else list(self._peers):
            self.sockets.send_now(front, name, pack({"id": None, "goodbye": why}, []))
        self._linger_ms = _GOODBYE_MS

    def close(self) -> None:
        """Close the sockets. A second call does nothing."""
        if self._writer is not None:
            self._writer.close()
        self._threads.close()
        self.sockets.close(self._linger_ms)


def run_server(make_handler: Callable[[Mapping[str, Any]], FrameHandler]) -> None:
    """Run a server process: read the configuration from the control line, and serve.

    `make_handler` makes the handler of requests from the configuration.
    """
    line, message = start_up()
    raise_descriptor_limit()
    reuse_heaps()
    config = message.json()
    if config["ipc_path"] is not None:
        atexit.register(remove_socket, config["ipc_path"])
    try:
        server = _make_server(make_handler(config), config)
    except Exception as error:
        line.send_json(Op.ERROR, describe_error(error))
        sys.exit(1)
    atexit.register(_end, server, line, config["parent"])
    signal.signal(signal.SIGTERM, server.end)
    with contextlib.suppress(ConnectionError):  # the trainer is gone
        line.send_json(Op.READY, {"addresses": server.addresses})
        server.serve(line)


def _end(server: PartitionServer, line: ControlLine, parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if parent_has_gone(line, parent):  # else this server is started again
        server.say_goodbye("the trainer that kept it has ended, or keeps it no more")
    server.close()


def _make_server(handler: FrameHandler, config: Mapping[str, Any]) -> PartitionServer:
    """Make a server at the port of its predecessor, or at any port if it is in use."""
    common = handler, config["ipc_path"], config["tcp_host"], config["curve"], config["num_threads"]
    transport = own_transport()
    if config.get("tcp_port") is not None:
        with contextlib.suppress(zmq.ZMQError):
            return PartitionServer(*common, tcp_port=config["tcp_port"], transport=transport)
    return PartitionServer(*common, transport=transport)


def main() -> None:
    run_server(_make_handler)


def _make_handler(config: Mapping[str, Any]) -> RequestHandler:
    stores = map(NamedStore.from_json, config.get("stores", ()))
    disk = DiskOptions.from_json(config.get("disk"))
    part = Part(PartitionFolder(config["root"]).attach(stores, disk), config["part"])
    return RequestHandler(part, types=users_requests(config.get("requests", ()), part))
