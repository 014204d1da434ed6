"""Folders with the sockets of servers, that only their owner can enter.

They are named after the host (and its namespaces), for temporary folders may be shared by several:
whether anybody listens at a socket can be told on its own host alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from pathlib import Path

from khop.distributed.hosts import host_identity

# A socket's path holds 107 bytes.
_MAX_FOLDER = 90
# A socket of that age that nobody listens at belongs to nobody: servers bind and listen at once.
_ABANDONED_SECONDS = 600.0


def socket_folder() -> Path:
    """A new folder that only the owner can enter, with a path short enough for a socket's.

    Removes what processes have left that were killed together with those who look after them.
    """
    prefix = f"khop-{host_identity()}-"
    for parent in {tempfile.gettempdir(), "/tmp"}:
        for left in Path(parent).glob(f"{prefix}*"):
            _remove_abandoned(left)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if len(str(folder)) > _MAX_FOLDER:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    return folder


def _remove_abandoned(folder: Path) -> None:
    """Removes a socket folder of this user, if it is old and nobody listens in it."""
    path = folder / "server"
    with contextlib.suppress(OSError):
        is_old = time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS
        if not is_old or folder.lstat().st_uid != os.geteuid() or not path.is_socket():
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                remove_socket(str(path))


def lines_path(path: str) -> str:
    """Where a graph server takes in clients of its machine: a socket beside its `ipc://` one."""
    return str(Path(path).with_name("lines"))


def remove_socket(path: str) -> None:
    """Removes a server's socket file, what lies beside it, and the folder, if still there."""
    for file in (path, lines_path(path)):
        with contextlib.suppress(OSError):
            Path(file).unlink()
    with contextlib.suppress(OSError):
        Path(path).parent.rmdir()
