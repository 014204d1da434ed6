"""Key files: functions that make, read and change them. `khop.distributed.rpc.keys` has the format.

The command line, graph servers and clients use them. A file is used only if it is a regular file of
this user or root, and no other user can read or write it. Imports no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from khop.distributed.rpc.endpoint import KeyPair
from khop.distributed.rpc.keys import (
    JOB_KEY_VARIABLE,
    KEY_FILE_VARIABLE,
    MAX_CLIENTS,
    NAME,
    ClientKeys,
    JobKeys,
    ServerKeys,
)
from khop.errors import SecurityError
from khop.private_folders import open_folder

_FORMAT = "khop-keys"
_VERSION = 2
_READ = (1, 2)
_MAX_BYTES = 1 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_Keys = TypeVar("_Keys", ServerKeys, ClientKeys)


def file_content(keys: ServerKeys | ClientKeys) -> dict[str, Any]:
    """Return the JSON object of a key file. It has secrets."""
    return {"format": _FORMAT, "version": _VERSION, **keys.to_json()}


def write_keys(folder: str | Path, num_clients: int | None = None) -> list[Path]:
    """Make the keys of a job and write `server.key` and the clients' files.

    Args:
        folder: folder for the files. If it does not exist, it is made for its owner alone.
        num_clients: number of clients. Each gets its own pair, in `client-0.key` and so on. If
            None, one pair serves all clients, in `client.key`.

    Returns:
        The paths of the files, mode 0600, with `server.key` first.

    Raises:
        ValueError: the number of clients is not in 1 to `MAX_CLIENTS`.
        SecurityError: the folder is a link or another user's, or others may enter it.
        FileExistsError: there are keys already. They are not changed.
        NotADirectoryError: the path is a file, or is below a file.
    """
    if num_clients is not None and not 1 <= num_clients <= MAX_CLIENTS:
        raise ValueError(f"--clients must be 1 to {MAX_CLIENTS} (got {num_clients})")
    names = ["client"] if num_clients is None else [f"client-{i}" for i in range(num_clients)]
    keys = JobKeys.new(names)
    folder = Path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"'{error.filename}' is no folder, or a link to one: name a folder for the keys of the "
            "job, which is made if it does not exist"
        ) from None
    files = {"server.key": file_content(keys.for_servers())}
    files |= {f"{name}.key": file_content(keys.for_client(name)) for name in names}
    with _private_folder(folder) as at:
        _write_all(at, folder, files)
    return [folder / name for name in files]


def add_client(folder: str | Path, name: str) -> Path:
    """Make a key pair for one more client, and admit it.

    Running servers that read this `server.key` admit it within seconds.

    Returns:
        The path of the client's file, NAME.key in the folder of `server.key`, mode 0600.

    Raises:
        ValueError: the name is not valid for a key file.
        SecurityError: there is no `server.key`, or it cannot be used.
        FileExistsError: there is a client of this name already.
    """
    if not NAME.fullmatch(name) or name == "server":
        raise ValueError(f"a client's name is letters, digits, '.', '_' and '-' (got {name!r:.80})")
    folder = Path(folder)
    pair = KeyPair.new()
    with _private_folder(folder) as at:
        keys = _read_file(folder / "server.key", "server", ServerKeys, at)
        if name in keys.clients:
            raise FileExistsError(f"'{folder / 'server.key'}' has a client '{name}' already")
        client = file_content(ClientKeys(pair, keys.server_key))
        _write_all(at, folder, {f"{name}.key": client})
        _replace_server_key(at, folder, {**keys.clients, name: pair.public}, keys)
    return folder / f"{name}.key"


def revoke_client(folder: str | Path, name: str) -> None:
    """Revoke a client's key in `folder`. Running servers with this key soon end its connections.

    Raises:
        ValueError: no client has this name. The error lists the clients.
        SecurityError: there is no `server.key`, or it cannot be used.
    """
    folder = Path(folder)
    with _private_folder(folder) as at:
        keys = _read_file(folder / "server.key", "server", ServerKeys, at)
        if name not in keys.clients:
            raise ValueError(f"no client '{name[:80]}' to revoke: there are {sorted(keys.clients)}")
        left = {known: public for known, public in keys.clients.items() if known != name}
        _replace_server_key(at, folder, left, keys)


@contextlib.contextmanager
def _private_folder(folder: Path) -> Iterator[int]:
    """Open and lock a folder that no other user may enter. Yield its descriptor.

    Two changes at the same time run one after the other, so that neither undoes the other.
    """
    try:
        at = open_folder(folder)
    except (OSError, SecurityError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is a link"
        raise SecurityError(
            f"'{folder}' is no folder, or a link to one: name a folder for the keys of the job "
            f"({why})"
        ) from None
    try:
        _check_private(os.fstat(at), folder, "chmod 700")
        fcntl.flock(at, fcntl.LOCK_EX)  # until it is closed
        yield at
        os.fsync(at)
    finally:
        os.close(at)


def _write_all(at: int, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    written: list[str] = []
    try:
        for name, content in files.items():
            try:
                descriptor = os.open(name, flags, 0o600, dir_fd=at)
            except FileExistsError:
                raise FileExistsError(
                    f"'{folder / name}' exists: keys are never overwritten; remove it, or name "
                    "another folder"
                ) from None
            written.append(name)
            with os.fdopen(descriptor, "w") as file:
                os.fchmod(descriptor, 0o600)  # whatever the umask
                json.dump(content, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(descriptor)
    except BaseException:
        for name in written:
            os.unlink(name, dir_fd=at)
        raise


def _replace_server_key(
    at: int, folder: Path, clients: Mapping[str, str], keys: ServerKeys
) -> None:
    name = f".server.key-{os.getpid()}"
    _write_all(at, folder, {name: file_content(ServerKeys(keys.server, clients))})
    os.rename(name, "server.key", src_dir_fd=at, dst_dir_fd=at)


def read_server_keys(path: str | Path | None = None) -> ServerKeys | None:
    """Read a graph server's keys from a `server.key`. If `path` is None, from $KHOP_KEY_FILE.

    Returns:
        The keys. None if neither names a file.

    Raises:
        SecurityError: the file is missing, not for its owner alone, not a `server.key`, or damaged.
    """
    return _read(path, "server", ServerKeys)


def key_file_path(path: str | Path | None) -> str | None:
    """Return the absolute path of the key file: `path`, else $KHOP_KEY_FILE. None if not set."""
    named = path if path is not None else os.environ.get(KEY_FILE_VARIABLE)
    return str(Path(named).absolute()) if named else None


def read_client_keys(path: str | Path | None = None) -> ClientKeys | None:
    """Read a trainer's keys from a `client.key`. If `path` is None, from $KHOP_KEY_FILE.

    Returns None if neither names a file. SecurityError if it is missing, damaged or not private.
    """
    return _read(path, "client", ClientKeys)


def read_job_pair() -> KeyPair | None:
    """Read the trainers' key pair from $KHOP_JOB_KEY_FILE, which `khop run` sets. None without it.

    Raises:
        SecurityError: the file is missing, damaged or not private.
    """
    named = os.environ.get(JOB_KEY_VARIABLE)
    return _read_file(Path(named), "client", ClientKeys).client if named else None


def _check_private(status: os.stat_result, path: Path, remedy: str) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise SecurityError(f"'{path}' belongs to user {status.st_uid}, not to you: copy the keys")
    if status.st_mode & _OTHERS:
        raise SecurityError(
            f"'{path}' has mode {stat.S_IMODE(status.st_mode):04o}: others can read or change it. "
            f"If nobody has: {remedy} '{path}'; else make new keys with khop keygen"
        )


def _read(path: str | Path | None, role: str, keys: type[_Keys]) -> _Keys | None:
    named = path if path is not None else os.environ.get(KEY_FILE_VARIABLE)
    return _read_file(Path(named), role, keys) if named else None


def _read_file(path: Path, role: str, keys: type[_Keys], folder: int | None = None) -> _Keys:
    """Read a key file of this `role` and return its keys.

    If `folder` is a descriptor, the file is opened by its name in this folder.

    Raises:
        SecurityError: the file is missing, not private, of another role, or damaged.
    """
    text = _read_private(path, folder)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):  # its text might quote the file
        content = None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise SecurityError(f"'{path}' is not a key file: make one with khop keygen")
    version = content.get("version")
    if type(version) is not int or version not in _READ:
        raise SecurityError(
            f"'{path}' has version {version!r:.40}, but this khop reads {_READ[0]} to {_VERSION}"
        )
    if content.get("role") != role:
        raise SecurityError(
            f"'{path}' is the key file of a {content.get('role')!r}, but a {role}'s is needed: "
            f"'{role}.key' as 'khop keygen' wrote it"
        )
    try:
        return keys.from_json(content)
    except SecurityError as error:
        raise SecurityError(f"'{path}' is damaged: {error}") from None


def _read_private(path: Path, folder: int | None) -> bytes:
    """Return the bytes of a regular file of this user or root that no other user can access.

    Links are followed, because Kubernetes mounts secrets as links. Owner and mode of the opened
    file are checked, so the path does not matter. `folder` is a descriptor of the folder in which
    the path's name is opened, or None.
    """
    try:
        # Opening a FIFO must not block.
        name = path if folder is None else path.name
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        raise SecurityError(f"cannot read the key file '{path}': {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SecurityError(f"'{path}' is not a key file: it is no regular file")
        _check_private(status, path, "chmod 600")
        return os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)
