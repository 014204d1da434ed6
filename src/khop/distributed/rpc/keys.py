"""CURVE keys of a job with graph servers. `khop keygen` makes them, the user distributes them.

The command line, graph servers and clients use them. Servers authenticate with the *server* pair,
to clients and to each other. They admit holders of the server pair or of a *client* pair. Files:

    server.key          for graph servers: the server pair, and the clients' public keys by name
    client.key          for all trainers: a client pair, and the server's public key
    client-0.key, ...   in place of client.key, one per trainer (`khop keygen --clients N`)

So a stolen client key gives access to servers, but cannot impersonate a server. With one pair per
client, servers distinguish clients: each client has its own queue, and its key can be revoked.
`khop keygen --revoke` removes a public key from `server.key`, and servers end the client's
connections within seconds. Files are JSON, readable by their owner alone. Secrets are in no `repr`,
log, error text, command line or environment. Child processes get them over their control lines.
Imports no torch.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import zmq
from zmq.utils import z85

from khop import log
from khop.distributed.rpc.endpoint import KeyPair
from khop.distributed.rpc.identity import CurveKeys
from khop.errors import SecurityError
from khop.loopback import is_loopback

KEY_FILE_VARIABLE = "KHOP_KEY_FILE"
"""Environment variable with the path of the key file, used if no path is passed."""

JOB_KEY_VARIABLE = "KHOP_JOB_KEY_FILE"
"""Environment variable with the path of the trainers' key file, which `khop run` sets."""

MAX_CLIENTS = 4096
"""Maximum number of clients in a `server.key`."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Pattern of a client's name, which is also the name of its file."""

_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_log = log.get(__name__)


@dataclass(frozen=True)
class ClientKeys:
    """Keys of a trainer: its own pair, which servers admit, and the servers' public key."""

    client: KeyPair
    server_key: str

    def credentials(self) -> KeyPair:
        """Return the key pair with which this process connects to servers."""
        return self.client

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object. It has secrets: write it to key files and control lines only."""
        return {
            "role": "client",
            "server": {"public": self.server_key},
            "client": asdict(self.client),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ClientKeys:
        """Build the keys from the object that `to_json` returned. SecurityError if malformed."""
        return cls(_pair(content, "client"), _key(content, "server", "public"))


@dataclass(frozen=True)
class ServerKeys:
    """Keys of a graph server.

    Attributes:
        server: the pair with which the server authenticates, also to other servers.
        clients: {name: public key} of the clients that the server admits.
    """

    server: KeyPair
    clients: Mapping[str, str]

    def curve(self) -> CurveKeys:
        pair, clients = self.server, list(self.clients.values())
        return {"public": pair.public, "secret": pair.secret, "clients": clients}

    def credentials(self) -> KeyPair:
        """Return the pair for connections to other servers of the job."""
        return self.server

    @property
    def server_key(self) -> str:
        return self.server.public

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object. It has secrets: write it to key files and control lines only."""
        return {"role": "server", "server": asdict(self.server), "clients": dict(self.clients)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ServerKeys:
        """Build the keys from the object that `to_json` returned. SecurityError if malformed."""
        if "clients" not in content:  # version 1 has one client pair
            return cls(_pair(content, "server"), {"client": _pair(content, "client").public})
        clients = content["clients"]
        if not isinstance(clients, Mapping) or len(clients) > MAX_CLIENTS:
            raise SecurityError(f"it must name at most {MAX_CLIENTS} clients' public keys")
        for name, public in clients.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise SecurityError("a client has a name that no key file can have")
            _check_key(public, f"the public key of {name}")
        return cls(_pair(content, "server"), dict(clients))


@dataclass(frozen=True)
class JobKeys:
    """All key pairs of a job: the servers' common pair, and each client's pair by name."""

    server: KeyPair
    clients: Mapping[str, KeyPair]

    @classmethod
    def new(cls, names: Sequence[str] = ("client",)) -> JobKeys:
        """Make new keys for a job, with a pair for each of the clients' `names`.

        Raises:
            SecurityError: this libzmq was built without CURVE.
        """
        return cls(KeyPair.new(), {name: KeyPair.new() for name in names})

    def for_servers(self) -> ServerKeys:
        return ServerKeys(self.server, {name: pair.public for name, pair in self.clients.items()})

    def for_client(self, name: str = "client") -> ClientKeys:
        return ClientKeys(self.clients[name], self.server.public)


def check_secured(
    host: str, keys: ServerKeys | ClientKeys | None, insecure: bool, server: str
) -> None:
    """Check that an address beyond loopback is used only with keys.

    Args:
        host: an address or name. '*' and '0.0.0.0' are all addresses of this machine.
        keys: the keys of the job, if it has any.
        insecure: whether the user accepts missing keys. Then only a warning is logged.
        server: name of the server that listens or is reached, for messages: 'graph server 0'.

    Raises:
        SecurityError: no keys, not `insecure`, and the address is not this machine's loopback.
    """
    if keys is not None or is_loopback(host):
        return
    if not insecure:
        raise SecurityError(
            f"{server} at '{host}' could be reached by anybody on the network, and there are no "
            "keys: make some with 'khop keygen DIR' and name them (key_file=, --key-file or "
            f"${KEY_FILE_VARIABLE}: server.key for servers, client.key for trainers), or pass "
            "insecure=True (--insecure) on a network that strangers cannot enter"
        )
    _log.warning(
        "insecure",
        f"{server} at '{host}' uses neither encryption nor authentication (insecure): whoever "
        "reaches this network can read the graph and feed trainers wrong batches",
        address=host,
    )


def _pair(content: Mapping[str, Any], name: str) -> KeyPair:
    pair = KeyPair(_key(content, name, "public"), _key(content, name, "secret"))
    if zmq.curve_public(pair.secret.encode()) != pair.public.encode():
        raise SecurityError(f"the public and secret keys of the {name} do not belong together")
    return pair


def _key(content: Mapping[str, Any], name: str, half: str) -> str:
    pair = content.get(name)
    key = pair.get(half) if isinstance(pair, Mapping) else None
    return _check_key(key, f"the {half} key of the {name}")


def _check_key(key: object, name: str) -> str:
    """Return a CURVE key if it is valid Z85 text.

    Raises:
        SecurityError: it is not. The message has the field's `name`, never the key itself.
    """
    if isinstance(key, str) and _Z85.fullmatch(key):
        with contextlib.suppress(Exception):  # struct.error at words of more than 32 bits
            if len(z85.decode(key)) == 32:
                return key
    raise SecurityError(f"{name} is not 40 characters of Z85")
