"""Control line: socket pair between a trainer and a process that it started. Imports no torch.

The socket pair keeps message boundaries, wakes the receiver, carries file descriptors, and reports
the end of the other process at once. A message is one byte of operation and a payload. A payload
may be too large for the socket, such as the configuration of a graph with thousands of edge types.
Then it is sent in a sealed memfd, as the first descriptor of its message.
"""

from __future__ import annotations

import array
import contextlib
import enum
import fcntl
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
"""Largest payload in bytes that is sent through the socket itself."""
MAX_LARGE_PAYLOAD = 64 << 20
"""Largest payload in bytes, sent or received."""

_MAX_DESCRIPTORS = 8
_ANCILLARY = socket.CMSG_SPACE(4 * (_MAX_DESCRIPTORS + 1))
# Set in a message's first byte if the payload is in the first descriptor, and `U64` its length.
_IS_LARGE = 0x80
# No process can change or shorten what the receiver reads.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Op(enum.IntEnum):
    """Operation of a message on a control line: its first byte."""

    # trainer -> process
    CONFIG = 1  # JSON; the process's memory
    OPEN_EPOCH = 2  # JSON; a memfd with the epoch's seeds
    CLOSE_EPOCH = 3  # epoch
    SAMPLE = 4  # number of freed slots, their offsets; then (epoch, batch index), any number
    FREE = 5  # offset of a slot
    TRACE = 6  # 1: a recording has begun, 0: it has ended
    ENDPOINT = 7  # JSON: a part, and its server's endpoint, or why it is no longer served
    MAKE = 8  # `MAKE_HEADER`, and columns of int64: a batch that belongs to no epoch. A memfd if
    # there are many columns. Sent again when a batch that was drawn ahead is requested.
    # process -> trainer
    READY = 16  # JSON
    BATCH = 17  # epoch, batch index, offset, bytes; JSON if the batch has extras;
    # a memfd if the arena was full
    ERROR = 18  # JSON
    LAYOUT = 19  # a memfd with the layout of later batches
    RECORDS = 20  # of a recording: `khop.trace.requests.pack_records`
    LOST = 21  # JSON: a part whose server is unreachable, and for how long


ON_DEVICE = 1
"""Bit that marks the offset of a slot in the device arena. Slots are pages, so offsets are even.

For a batch in the device arena, the payload of BATCH continues with the length of the batch's
numbers (`U64`), the numbers, and JSON.
"""

_OPS = {int(op): op for op in Op}
_OPS_WITH_DESCRIPTORS = {Op.CONFIG, Op.OPEN_EPOCH, Op.MAKE, Op.READY, Op.BATCH, Op.LAYOUT}
U64 = struct.Struct("<Q")
U64_PAIR = struct.Struct("<QQ")
BATCH = struct.Struct("<QQQQ")
# Request id (as the epoch), batch index, run key, number of columns, 1 if it is only drawn ahead.
MAKE_HEADER = struct.Struct("<QQQQQ")


