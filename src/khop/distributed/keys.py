"""Keys of a job whose graph servers stand apart: made once by `khop keygen`, carried by hand.

A job has two CURVE key pairs. Servers prove themselves with the *server* pair and let in whoever
has the *client* pair. There are two files:

    server.key   both pairs, for graph servers, which also talk to each other
    client.key   the client pair and the server's public key, for trainers

so a stolen `client.key` lets somebody ask servers, but not be one. Files are JSON, readable by
their owner alone. Secrets go from a file to a socket: they are in no `repr`, log, error text,
command line or environment, and reach child processes over their control lines.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import zmq
from zmq.utils import z85

from khop import log
from khop.distributed.transport import Credentials, Endpoint
from khop.errors import SecurityError

KEY_FILE_VARIABLE = "KHOP_KEY_FILE"
"""Environment variable that names the key file where none is given."""

_FORMAT = "khop-keys"
_VERSION = 1
_MAX_BYTES = 1 << 16
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_log = log.get(__name__)


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, Z85 text of 40 characters each."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> KeyPair:
        """A fresh pair.

        Raises:
            SecurityError: this libzmq has no CURVE.
        """
        if not zmq.has("curve"):
            raise SecurityError(
                "this libzmq was built without CURVE: install pyzmq's own wheel "
                "(pip install --force-reinstall pyzmq)"
            )
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


@dataclass(frozen=True)
class ClientKeys:
    """What a trainer has: its own pair, and how it knows a server.

    Attributes:
        client: the pair that servers let in.
        server_key: public key of the servers.
    """

    client: KeyPair
    server_key: str

    def credentials(self) -> Credentials:
        """What `PartitionClient` takes."""
        return Credentials(self.client.public, self.client.secret)

    def endpoint(self, address: str) -> Endpoint:
        """A server of the job at an address."""
        return Endpoint(address, self.server_key)

    def to_json(self) -> dict[str, Any]:
        """As JSON object, secrets included: for a key file or a control line, nothing else."""
        return {
            "role": "client",
            "server": {"public": self.server_key},
            "client": _pair_json(self.client),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ClientKeys:
        """From what `to_json` returned, after its journey; SecurityError if malformed."""
        return cls(_pair(content, "client"), _public(content, "server"))


@dataclass(frozen=True)
class ServerKeys:
    """What a graph server has: both pairs.

    Attributes:
        server: the pair that it proves itself with.
        client: the pair that it lets in, and has itself towards other servers.
    """

    server: KeyPair
    client: KeyPair

    @classmethod
    def new(cls) -> ServerKeys:
        """Fresh keys for a job; SecurityError if this libzmq has no CURVE."""
        return cls(KeyPair.new(), KeyPair.new())

    def curve(self) -> dict[str, str]:
        """What `PartitionServer` takes."""
        return {
            "public": self.server.public,
            "secret": self.server.secret,
            "client": self.client.public,
        }

    def for_clients(self) -> ClientKeys:
        """What the job's trainers have; other servers are reached with it, too."""
        return ClientKeys(self.client, self.server.public)

    def credentials(self) -> Credentials:
        """What `PartitionClient` takes to reach other servers of the job."""
        return self.for_clients().credentials()

    @property
    def server_key(self) -> str:
        """Public key of the servers."""
        return self.server.public

    def endpoint(self, address: str) -> Endpoint:
        """Another server of the job at an address."""
        return Endpoint(address, self.server_key)

    def to_json(self) -> dict[str, Any]:
        """As JSON object, secrets included: for a key file or a control line, nothing else."""
        return {
            "role": "server",
            "server": _pair_json(self.server),
            "client": _pair_json(self.client),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ServerKeys:
        """From what `to_json` returned, after its journey; SecurityError if malformed."""
        return cls(_pair(content, "server"), _pair(content, "client"))


_Keys = TypeVar("_Keys", ServerKeys, ClientKeys)


def write_keys(folder: str | Path) -> tuple[Path, Path]:
    """Makes the keys of a job and writes `server.key` and `client.key`.

    Args:
        folder: made, for its owner alone, if it does not exist.

    Returns:
        The paths of the two files, mode 0600.

    Raises:
        SecurityError: the folder is another user's or others may enter it.
        FileExistsError: there are keys already; they are left alone.
        NotADirectoryError: it is a file, or below one, or a link.
    """
    keys = ServerKeys.new()
    folder = Path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"'{error.filename}' is no folder, or a link to one: name a folder for the keys of the "
            "job, which is made if it does not exist"
        ) from None
    try:
        _check_private(os.fstat(at), folder, "chmod 700")
        written: list[str] = []
        try:
            for name, content in (("server.key", keys), ("client.key", keys.for_clients())):
                _write(at, name, content.to_json(), folder, written)
        except BaseException:  # both or none
            for name in written:
                os.unlink(name, dir_fd=at)
            raise
        os.fsync(at)
    finally:
        os.close(at)
    return folder / "server.key", folder / "client.key"


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


def check_secured(
    host: str, keys: ServerKeys | ClientKeys | None, insecure: bool, what: str
) -> None:
    """Refuses to listen at, or talk to, an address that strangers can reach without keys.

    Args:
        host: an address or name; '*' and '0.0.0.0' are all of a machine's.
        keys: of the job; None: there are none.
        insecure: strangers are kept out by other means; a warning is logged.
        what: that listens or is reached, for messages: 'graph server 0'.

    Raises:
        SecurityError: no keys, not insecure, and the address is not this machine's loopback.
    """
    if keys is not None or is_loopback(host):
        return
    if not insecure:
        raise SecurityError(
            f"{what} at '{host}' could be reached by anybody on the network, and there are no "
            "keys: make some with 'khop keygen DIR' and name them (key_file=, --key-file or "
            f"${KEY_FILE_VARIABLE}: server.key for servers, client.key for trainers), or pass "
            "insecure=True (--insecure) on a network that strangers cannot enter"
        )
    _log.warning(
        "insecure",
        f"{what} at '{host}' uses neither encryption nor authentication (insecure): whoever "
        "reaches this network can read the graph and feed trainers wrong batches",
        address=host,
    )


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's loopback.

    Of names only `localhost` counts: what others stand for is known to the resolver alone, and may
    be another address when it is used.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
    if content.get("version") != _VERSION:
        raise SecurityError(
            f"'{path}' has version {content.get('version')!r}, but this khop reads {_VERSION}"
        )
    return content


def _pair_json(pair: KeyPair) -> dict[str, str]:
    return {"public": pair.public, "secret": pair.secret}


def _public(content: Mapping[str, Any], name: str) -> str:
    return _key(content, name, "public")


def _pair(content: Mapping[str, Any], name: str) -> KeyPair:
    pair = KeyPair(_public(content, name), _key(content, name, "secret"))
    if zmq.curve_public(pair.secret.encode()) != pair.public.encode():
        raise SecurityError(f"the public and secret keys of the {name} do not belong together")
    return pair


def _key(content: Mapping[str, Any], name: str, half: str) -> str:
    """A key; error texts name it and do not quote it."""
    pair = content.get(name)
    key = pair.get(half) if isinstance(pair, Mapping) else None
    if not isinstance(key, str) or not _Z85.fullmatch(key) or not _is_z85(key):
        raise SecurityError(f"the {half} key of the {name} is not 40 characters of Z85")
    return key


def _is_z85(key: str) -> bool:
    """Whether each five characters are a word of 32 bits."""
    try:
        return len(z85.decode(key)) == 32
    except Exception:  # struct.error on words that are too large
        return False
