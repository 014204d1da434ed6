"""Diagnostics of a child process: the end of its standard error, and its current task.

Standard error is a pipe to the parent. A thread there passes it on, line by line, and keeps the
end: also what C libraries print when they abort, and the traceback that `faulthandler` writes after
a segmentation fault. The current task is in a page of memory that both processes map: writing there
costs nothing, and the page outlives the child.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections import deque

_TASK = struct.Struct("<QQ")
_NOTHING = 2**64 - 1
_KEPT_BYTES = 8192
_CHUNK = 4096


class StderrTail:
    """Forwarder of a child's standard error that keeps the last 8 KiB.

    Attributes:
        child_end: descriptor for the child; `start` closes it here.
    """

    def __init__(self) -> None:
        self._ours, self.child_end = os.pipe()
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._thread = threading.Thread(target=self._pass_on, name="khop-log", daemon=True)

    def start(self) -> None:
        """Start reading. Call when the child has its end."""
        os.close(self.child_end)
        self._thread.start()

    def _pass_on(self) -> None:
        begun = b""  # an unfinished line: lines of several children must not be mixed
        while chunk := os.read(self._ours, _CHUNK):
            self._kept.append(chunk)
            self._size += len(chunk)
            while self._size - len(self._kept[0]) > _KEPT_BYTES:
                self._size -= len(self._kept.popleft())
            lines, end, begun = (begun + chunk).rpartition(b"\n")
            if len(begun) > _KEPT_BYTES:
                lines, end, begun = lines + end, begun, b""
            _write_on(lines + end)
        _write_on(begun)
        os.close(self._ours)

    def text(self) -> str:
        """Return the end of what the child printed. Call when it has ended."""
        self._thread.join(1.0)  # until all is read; a child of the child may hold the pipe open
        kept = b"".join(list(self._kept))[-_KEPT_BYTES:]
        return kept.decode(errors="replace").strip()


def _write_on(text: bytes) -> None:
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(2, text) :]


class CurrentTaskPage:
    """A page of shared memory in which a child publishes its current task.

    Args:
        descriptor: descriptor of the memory. If None, a new page is made, as the parent does.

    Attributes:
        descriptor: descriptor of the memory.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        is_new = descriptor is None
        if descriptor is None:
            descriptor = os.memfd_create("khop-task", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, mmap.PAGESIZE)
        self.descriptor = descriptor
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        if is_new:
            self.write(_NOTHING, _NOTHING)

    def write(self, epoch: int, batch: int) -> None:
        """Publish the current task."""
        _TASK.pack_into(self._page, 0, epoch, batch)

    def read(self) -> tuple[int, int] | None:
        """Return the (epoch, batch) that was published last; None if there was none yet."""
        epoch, batch = _TASK.unpack_from(self._page)
        return None if epoch == _NOTHING else (epoch, batch)

    def close_descriptor(self) -> None:
        """Close the descriptor; the page stays mapped."""
        os.close(self.descriptor)
