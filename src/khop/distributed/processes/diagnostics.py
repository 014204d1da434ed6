"""What is known of a child process after its end: its last lines, and what it worked on.

A child's standard error is a pipe to the process that started it, where a thread passes on what
comes, line by line, and keeps the end of it: also what C libraries print when they abort, and the
traceback that `faulthandler` writes after a segmentation fault. What the child works on stands in a
page of memory that both have: writing there costs nothing, and it outlives the child.
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
    """Passes on what a child prints to standard error, and keeps the end of it.

    Attributes:
        child_end: descriptor for the child; `start` closes it here.
    """

    def __init__(self) -> None:
        self._ours, self.child_end = os.pipe()
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._thread = threading.Thread(target=self._pass_on, name="khop-log", daemon=True)

    def start(self) -> None:
        """Begins to listen; the child has its end."""
        os.close(self.child_end)
        self._thread.start()

    def _pass_on(self) -> None:
        begun = b""  # a line; those of several children must not be mixed
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
        """The end of what it printed; call when it has ended."""
        self._thread.join(1.0)  # until all is read; a process of its own may hold the pipe open
        kept = b"".join(list(self._kept))[-_KEPT_BYTES:]
        return kept.decode(errors="replace").strip()


def _write_on(text: bytes) -> None:
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(2, text) :]


class CurrentTaskPage:
    """A page in which a child writes what it works on.

    Args:
        descriptor: of its memory; None: make some, as the parent does.

    Attributes:
        descriptor: of its memory.
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
        """Says what is worked on from now on."""
        _TASK.pack_into(self._page, 0, epoch, batch)

    def read(self) -> tuple[int, int] | None:
        """(epoch, batch) that was worked on last; None: nothing yet."""
        epoch, batch = _TASK.unpack_from(self._page)
        return None if epoch == _NOTHING else (epoch, batch)

    def close_descriptor(self) -> None:
        """Closes the descriptor; the page stays."""
        os.close(self.descriptor)
