"""A sampler process of a graph server of this machine, that works for a trainer as its own would.

See `khop.distributed.remote.nearby`. If the server dies, so do its samplers; whoever starts them
again waits here until the directory knows the server's successor.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from khop.channel.control import ControlLine, Message, Op, socket_pair
from khop.distributed.child import ChildProcess, wait_for_message
from khop.distributed.hosts import host_identity
from khop.distributed.wire import rebuild_error
from khop.errors import PartitionUnavailableError, RendezvousError

_GRACE_SECONDS = 2.0


def nearby_socket(entry: Mapping[str, Any] | None) -> str | None:
    """Path of the socket where a server lends samplers to this machine; None: it does not.

    Args:
        entry: the server's, in the directory.
    """
    if entry is None or entry.get("host") != host_identity():
        return None
    path: str | None = entry["addresses"].get("nearby")
    return path if path is not None and os.access(path, os.W_OK) else None


class BorrowedProcess(ChildProcess):
    """A server's sampler process.

    Args:
        rank: of the server.
        wait: `wait_for_table` of a `RemoteClient`, but for what is waited for.
        config: what the sampler shall do: `nearby.wanted_of`.
        descriptors: the ring, and weights of negatives if there are any.
        timeout: seconds to wait for the server.

    Raises:
        PartitionUnavailableError: there is no such server on this machine in time.
    """

    def __init__(
        self,
        rank: int,
        wait: Callable[..., Mapping[str, Any]],
        config: Mapping[str, Any],
        descriptors: Sequence[int],
        timeout: float,
    ) -> None:
        self.module = "khop.distributed.worker"
        self._rank = rank
        began, tried, reason = time.monotonic(), set[str](), "has not registered here"
        while True:
            left = began + timeout - time.monotonic()
            try:
                table = wait(lambda table: _fresh(table, rank, tried), timeout=max(left, 0.0))
            except RendezvousError:
                seconds = time.monotonic() - began
                raise PartitionUnavailableError(
                    f"graph server {rank} lends no sampler in {seconds:.1f} s: it {reason}"
                ) from None
            entry = table["servers"][str(rank)]
            path = nearby_socket(entry)
            assert path is not None
            try:
                self._borrow(path, config, descriptors)
                return
            except OSError as error:  # it has died: its successor registers anew
                tried.add(entry["incarnation"])
                reason = f"cannot be reached at {path}: {error}"

    def _borrow(self, path: str, config: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Hands everything over and waits for the sampler's process id."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lease = ControlLine(connection)
        try:
            connection.setblocking(True)
            connection.settimeout(_GRACE_SECONDS)
            connection.connect(path)
            connection.setblocking(False)
            ours, theirs = socket_pair()
            with theirs:
                lease.send_json(Op.CONFIG, dict(config), [theirs.fileno(), *descriptors])
            answer = wait_for_message(lease)
            if answer is None:
                ours.close()
                raise ConnectionError("it ended")
            if answer.op is Op.ERROR:
                ours.close()
                raise rebuild_error(answer.json(), f"graph server {self._rank}")
        except BaseException:
            lease.close()
            raise
        self._lease = lease
        self._number: int = answer.json()["pid"]
        self.line = ControlLine(ours)
        self._given_back = weakref.finalize(self, _give_back, lease, self.line)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._number

    def exit_status(self) -> str:
        """How the process ended, in words, as its server says."""
        poller = select.poll()
        poller.register(self._lease.fileno(), select.POLLIN)
        message: Message | None = None
        with contextlib.suppress(EOFError, OSError):
            poller.poll(_GRACE_SECONDS * 1000)
            message = self._lease.receive()
        if message is None:
            self.ended_with_server = True
            return "ended with its graph server"
        return str(message.json().get("status"))

    def log_tail(self) -> str:
        """What it printed last is in its server's log."""
        return ""

    def last_task(self) -> tuple[int, int] | None:
        """Its server does not say what it worked on."""
        return None

    def close(self) -> None:
        """Gives the process back: its server ends it. Harmless if called again."""
        self._given_back()


def _fresh(table: Mapping[str, Any], rank: int, tried: set[str]) -> bool:
    """Whether the table has the server, here, and not the one that was tried."""
    entry = table["servers"].get(str(rank))
    return (
        entry is not None and entry["incarnation"] not in tried and nearby_socket(entry) is not None
    )


def _give_back(lease: ControlLine, line: ControlLine) -> None:
    line.close()
    lease.close()
