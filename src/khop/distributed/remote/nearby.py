"""Samplers for clients of the server's own machine, which write straight into trainers' rings.

A client on the server's machine needs no stream. It hands its ring and one end of a control line
to the server, over a Unix socket in the folder that only the server's owner can enter; the server
starts a sampler with them. From then on trainer and sampler deal with each other as in worker mode,
and not a byte is copied more. The connection says who still lives: when the client closes it, or
dies, the server ends the sampler; when the sampler ends, the server says how.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from khop import log
from khop.channel.control import ControlLine, Message, Op
from khop.distributed.child import ChildProcess
from khop.distributed.fields import integer, number, text
from khop.distributed.remote.checks import SessionChecks, check_pipeline_size
from khop.distributed.remote.sessions import Host, tell_endpoint
from khop.distributed.remote.statistics import SessionState
from khop.distributed.transport import Endpoint
from khop.distributed.wire import describe_error
from khop.errors import PartitionUnavailableError, ProtocolError

_log = log.get(__name__)
_WORKER = "khop.distributed.worker"
_CREDENTIALS = struct.Struct("3i")  # process, user, group


@dataclass(eq=False)
class _Lent:
    """A sampler that works for a client.

    Attributes:
        trainer: pidfd of the client's process, whose forks may still hold its connection when it
            has gone; None: the system does not tell who it is.
    """

    name: str
    client: str
    line: ControlLine
    process: ChildProcess
    trainer: int | None


class Nearby:
    """Starts samplers for clients of this machine.

    Args:
        path: of the Unix socket.
        checks: raises what is wrong with a pipeline.
        host: what sessions have of their server.
        has_room: whether the server may have so many samplers more.
    """

    def __init__(
        self, path: str, checks: SessionChecks, host: Host, has_room: Callable[[int], bool]
    ) -> None:
        self._checks = checks
        self._host = host
        self._has_room = has_room
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(256)
        self._listener.setblocking(False)
        self.path = path
        self._arriving: dict[int, tuple[ControlLine, int]] = {}
        self._lent: list[_Lent] = []

    def sources(self) -> dict[int, Callable[[], None]]:
        """Descriptors to poll -> what to call when one is readable."""
        found: dict[int, Callable[[], None]] = {self._listener.fileno(): self._accept}
        for line, pid in self._arriving.values():
            found[line.fileno()] = partial(self._hear, line, pid)
        for lent in self._lent:
            found[lent.line.fileno()] = partial(self._hear_client, lent)
            if lent.trainer is not None:
                found[lent.trainer] = partial(self._end, lent)
            found[lent.process.line.fileno()] = partial(self._hear_sampler, lent)
        return found

    @property
    def count(self) -> int:
        """Samplers that work for clients."""
        return len(self._lent)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            line = ControlLine(connection)
            self._arriving[line.fileno()] = line, _CREDENTIALS.unpack(asked)[0]

    def _hear(self, line: ControlLine, pid: int) -> None:
        """A client that has connected says what it wants."""
        try:
            message = line.receive()
            if message is None:
                return
        except (EOFError, ProtocolError):
            message = None
        del self._arriving[line.fileno()]
        if message is None:
            line.close()
            return
        try:
            lent = self._begin(line, pid, message)
        except Exception as error:
            with contextlib.suppress(ConnectionError):
                line.send_json(Op.ERROR, describe_error(error))
            line.close()
        else:
            self._lent.append(lent)
            _log.info(
                "sampler-lent",
                f"sampler of {lent.name} works for {lent.client} of this machine",
                session=lent.name,
                pid=lent.process.pid,
            )
            with contextlib.suppress(ConnectionError):  # noticed when its line is read
                line.send_json(Op.READY, {"pid": lent.process.pid})
        finally:
            for descriptor in message.descriptors:
                os.close(descriptor)

    def _begin(self, line: ControlLine, pid: int, message: Message) -> _Lent:
        content = message.json()
        num_shared = integer(content, "num_shared", 0, 1)
        if message.op is not Op.CONFIG or len(message.descriptors) != 2 + num_shared:
            raise ProtocolError("a client hands over its line, its ring, and weights if it has any")
        if not self._has_room(1):
            raise MemoryError("this graph server has as many sampler processes as it may have")
        place = integer(content, "number", 0, 1 << 20)
        part = self._host.parts[place % len(self._host.parts)]
        missing = sorted(set(range(self._host.num_parts)) - set(self._host.endpoints) - {part})
        if missing:
            raise PartitionUnavailableError(f"no graph server has registered partitions {missing}")
        pipeline = check_pipeline_size(content)
        self._checks.pipeline(pipeline)
        device = content.get("device")
        name, client = f"{text(content, 'loader', 200)}/{place}", text(content, "client", 256)
        others = {p: asdict(e) for p, e in self._host.endpoints.items() if p != part}
        labels = [] if self._host.labels is None else [self._host.labels]
        config = {
            **self._host.sampler,
            "part": part,
            "pipeline": pipeline,
            "endpoints": others if self._host.num_parts > 1 else {},
            "timeout": number(content, "timeout", 0.1, 1e6),
            "concurrency": integer(content, "concurrency", 1, 256),
            "device": None if device is None else text(content, "device", 64),
            "slab": None,
            "number": place,
            "has_arrays": bool(labels or num_shared),
            "num_shared": len(labels) + num_shared,
            "line_is_given": True,
        }
        ours, ring, *shared = message.descriptors
        process = ChildProcess(_WORKER, config, [ours, ring, *labels, *shared])
        return _Lent(name, client, line, process, _watched(pid))

    def _hear_client(self, lent: _Lent) -> None:
        if lent not in self._lent:  # ended by what was heard just before
            return
        try:
            while lent.line.receive() is not None:
                pass
        except (EOFError, ProtocolError):
            self._end(lent)

    def _hear_sampler(self, lent: _Lent) -> None:
        if lent not in self._lent:
            return
        try:
            while lent.process.line.receive() is not None:
                pass
        except EOFError:
            status = lent.process.exit_status()
            _log.info("sampler-ended", f"sampler of {lent.name} {status}", session=lent.name)
            with contextlib.suppress(ConnectionError):
                lent.line.send_json(Op.ERROR, {"status": status})
            self._end(lent)

    def _end(self, lent: _Lent) -> None:
        if lent not in self._lent:
            return
        self._lent.remove(lent)
        if lent.trainer is not None:
            os.close(lent.trainer)
        lent.line.close()
        lent.process.line.close()
        threading.Thread(target=lent.process.close, name="khop-end").start()

    def relocate(self, part: int, endpoint: Endpoint) -> None:
        """Tells samplers where a partition is served from now on."""
        for lent in self._lent:
            tell_endpoint(lent.process.line, part, endpoint)

    def states(self) -> list[SessionState]:
        """What clients of this machine have here, for statistics."""
        return [
            {
                "session": lent.name,
                "loader": lent.name,
                "client": lent.client,
                "direct": True,
                "samplers": [
                    {
                        "pid": lent.process.pid,
                        "outstanding": 0,
                        "made": 0,
                        "bytes": 0,
                    }
                ],
                "restarts": 0,
                "buffered_bytes": 0,
                "unsent_chunks": 0,
                "ring_bytes": 0,
            }
            for lent in list(self._lent)
        ]

    def close(self) -> None:
        """Ends the samplers and the socket."""
        for lent in list(self._lent):
            self._end(lent)
        for line, _ in self._arriving.values():
            line.close()
        self._listener.close()
        with contextlib.suppress(OSError):
            Path(self.path).unlink()


def _watched(pid: int) -> int | None:
    """A descriptor that is readable when the process has ended; None if that cannot be known."""
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid) if pid > 0 else None
    return None


def wanted_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a client says of the sampler that it wants, of a receiver's configuration."""
    session = content["session"]
    return {
        "loader": session["loader"],
        "client": session["client"],
        "pipeline": session["pipeline"],
        "concurrency": session["concurrency"],
        "timeout": content["timeout"],
        "number": content["number"],
        "device": content["device"],
        "num_shared": int(content["has_arrays"]),
    }