class Message(NamedTuple):
    """Message received on a control line: operation, payload and file descriptors."""

    op: Op
    payload: bytes
    descriptors: list[int]

    def json(self) -> dict[str, Any]:
        """Return the payload as a JSON object."""
        try:
            content = json.loads(self.payload)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a control message is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise ProtocolError("a control message is not a JSON object")
        return content

    def integers(self, *names: str) -> list[int | None]:
        """Return the values of the fields `names` of the JSON payload. A missing field is None.

        Raises:
            ProtocolError: a field has a value of another type.
        """
        content = self.json()
        values = [content.get(name) for name in names]
        if any(value is not None and type(value) is not int for value in values):
            raise ProtocolError(f"a control message's {names} are not integers")
        return values

    def descriptor(self) -> int:
        """Return the message's only descriptor, to be closed by the caller.

        Raises:
            ProtocolError: the message has none, or several, which are then closed.
        """
        if len(self.descriptors) != 1:
            count = len(self.descriptors)
            self.close_descriptors()
            raise ProtocolError(f"a control message comes with {count} descriptors instead of one")
        return self.descriptors[0]

    def close_descriptors(self) -> None:
        """Close the message's descriptors. A second call does nothing."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new control line. Other processes inherit neither."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class _Frame(NamedTuple):
    """Message in the form in which it is sent.

    Attributes:
        data: the bytes sent through the socket.
        memory: descriptor of the payload's memory. If None, `data` holds the payload.
    """

    data: bytes
    memory: int | None

    @classmethod
    def make(cls, op: Op, payload: bytes) -> _Frame:
        if len(payload) <= MAX_PAYLOAD:
            return cls(bytes([op]) + payload, None)
        if len(payload) > MAX_LARGE_PAYLOAD:
            raise ValueError(
                f"a control message ({op.name}) of {len(payload)} bytes is too long: at most "
                f"{MAX_LARGE_PAYLOAD} can be sent"
            )
        memory = os.memfd_create("khop-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            written = 0
            while written < len(payload):
                written += os.write(memory, memoryview(payload)[written:])
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(memory)
            raise
        return cls(bytes([op | _IS_LARGE]) + U64.pack(len(payload)), memory)

    def send_to(self, end: socket.socket, descriptors: Sequence[int] = ()) -> None:
        """Send the message. If the socket is full, send nothing and raise BlockingIOError."""
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        passed = [*([] if self.memory is None else [self.memory]), *descriptors]
        if passed:
            socket.send_fds(end, [self.data], passed, flags)
        else:
            end.send(self.data, flags)

    def close(self) -> None:
        """Close the payload's memory. The receiver has its own descriptor."""
        if self.memory is not None:
            os.close(self.memory)


class ControlLine:
    """One end of a control line: the socket between a trainer and a process that it started.

    Args:
        end: the socket, which becomes non-blocking.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)
        self._unsent: deque[_Frame] = deque()
        # Thread and mark of the flush in progress. Not removed by `finally`, see `was_interrupted`.
        self._flusher: dict[str, tuple[int, object]] = {}

    def fileno(self) -> int:
        """Return the descriptor to poll for incoming messages."""
        return self._socket.fileno()

    def send(self, op: Op, payload: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        """Send a message. Wait if the other side is slow and the socket is full.

        Args:
            op: the operation.
            payload: at most `MAX_LARGE_PAYLOAD` bytes.
            descriptors: files to pass along, at most eight. They stay open in this process.

        Raises:
            ConnectionError: the other process has closed its end or has ended.
            ValueError: the payload is too long, or there are too many descriptors.
            OSError: no memory or descriptor is left for a large payload.
        """
        if len(descriptors) > _MAX_DESCRIPTORS:
            raise ValueError(
                f"a control message carries at most {_MAX_DESCRIPTORS} descriptors (got "
                f"{len(descriptors)})"
            )
        frame = _Frame.make(op, payload)
        try:
            self._send(frame, descriptors)
        finally:
            frame.close()

    def _send(self, frame: _Frame, descriptors: Sequence[int]) -> None:
        while True:
            self.flush()
            if not self._unsent:
                with contextlib.suppress(BlockingIOError):
                    frame.send_to(self._socket, descriptors)
                    return
            poller = select.poll()
            poller.register(self._socket, select.POLLOUT)
            poller.poll()

    def send_json(self, op: Op, content: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send message `op` with JSON payload `content` and file `descriptors`, as `send` does."""
        self.send(op, json.dumps(content).encode(), descriptors)

    def post(self, op: Op, payload: bytes) -> None:
        """Queue a message (`op` and payload), and send it now or in a later `flush`. Never waits.

        A payload of at most `MAX_PAYLOAD` bytes raises nothing. A larger one raises ValueError and
        OSError as in `send`.
        """
        self._unsent.append(_Frame.make(op, payload))
        self.flush()

    @property
    def has_unsent(self) -> bool:
        """True if messages wait because the socket is full: poll for POLLOUT, and call `flush`."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send posted messages, in order, until the socket is full.

        Destructors post messages, in any thread and also during a flush. The flush in progress then
        sends these messages, too.
        """
        is_full = False
        while self._unsent and not is_full:
            own = threading.get_ident(), object()
            if self._flusher.setdefault("flush", own) is not own:
                return
            is_full = not self._send_unsent()
            del self._flusher["flush"]

    def _send_unsent(self) -> bool:
        """Send posted messages in order. Return False if the socket is full before the last one."""
        try:
            while self._unsent:
                self._unsent[0].send_to(self._socket)
                self._unsent.popleft().close()
        except BlockingIOError:
            return False
        except OSError:  # the other process is gone: no message can reach it
            while self._unsent:
                self._unsent.popleft().close()
        return True

    def was_interrupted(self) -> bool:
        """Return True if an exception of a signal handler (Ctrl-C) ended a flush of this thread.

        The line then sends nothing more: a message could be sent twice. Call outside a flush.
        """
        own = self._flusher.get("flush")
        return own is not None and own[0] == threading.get_ident()

    def receive(self) -> Message | None:
        """Return the next message, or None if none has arrived.

        Raises:
            EOFError: the other process has closed its end or has ended.
            ProtocolError: the operation is unknown, or the message or its descriptors did not
                arrive whole. Descriptors that arrived are closed.
        """
        while True:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    1 + MAX_PAYLOAD, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
                )
                break
            except BlockingIOError:
                return None
            except ConnectionError:
                # The other side ended with unread messages. The kernel reports this once, before it
                # returns the messages that the other side sent last.
                continue
        descriptors = _descriptors(ancillary) if ancillary else []
        try:
            return _read(data, flags, descriptors)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def shut_down(self) -> None:
        """Shut the line down, also for other processes that have inherited an end of it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end. At the other end, `receive` then raises EOFError."""
        self._socket.close()
        self.flush()  # fails, and so drops what was not sent


