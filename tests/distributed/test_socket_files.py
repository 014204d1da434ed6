"""Folders of sockets: the owner's alone, and nobody's are removed."""

import os
import socket
import stat
import tempfile
from pathlib import Path

from khop.distributed.hosts import host_identity
from khop.distributed.socket_files import lines_path, remove_socket, socket_folder

HOUR = 3600


def make_old(folder, listening):
    """Puts a socket of an hour ago into a folder; returns it, open."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = folder / "server"
    end.bind(str(path))
    if listening:
        end.listen()
    then = path.stat().st_mtime - HOUR
    os.utime(path, (then, then))
    return end


def test_a_folder_is_its_owners():
    """Nobody else may enter; its name says whose host it is."""
    folder = socket_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.name.startswith(f"khop-{host_identity()}-")
    assert len(str(folder / "server")) < 108
    (folder / "server").touch()
    Path(lines_path(str(folder / "server"))).touch()
    remove_socket(str(folder / "server"))
    assert not folder.exists()


def test_long_temporary_folders(monkeypatch, tmp_path):
    """A socket's path would not fit: the folder lies elsewhere."""
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = socket_folder()
    assert folder.parent == Path("/tmp") and not list(deep.iterdir())
    folder.rmdir()


def test_what_nobody_listens_at_is_removed():
    """Of this host, old, and without a listener; all else stays."""
    abandoned, alive, fresh, foreign = [socket_folder() for _ in range(4)]
    foreign = foreign.rename(foreign.with_name("khop-0123456789abcdef-x"))
    ends = [make_old(abandoned, False), make_old(alive, True), make_old(foreign, False)]
    ends.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    ends[-1].bind(str(fresh / "server"))
    socket_folder().rmdir()
    assert [f.exists() for f in (abandoned, alive, fresh, foreign)] == [False, True, True, True]
    for folder, end in zip((alive, foreign, fresh), ends[1:], strict=True):
        end.close()
        remove_socket(str(folder / "server"))
    ends[0].close()
