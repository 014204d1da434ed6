"""Key files: making, reading and changing them; see `khop.distributed.rpc.keys` for what they hold.

A file is used only if it is a regular file of this user, or root's, that nobody else can read or
write. Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from khop.distributed.rpc.keys import (
    KEY_FILE_VARIABLE,
    MAX_CLIENTS,
    NAME,
    ClientKeys,
    JobKeys,
    KeyPair,
    ServerKeys,
)
from khop.errors import SecurityError

_FORMAT = "khop-keys"
_VERSION = 2
_READ = (1, 2)
_MAX_BYTES = 1 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_Keys = TypeVar("_Keys", ServerKeys, ClientKeys)


def write_keys(folder: str | Path, num_clients: int | None = None) -> list[Path]:
    """Makes the keys of a job and writes `server.key` and the clients' files.

    Args:
        folder: made, for its owner alone, if it does not exist.
        num_clients: a pair for each of so many clients, `client-0.key` and so on; None: one pair
            for all, `client.key`.

    Returns:
        The paths of the files, mode 0600, that of the servers first.

    Raises:
        ValueError: a number of clients that is none.
        SecurityError: the folder is another user's or others may enter it.
        FileExistsError: there are keys already; they are left alone.
        NotADirectoryError: it is a file, or below one.
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
    files = {"server.key": keys.for_servers().to_json()}
    files |= {f"{name}.key": keys.for_client(name).to_json() for name in names}
    with _private_folder(folder) as at:
        _write_all(at, folder, files)
    return [folder / name for name in files]


def add_client(folder: str | Path, name: str) -> Path:
    """Makes a pair for one more client and lets it in; servers notice when they are started again.

    Args:
        folder: with the job's `server.key`.
        name: of the client; its file is NAME.key.

    Returns:
        The path of its file, mode 0600.

    Raises:
        ValueError: a name that no file should have.
        SecurityError: there is no `server.key`, or it cannot be used.
        FileExistsError: there is a client of this name.
    """
    if not NAME.fullmatch(name) or name == "server":
        raise ValueError(f"a client's name is letters, digits, '.', '_' and '-' (got {name!r:.80})")
    folder = Path(folder)
    keys = _existing(folder)
    if name in keys.clients:
        raise FileExistsError(f"'{folder / 'server.key'}' has a client '{name}' already")
    pair = KeyPair.new()
    with _private_folder(folder) as at:
        client = ClientKeys(pair, keys.server_key).to_json()
        _write_all(at, folder, {f"{name}.key": client})
        _replace_server_key(at, folder, {**keys.clients, name: pair.public}, keys)
    return folder / f"{name}.key"


def revoke_client(folder: str | Path, name: str) -> None:
    """Shuts a client out; servers notice when they are started again with the new `server.key`.

    Raises:
        ValueError: no client of this name; lists those that there are.
        SecurityError: there is no `server.key`, or it cannot be used.
    """
    folder = Path(folder)
    keys = _existing(folder)
    if name not in keys.clients:
        raise ValueError(f"no client '{name[:80]}' to revoke: there are {sorted(keys.clients)}")
    left = {known: public for known, public in keys.clients.items() if known != name}
    with _private_folder(folder) as at:
        _replace_server_key(at, folder, left, keys)


def _existing(folder: Path) -> ServerKeys:
    keys = read_server_keys(folder / "server.key")
    assert keys is not None  # a file was named
    return keys


@contextlib.contextmanager
def _private_folder(folder: Path) -> Iterator[int]:
    """A descriptor of a folder that nobody else may enter."""
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        # A link to a folder is 'Not a directory' where links are not followed.
        why = "it is a link" if folder.is_symlink() else error.strerror
        raise SecurityError(
            f"'{folder}' is no folder, or a link to one: name a folder for the keys of the job "
            f"({why})"
        ) from None
    try:
        _check_private(os.fstat(at), folder, "chmod 700")
        yield at
        os.fsync(at)
    finally:
        os.close(at)


def _write_all(at: int, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes all files or none."""
    written: list[str] = []
    try:
        for name, content in files.items():
            _write(at, name, content, folder, written)
    except BaseException:
        for name in written:
            os.unlink(name, dir_fd=at)
        raise


def _replace_server_key(
    at: int, folder: Path, clients: Mapping[str, str], keys: ServerKeys
) -> None:
    """Puts another `server.key` in the place of the one that is there, whole at every moment."""
    name = f".server.key-{os.getpid()}"
    _write_all(at, folder, {name: ServerKeys(keys.server, clients).to_json()})
    os.rename(name, "server.key", src_dir_fd=at, dst_dir_fd=at)


def read_server_keys(path: str | Path | None = None) -> ServerKeys | None:
    """The keys of a graph server.

    Args:
        path: a `server.key`; None: the one that $KHOP_KEY_FILE names.

    Returns:
        The keys; None if no file is named.

    Raises:
        SecurityError: the file is missing, not for its owner alone, not a `server.key`, or damaged.
    """
    return _read(path, "server", ServerKeys)


def read_client_keys(path: str | Path | None = None) -> ClientKeys | None:
    """The keys of a trainer; like `read_server_keys`, from a `client.key`."""
    return _read(path, "client", ClientKeys)


def _write(
    at: int, name: str, content: Mapping[str, Any], folder: Path, written: list[str]
) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, 0o600, dir_fd=at)
    except FileExistsError:
        raise FileExistsError(
            f"'{folder / name}' exists: keys are never overwritten; remove it, or name another "
            "folder"
        ) from None
    written.append(name)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)  # whatever the umask
        json.dump({"format": _FORMAT, "version": _VERSION, **content}, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(descriptor)


def _check_private(status: os.stat_result, path: Path, remedy: str) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise SecurityError(f"'{path}' belongs to user {status.st_uid}, not to you: copy the keys")
    if status.st_mode & _OTHERS:
        raise SecurityError(
            f"'{path}' has mode {stat.S_IMODE(status.st_mode):04o}: others can read or change it. "
            f"If nobody has: {remedy} '{path}'; else make new keys with khop keygen"
        )


def _read(path: str | Path | None, role: str, kind: type[_Keys]) -> _Keys | None:
    named = path if path is not None else os.environ.get(KEY_FILE_VARIABLE)
    if not named:
        return None
    path = Path(named)
    content = _parse(_read_private(path), path)
    if content.get("role") != role:
        raise SecurityError(
            f"'{path}' is the key file of a {content.get('role')!r}, but a {role}'s is needed: "
            f"'{role}.key' as 'khop keygen' wrote it"
        )
    try:
        return kind.from_json(content)
    except SecurityError as error:
        raise SecurityError(f"'{path}' is damaged: {error}") from None


def _read_private(path: Path) -> bytes:
    """The file's bytes, if its owner alone can read it.

    Links are followed (Kubernetes mounts secrets as links): what is opened is checked, not the way
    there, so another user's link can only lead to a private file of our own.
    """
    try:
        # A FIFO must not keep us waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):  # whose text might quote the file's
        content = None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise SecurityError(f"'{path}' is not a key file: make one with khop keygen")
    version = content.get("version")
    if type(version) is not int or version not in _READ:
        raise SecurityError(
            f"'{path}' has version {version!r:.40}, but this khop reads {_READ[0]} to {_VERSION}"
        )
    return content
