"""Folders of sockets: the owner's alone, and nobody's are removed."""

import contextlib
import os
import socket
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from khop.distributed.processes.hosts import host_identity
from khop.distributed.processes.socket_files import (
    is_own_socket,
    lines_path,
    peer_of,
    remove_socket,
    socket_folder,
)
from khop.distributed.remote.addresses import endpoint_of, local_socket
from khop.distributed.remote.client.local_sampler import _connected
from khop.distributed.remote.messages import Addresses, ServerEntry
from khop.distributed.rpc.endpoint import Endpoint

HOUR = 3600
OTHER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


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


def test_old_sockets_without_a_listener_are_removed():
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


@contextlib.contextmanager
def listening(kind=socket.SOCK_STREAM):
    """The path of a socket in a folder of its own, and the socket."""
    path = socket_folder() / "server"
    with socket.socket(socket.AF_UNIX, kind) as end:
        end.bind(str(path))
        end.listen()
        try:
            yield path, end
        finally:
            remove_socket(str(path))


def test_sockets_of_this_user_count():
    """In a folder that is closed to others, by its own path."""
    with listening() as (path, _):
        assert is_own_socket(str(path))
        for mode in (0o711, 0o770, 0o777, 0o701):
            path.parent.chmod(mode)
            assert not is_own_socket(str(path))
        path.parent.chmod(0o700)
        other = path.with_name("lines")
        assert not is_own_socket(str(other)), "there is none"
        other.touch()
        assert not is_own_socket(str(other)), "a file"
        other.unlink()
        other.symlink_to(path)
        assert not is_own_socket(str(other)), "a link"
        other.unlink()
        for name in (path.name, f"../{path.parent.name}/server", "", "/", f"{path}\0x", "@server"):
            assert not is_own_socket(name)
        assert not is_own_socket(f"{path.parent}/../{path.parent.name}/server")


def test_links_on_the_way_do_not_count(tmp_path):
    """They could lead to another folder when they are followed again."""
    with listening() as (path, _):
        (tmp_path / "link").symlink_to(path.parent)
        assert not is_own_socket(str(tmp_path / "link" / "server"))
        (tmp_path / "above").symlink_to(path.parent.parent)
        assert not is_own_socket(str(tmp_path / "above" / path.parent.name / "server"))


def test_folders_in_which_others_rename_do_not_count(tmp_path):
    """Unless they are sticky, as /tmp is."""
    folder = tmp_path / "open" / "own"
    folder.mkdir(mode=0o700, parents=True)
    folder.parent.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(folder / "server"))
        assert not is_own_socket(str(folder / "server"))
        folder.parent.chmod(0o1777)
        assert is_own_socket(str(folder / "server"))


def test_a_temporary_folder_that_is_a_link(monkeypatch, tmp_path):
    """Sockets are announced by the path that it stands for."""
    with tempfile.TemporaryDirectory() as short:
        (Path(short) / "link").symlink_to(short)
        monkeypatch.setattr(tempfile, "tempdir", str(Path(short) / "link"))
        with listening() as (path, _):
            assert is_own_socket(str(path))


@pytest.mark.parametrize("changed", ["folder", "socket", "mode", "host"])
def test_socket_of_uncertain_owner_is_replaced_by_tcp_with_keys(changed):
    """Over TCP: whoever registered the address may have a client's key alone."""
    with listening() as (path, _):
        addresses = Addresses("tcp://127.0.0.1:5", f"ipc://{path}")
        entry = ServerEntry("i", [0], addresses, host_identity(), 1)
        assert endpoint_of(entry, "key") == Endpoint(f"ipc://{path}")
        if changed in ("folder", "socket"):
            if os.geteuid() != 0:
                pytest.skip("only root can give files away")
            os.chown(path.parent if changed == "folder" else path, OTHER, OTHER)
        elif changed == "mode":
            path.parent.chmod(0o755)
        else:
            entry = replace(entry, host="another")
        assert local_socket(entry) is None
        assert endpoint_of(entry, "key") == Endpoint("tcp://127.0.0.1:5", "key")


def as_other(action):
    """Runs an action in a child of another user; returns what it printed into a pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setgid(OTHER)
            os.setuid(OTHER)
            os.write(write, repr(action()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.process
@needs_root
def test_listener_of_another_user_gets_nothing():
    """Before anything is passed: a socket whose listener is another user's is left."""
    with listening(socket.SOCK_SEQPACKET) as (path, end):
        with _connected(str(path)) as own:
            assert peer_of(own) == (os.getpid(), os.geteuid())
        path.parent.chmod(0o777)
        assert as_other(lambda: end.listen() or "listens") == "'listens'"
        with pytest.raises(PermissionError, match=f"user {OTHER} listens"):
            _connected(str(path))