def _read(data: bytes, flags: int, descriptors: list[int]) -> Message:
    """Parse a received message. A large payload's descriptor is removed from `descriptors`.

    `flags` are from `recvmsg`. They report a message that was cut off.
    """
    if flags & socket.MSG_CTRUNC:
        raise ProtocolError(
            "descriptors of a control message are lost: there are too many, or this process may "
            "not open more files (ulimit -n)"
        )
    if flags & socket.MSG_TRUNC:
        raise ProtocolError(f"a control message has more than {MAX_PAYLOAD} bytes in one piece")
    if not data:
        raise EOFError("the other side has closed the control line")
    op = _OPS.get(data[0] & ~_IS_LARGE)
    if op is None:
        raise ProtocolError(f"unknown control message {data[0]}")
    payload = data[1:]
    if data[0] & _IS_LARGE:
        payload = _read_large(payload, descriptors)
    if descriptors and op not in _OPS_WITH_DESCRIPTORS:
        raise ProtocolError(f"a control message {op.name} comes with descriptors")
    return Message(op, payload, descriptors)


def _read_large(length: bytes, descriptors: list[int]) -> bytes:
    """Read a large payload from the memory of the first descriptor. Close and remove it.

    `length` is the payload's size, as bytes of an integer.
    """
    if len(length) != U64.size or not descriptors:
        raise ProtocolError("a large control message does not say where its payload is")
    (nbytes,) = U64.unpack(length)
    if nbytes > MAX_LARGE_PAYLOAD:
        raise ProtocolError(
            f"a control message of {nbytes} bytes is too long: at most {MAX_LARGE_PAYLOAD} are read"
        )
    memory = descriptors.pop(0)
    try:
        try:
            seals = fcntl.fcntl(memory, fcntl.F_GET_SEALS)
        except OSError:  # a pipe, a socket: reading might wait
            seals = 0
        if seals & _SEALS != _SEALS or os.fstat(memory).st_size != nbytes:
            raise ProtocolError("a large control message is not in sealed memory of its length")
        parts, size = [], 0
        while size < nbytes:
            parts.append(os.pread(memory, nbytes - size, size))
            size += len(parts[-1])
        return b"".join(parts)
    finally:
        os.close(memory)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    received = array.array("i")
    for level, type_, data in ancillary:
        if (level, type_) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return received.tolist()
