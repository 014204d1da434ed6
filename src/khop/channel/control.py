"""The control line between a trainer and a process that it started.

A socket pair that keeps message boundaries: wakes the receiver, carries file descriptors, and tells
at once when the other side is gone, however it went. Messages are one byte of operation and a
payload; large data goes through memory that is passed along.
"""

from __future__ import annotations

import array
import contextlib
import enum
import json
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from khop.errors import ProtocolError

MAX_PAYLOAD = 60_000
_ANCILLARY = socket.CMSG_SPACE(4 * 4)  # up to four descriptors


class Op(enum.IntEnum):
    """What a message is about."""

    # trainer -> process
    CONFIG = 1  # JSON; the process's memory
    OPEN_EPOCH = 2  # JSON; a memfd with the epoch's seeds
    CLOSE_EPOCH = 3  # epoch
    SAMPLE = 4  # number of slots, their offsets (free again); epoch and batch index, of any number
    FREE = 5  # offset of a slot
    TRACE = 6  # 1: a recording is under way, 0: it has ended
    ENDPOINT = 7  # JSON: a part, and where it is served now, or why it is not any more
    MAKE = 8  # ORDER, and columns of int64: a batch that belongs to no epoch; a memfd with the
    # columns if they are many
    # process -> trainer
    READY = 16  # JSON
    BATCH = 17  # epoch, batch index, offset, bytes; JSON if there is more to say of the batch;
    # own memfd if the ring had no room
    ERROR = 18  # JSON
    LAYOUT = 19  # a memfd with a layout that batches will have
    RECORDS = 20  # of a recording: `khop.trace.requests.pack_records`
    LOST = 21  # JSON: a part whose server cannot be reached, and for how long


ON_DEVICE = 1
"""Set in the offset of a slot that lies in a device's slab, not in the ring: slots are pages.

A batch there comes with its numbers on the line, behind their length: `ONE`, numbers, JSON.
"""

_OPS = {int(op): op for op in Op}
ONE = struct.Struct("<Q")
TWO = struct.Struct("<QQ")
BATCH = struct.Struct("<QQQQ")
ORDER = struct.Struct("<QQQQ")  # in place of an epoch, batch index, run key, number of columns


class Message(NamedTuple):
    """A received message."""

    op: Op
    payload: bytes
    descriptors: list[int]

    def json(self) -> dict[str, Any]:
        """The payload as JSON object."""
        try:
            content = json.loads(self.payload)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a control message is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise ProtocolError("a control message is not a JSON object")
        return content

    def integers(self, *names: str) -> list[int | None]:
        """Fields of the payload, JSON, that are integers or null.

        Raises:
            ProtocolError: one of them is something else.
        """
        content = self.json()
        values = [content.get(name) for name in names]
        if any(value is not None and type(value) is not int for value in values):
            raise ProtocolError(f"a control message's {names} are not integers")
        return values

    def descriptor(self) -> int:
        """The one descriptor that came along, to be closed by the caller.

        Raises:
            ProtocolError: another number of them; they are closed.
        """
        if len(self.descriptors) != 1:
            for descriptor in self.descriptors:
                os.close(descriptor)
            count = len(self.descriptors)
            raise ProtocolError(f"a control message comes with {count} descriptors instead of one")
        return self.descriptors[0]


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a control line; neither is inherited by other processes."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class ControlLine:
    """One end of the line.

    Args:
        end: the socket; made non-blocking.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)
        self._unsent: deque[bytes] = deque()
        self._flushing = threading.Lock()

    def fileno(self) -> int:
        """Descriptor to poll for incoming messages."""
        return self._socket.fileno()

    def send(self, op: Op, payload: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        """Sends a message, waiting for room if the other side is slow.

        Raises:
            ConnectionError: the other side is gone.
        """
        while True:
            self.flush()
            if not self._unsent:
                with contextlib.suppress(BlockingIOError):
                    socket.send_fds(self._socket, [bytes([op]), payload], list(descriptors))
                    return
            poller = select.poll()
            poller.register(self._socket, select.POLLOUT)
            poller.poll()

    def send_json(self, op: Op, content: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Sends a JSON object."""
        self.send(op, json.dumps(content).encode(), descriptors)

    def post(self, op: Op, payload: bytes) -> None:
        """Sends a message in turn, now or when `flush` finds room; never waits, never raises."""
        self._unsent.append(bytes([op]) + payload)
        self.flush()

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for room: then poll for POLLOUT as well, and `flush`."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Sends posted messages, in order, as far as there is room.

        Destructors post, in any thread and in the middle of this: whoever finds it at work leaves
        the message to it.
        """
        while self._unsent and self._flushing.acquire(blocking=False):
            try:
                while self._unsent:
                    self._socket.send(self._unsent[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    self._unsent.popleft()
            except BlockingIOError:
                return
            except OSError:  # gone: whatever it was told would be lost with it
                self._unsent.clear()
            finally:
                self._flushing.release()

    def receive(self) -> Message | None:
        """The next message if there is one.

        Raises:
            EOFError: the other side is gone.
            ProtocolError: a message that is none of `Op`.
        """
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(MAX_PAYLOAD + 4096, _ANCILLARY)
                break
            except BlockingIOError:
                return None
            except ConnectionError:
                # It left without reading all that it was told. The kernel says so once, before it
                # hands out what the other side said last.
                continue
        descriptors = _descriptors(ancillary) if ancillary else []
        if not data:
            raise EOFError("the other side has closed the control line")
        op = _OPS.get(data[0])
        if op is None:
            for descriptor in descriptors:
                os.close(descriptor)
            raise ProtocolError(f"unknown control message {data[0]}")
        return Message(op, data[1:], descriptors)

    def close(self) -> None:
        """Closes this end; the other side notices."""
        self._socket.close()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Descriptors that came with a message."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()
