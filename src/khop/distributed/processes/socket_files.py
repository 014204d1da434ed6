"""Folders with the sockets of servers, that only their owner can enter.

Nothing that is said over these sockets is encrypted, so who is at the other end is checked: a path
that came over the network is used only if this user alone can have put a socket there
(`is_own_socket`), and each end of a connection asks the kernel who has the other (`peer_of`).

Folders are named after the host (and its namespaces), for temporary folders may be shared by
several: whether anybody listens at a socket can be told on its own host alone.
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
# A socket of that age that nobody listens at belongs to nobody: servers bind and listen at once.
_ABANDONED_SECONDS = 600.0
_CREDENTIALS = struct.Struct("3i")  # process, user, group


def socket_folder() -> Path:
    """A new folder that only the owner can enter, with a path short enough for a socket's.

    Removes what processes have left that were killed together with those who look after them.
    """
    prefix = f"khop-{host_identity()}-"
    for parent in {tempfile.gettempdir(), "/tmp"}:
        for left in Path(parent).glob(f"{prefix}*"):
            _remove_abandoned(left)
    # Without links on the way: see `is_own_socket`.
    folder = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    if len(str(folder)) > _MAX_FOLDER:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp")).resolve()
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


def is_own_socket(path: str) -> bool:
    """Whether a path leads to a socket that nobody but this user can have put there, or can move.

    Socket and folder belong to this user, the folder is closed to others, and whatever lies above
    is a folder of this user's or the system's in which others cannot rename. Links are not
    followed: they could lead elsewhere a moment later.
    """
    place = Path(path)
    if not place.name or not place.is_absolute() or ".." in place.parts or "\0" in path:
        return False
    try:
        file, folder, *above = [p.lstat() for p in (place, *place.parents)]
    except OSError:
        return False
    own = os.geteuid()
    # In a container the system's folders may belong to a user who has no number there.
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
    """Process id (0: the system does not tell) and user id of whoever has the other end.

    Of a connection that was made to a listening socket, that is who began to listen, or connected.
    """
    told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(told)
    return max(process, 0), user


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
