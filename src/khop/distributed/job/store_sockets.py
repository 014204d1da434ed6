"""Sockets of a connection to a job's store. Runs in trainers; imports no torch.

A call of torch's store waits in C++ for as long as the network takes, and nothing in its interface
ends it. If Python ends meanwhile, and then the call returns, torch takes the interpreter's lock in
a destructor; Python 3.13 and earlier end the thread there, which C++ does not allow: the process
aborts ("terminate called without an active exception"). So a thread that calls the store has a
connection of its own, whose sockets are shut down before the interpreter ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class StoreSockets:
    """Socket to a store that is opened in a `with` block.

    None is known if another thread opens one at the same time, or if the block raises an error.

    Args:
        store: torch's store; one without a port has no sockets.
    """

    def __init__(self, store: Any) -> None:
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        self._port = getattr(store, "port", None)
        self._before: dict[int, int] = {}
        self._found: dict[int, int] = {}

    def __enter__(self) -> StoreSockets:
        self._before = self._connected()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        after = self._connected()
        new = {fd: inode for fd, inode in after.items() if self._before.get(fd) != inode}
        if kind is None and len(new) == 1:
            self._found = new

    @property
    def has_none(self) -> bool:
        """True if the store is reached without a network: its calls never wait long."""
        return self._port is None

    def _connected(self) -> dict[int, int]:
        """Return {descriptor: inode} of the sockets to the store."""
        if self._port is None:
            return {}
        descriptors = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
        found = {}
        for descriptor in descriptors:
            for opened in _opened(descriptor):
                with contextlib.suppress(OSError):  # not connected
                    if opened.getpeername()[1:2] == (self._port,):
                        found[descriptor] = os.fstat(opened.fileno()).st_ino
        return found

    def shut_down(self) -> None:
        """End the connections: a call that waits for the store fails at once."""
        for descriptor, inode in self._found.items():
            for opened in _opened(descriptor):
                with contextlib.suppress(OSError):  # ended already
                    if os.fstat(opened.fileno()).st_ino == inode:
                        opened.shutdown(socket.SHUT_RDWR)


def _opened(descriptor: int) -> Iterator[socket.socket]:
    """Yield the socket of a descriptor, if it is one, by a descriptor of its own."""
    try:
        own = os.dup(descriptor)
    except OSError:  # closed meanwhile
        return
    try:
        opened = socket.socket(fileno=own)
    except OSError:  # no socket
        os.close(own)
        return
    with opened:
        yield opened
