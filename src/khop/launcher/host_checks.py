"""Checks of a host before a job starts, in the stage. Standard library and khop, no torch."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import random
import resource
import select
import socket
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ERROR = "error: "
"""Prefix of the reason why a file has no digest."""

_REACH_SECONDS = 5.0
_PORTS = 10_000, 30_000
_MOST_PROBLEMS = 16
_PROBE_BYTES = 32 << 10
# A process that has imported torch and PyG has 270 MB of its own, in 950 MB of addresses.
_MEMORY_PER_PROCESS, _TASKS_PER_PROCESS = 256 << 20, 16
_ADDRESSES, _FILE_SIZE, _FILES = 4 << 30, 1 << 30, 1024


def check(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of this host, and set the environment and the working folder."""
    os.environ.update(request["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    problems = []
    try:
        os.chdir(request["folder"])
    except OSError as error:
        problems.append(f"no working folder '{request['folder']}': {error.strerror}")
    address = None
    try:
        from khop.distributed.processes.hosts import interface_address, outside_address

        if request["interface"] is not None:
            address = interface_address(request["interface"])
        else:  # the address by which ssh came is one that others reach
            address = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 3)[2]
            if not address or address.startswith("127.") or address == "::1":
                address = outside_address()
    except ImportError as error:
        problems.append(f"{sys.executable} cannot import khop: {error}")
    except ValueError as error:
        problems.append(str(error))
    try:
        from khop.placement import Position, choose

        choose(None, Position(0, 1))
    except ImportError:
        pass  # of another version, which is a problem of its own
    except ValueError as error:
        problems.append(str(error))
    problems += limits(request["processes"])
    files = {path: _digest(path) for path in request["files"]}
    if not any(digest.startswith(ERROR) for digest in files.values()):
        problems += _unserved(request)
    return {
        "name": socket.gethostname(),
        "interpreter": sys.executable,
        "versions": {"python": platform.python_version(), **_versions()},
        "files": files,
        "address": address,
        "problems": problems[:_MOST_PROBLEMS],
    }


def limits(processes: int) -> Iterator[str]:
    """Yield what is too little on this host for a number of processes that import torch and PyG."""
    with contextlib.suppress(ImportError):
        from khop.cores import available_memory

        memory, needed = available_memory(), processes * _MEMORY_PER_PROCESS
        if memory is not None and memory < needed:
            yield (
                f"{memory >> 20} MiB of memory are available, but {processes} processes take "
                f"{needed >> 20} MiB before they load anything: start fewer here"
            )
    tasks = 0 if os.geteuid() == 0 else processes * _TASKS_PER_PROCESS  # root has no limit
    for name, limit, option, least in (
        ("open files", resource.RLIMIT_NOFILE, "-n", _FILES),
        ("bytes of addresses", resource.RLIMIT_AS, "-v", _ADDRESSES),
        ("bytes of a file or of shared memory", resource.RLIMIT_FSIZE, "-f", _FILE_SIZE),
        ("processes and threads", resource.RLIMIT_NPROC, "-u", tasks),
    ):
        soft, hard = resource.getrlimit(limit)
        allowed = hard if limit == resource.RLIMIT_NOFILE else soft  # servers raise this one
        if allowed != resource.RLIM_INFINITY and allowed < least:
            yield f"only {allowed} {name} are allowed, {least} are needed: raise ulimit {option}"
    try:
        os.close(os.memfd_create("khop-check"))
    except OSError as error:
        yield f"batches need memfd_create, which fails: {error.strerror} (seccomp?)"


def _unserved(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield why graph servers cannot serve their partitions from this host's folder."""
    for rank in request["servers"]:
        try:
            from khop.distributed.remote.server.server_config import ServerConfig
            from khop.storage.folder import PartitionFolder

            config = ServerConfig("", rank, request["num_servers"], 0, "")
            config.parts_of(PartitionFolder(request["parts"]))
        except (ImportError, TypeError):
            return  # of another version, which is a problem of its own
        except (LookupError, ValueError) as error:
            yield f"server {rank}: {error}"


def _versions() -> dict[str, str]:
    from importlib import metadata

    versions = {}
    for package in ("khop", "torch", "torch_geometric"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "missing"
    with contextlib.suppress(ImportError):  # from a source tree, which has no metadata
        from khop import __version__

        versions["khop"] = __version__
    return versions


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        return f"{ERROR}{error.strerror}"
    return digest.hexdigest()


def listen() -> socket.socket:
    """Return a socket that others try to connect to. A trainer or server gets its port later.

    Outgoing connections have higher ports. See `reserve` for the time until that process listens.
    """
    while True:
        listener = socket.socket()
        try:
            listener.bind(("", random.randrange(*_PORTS)))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return listener


def reserve(listener: socket.socket) -> None:
    """Accept no more connections, and leave the port to a process that sets SO_REUSEADDR.

    As long as the socket exists, the kernel gives its port to no process that asks for any port.
    Sockets without SO_REUSEADDR cannot have it, so `listen` in another job chooses another one.
    """
    listener.shutdown(socket.SHUT_RDWR)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def reach(targets: Sequence[tuple[str, int]]) -> dict[int, str]:
    """Connect to all (address, port), and send some packets. Return {index: reason} of failures.

    A network that drops large packets lets connections be made, and later hangs.
    """
    failed: dict[int, str] = {}
    waiting: dict[int, tuple[int, socket.socket]] = {}
    sent: dict[int, socket.socket] = {}
    poller = select.poll()
    for index, (address, port) in enumerate(targets):
        try:
            family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(target)
        except (OSError, UnicodeError) as error:
            failed[index] = str(error)
            continue
        waiting[connection.fileno()] = index, connection
        poller.register(connection, select.POLLOUT)
    end = time.monotonic() + _REACH_SECONDS
    while (waiting or sent) and time.monotonic() < end:
        for descriptor, _ in poller.poll(20):
            index, connection = waiting.pop(descriptor)
            poller.unregister(descriptor)
            try:
                if code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(code, os.strerror(code))
                connection.send(bytes(_PROBE_BYTES))  # the other system takes them
                sent[index] = connection
            except OSError as error:
                failed[index] = str(error.strerror)
                connection.close()
        for index in [i for i, connection in sent.items() if _unacknowledged(connection) == 0]:
            sent.pop(index).close()
    for index, connection in waiting.values():
        failed[index] = f"no answer in {_REACH_SECONDS:.0f} s"
        connection.close()
    for index, connection in sent.items():
        failed[index] = (
            f"it connects, but {_PROBE_BYTES} bytes do not arrive in {_REACH_SECONDS:.0f} s: the "
            "network may drop large packets (MTU)"
        )
        connection.close()
    return failed


def _unacknowledged(connection: socket.socket) -> int:
    """Return the number of bytes that the other system has not acknowledged."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
