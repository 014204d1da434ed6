"""Folders with the Unix sockets of servers, which only their owner can enter. Any process.

Traffic over these sockets is not encrypted, so the other end is checked. A path that came over the
network is used only if this user alone can have put a socket there (`is_own_socket`). Each end of
a connection asks the kernel for the user at the other end (`peer_of`).

Folders are named after the host and its namespaces: several hosts may share a temporary folder, and
only the socket's own host can find out whether a process listens there. Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import tempfile
import time
from pathlib import Path

from khop.distributed.processes.hosts import host_identity

# A socket's path holds 107 bytes.
_MAX_FOLDER = 90
# A socket of this age without a listener is abandoned: servers bind and listen at once.
_ABANDONED_SECONDS = 600.0
_CREDENTIALS = struct.Struct("3i")  # process, user, group


def socket_folder() -> Path:
    """Make a folder for sockets that only this user can enter. Its path is short enough.

    Removes folders of servers that were killed together with their parents.
    """
    prefix = f"khop-{host_identity()}-"
    for parent in {tempfile.gettempdir(), "/tmp"}:
        for left in Path(parent).glob(f"{prefix}*"):
            _remove_abandoned(left)
    # The path has no links: see `is_own_socket`.
    folder = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    if len(str(folder)) > _MAX_FOLDER:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp")).resolve()
    return folder


def _remove_abandoned(folder: Path) -> None:
    """Remove a socket folder of this user, if it is old and no process listens in it."""
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


def is_own_socket(path: str) -> bool:
    """Return True if a path is a socket that only this user can have put there, or can move.

    Socket and folder belong to this user, and other users cannot enter the folder. All folders
    above belong to this user or the system, and other users cannot rename in them. Links are not
    followed: their targets could change after the check.
    """
    named = Path(path)
    if not named.name or not named.is_absolute() or ".." in named.parts or "\0" in path:
        return False
    try:
        file, folder, *above = [p.lstat() for p in (named, *named.parents)]
    except OSError:
        return False
    own = os.geteuid()
    # In a container the system's folders may belong to a user that has no id there.
    trusted = {0, own, above[-1].st_uid} if above else {0, own}
    return (
        stat.S_ISSOCK(file.st_mode)
        and file.st_uid == own
        and stat.S_ISDIR(folder.st_mode)
        and folder.st_uid == own
        and not folder.st_mode & 0o077
        and all(stat.S_ISDIR(s.st_mode) and s.st_uid in trusted for s in above)
        and not any(s.st_mode & stat.S_IWOTH and not s.st_mode & stat.S_ISVTX for s in above)
    )


def peer_of(end: socket.socket) -> tuple[int, int]:
    """Return process id (0 if the system hides it) and user id of a socket's other end.

    The kernel names the process that called `listen` or `connect` there.
    """
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return max(process, 0), user


def lines_path(path: str) -> str:
    """Return the path of a graph server's socket for local clients, beside its socket `path`."""
    return str(Path(path).with_name("lines"))


def own_path(path: str) -> str:
    """Return the path of a file for a transport that a user has written, next to socket `path`."""
    return str(Path(path).with_name("own"))


def remove_socket(path: str) -> None:
    """Remove a server's socket files and their folder, if still there."""
    for file in (path, lines_path(path), own_path(path)):
        with contextlib.suppress(OSError):
            Path(file).unlink()
    with contextlib.suppress(OSError):
        Path(path).parent.rmdir()
