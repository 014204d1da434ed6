"""The directory that server 0 keeps: servers, clients, and what clients tell each other.

Soft state. Everybody registers again every second; what is silent is lost after a while, and a
directory that was started again knows all that matters two seconds later. Who comes second with
another folder, another number of servers, or a rank that a living process has, is refused.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from khop import log
from khop.distributed.fields import index, integer, number, ranks, text
from khop.errors import RendezvousError

_log = log.get(__name__)

MAX_PEERS = 2048
MAX_WAIT = 10.0
_MAX_NAMES = 4096
_MAX_WAITERS = 4 * MAX_PEERS
_MAX_VALUE = 64 << 10
_MAX_TOLD = 256 << 20
# A rank's process that was silent for so long is dead if another says to have its rank.
_REPLACED_AFTER = 1.5

Send = Callable[[Mapping[str, Any]], None]


@dataclass
class _Peer:
    """A server or client.

    Attributes:
        told: what it says of itself.
        since: when it was first heard of.
        heard: when it was last heard of.
        gone: whether it has said goodbye, or was silent for too long.
        contender: another process that says to have this rank, and since when.
    """

    incarnation: str
    told: dict[str, Any]
    since: float
    heard: float
    gone: bool = False
    contender: tuple[str, float] | None = None

    def entry(self, now: float) -> dict[str, Any]:
        """What others are told of it."""
        silent = round(now - self.heard, 2)
        return {"incarnation": self.incarnation, **self.told, "silent": silent, "gone": self.gone}


@dataclass
class _Waiter:
    """A client that waits for what others tell.

    Attributes:
        since: when it came. Who has not been heard of since may be the dead predecessor of somebody
            who is about to come: all clients of a job are started again together.
    """

    name: str
    ranks: list[int]
    since: float
    until: float
    send: Send = field(repr=False)


class Directory:
    """The directory's table, and the answers to its requests.

    Args:
        num_servers: how many servers there shall be.
        num_clients: how many clients; 0: any number, that come and go.
        num_parts: of the folder.
        fingerprint: of the folder.
        lost_after: seconds of silence after which a client counts as lost.
        clock: tells the time, in seconds.
    """

    def __init__(
        self,
        num_servers: int,
        num_clients: int,
        num_parts: int,
        fingerprint: str,
        lost_after: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_servers = num_servers
        self._num_clients = num_clients
        self._num_parts = num_parts
        self._fingerprint = fingerprint
        self._lost_after = lost_after
        self._clock = clock
        self.incarnation = uuid.uuid4().hex
        self._servers: dict[int, _Peer] = {}
        self._clients: dict[int, _Peer] = {}
        self._told: dict[str, dict[int, str]] = {}  # as JSON
        self._told_bytes = 0
        self._waiters: list[_Waiter] = []

    @property
    def finished(self) -> bool:
        """Whether all clients have come and gone."""
        clients = self._clients
        expected = range(self._num_clients)
        return self._num_clients > 0 and all(r in clients and clients[r].gone for r in expected)

    def lookup(self) -> dict[str, Any]:
        """What is known."""
        now = self._clock()
        return {
            "directory": self.incarnation,
            "num_servers": self._num_servers,
            "num_clients": self._num_clients,
            "num_parts": self._num_parts,
            "fingerprint": self._fingerprint,
            "servers": {str(r): s.entry(now) for r, s in sorted(self._servers.items())},
            "clients": {str(r): c.entry(now) for r, c in sorted(self._clients.items())},
            "finished": self.finished,
        }

    def register(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Takes note of a server or client.

        Raises:
            RendezvousError: it contradicts what is known.
        """
        role = _role(header)
        self._check_numbers(header, role)
        if role == "server":
            told = _server_told(header, self._num_parts)
            rank = index(header, "rank", self._num_servers)
            peers = self._servers
            if told["fingerprint"] != self._fingerprint:
                raise RendezvousError(
                    f"graph server {rank} has opened another partition folder "
                    f"({told['fingerprint']}) than server 0 ({self._fingerprint}): copy the same "
                    "folder to all machines"
                )
            self._take_gone(header)
        else:
            told = {"name": text(header, "name", 256), "pid": integer(header, "pid", 0)}
            rank = index(header, "rank", self._num_clients or MAX_PEERS)
            peers = self._clients
        incarnation = text(header, "incarnation", 64)
        if not self._enter(role, peers, rank, incarnation, told):
            return {"contending": True}
        return self.lookup()

    def _check_numbers(self, header: Mapping[str, Any], role: str) -> None:
        for name, known in (
            ("num_servers", self._num_servers),
            ("num_clients", self._num_clients),
        ):
            given = integer(header, name, 0, MAX_PEERS)
            if given != known:
                raise RendezvousError(
                    f"{role} {header.get('rank')} says {name}={given}, but server 0 was started "
                    f"with {name}={known}: they must be the same everywhere"
                )

    def _enter(
        self, role: str, peers: dict[int, _Peer], rank: int, incarnation: str, told: dict[str, Any]
    ) -> bool:
        """Enters a peer; False if another may still have its rank."""
        now, known = self._clock(), peers.get(rank)
        if known is not None and known.incarnation == incarnation:
            known.told, known.heard, known.gone = told, now, False
            return True
        if known is not None and not known.gone and now - known.heard <= _REPLACED_AFTER:
            same_place = role == "server" and known.told["addresses"] == told["addresses"]
            if not same_place:  # else the predecessor has left it
                return self._contend(role, rank, known, incarnation)
        peers[rank] = _Peer(incarnation, told, now, now)
        if role == "client":
            self._forget(rank)
        _log.info(f"{role}-registered", f"{role} {rank} has registered", pid=told["pid"])
        return True

    def _contend(self, role: str, rank: int, known: _Peer, incarnation: str) -> bool:
        """Another process says to have a rank: waits until the known one is heard of or is not."""
        if known.contender is None or known.contender[0] != incarnation:
            known.contender = incarnation, self._clock()
        elif known.heard > known.contender[1]:
            raise RendezvousError(
                f"there is a {role} {rank} already, which is alive (pid {known.told['pid']}): each "
                "must have a rank of its own"
            )
        return False

    def _forget(self, rank: int) -> None:
        """What a client's predecessor told is not told by its successor."""
        for values in self._told.values():
            self._told_bytes -= len(values.pop(rank, ""))

    def _take_gone(self, header: Mapping[str, Any]) -> None:
        """Clients that have gone, as a server remembers them; a new directory does not."""
        gone = header.get("gone")
        for name, incarnation in gone.items() if isinstance(gone, dict) else ():
            rank = int(name) if name.isdecimal() else self._num_clients
            is_news = rank < self._num_clients and rank not in self._clients
            if is_news and isinstance(incarnation, str):
                told = {"name": f"client {rank}", "pid": 0}
                now = self._clock()
                self._clients[rank] = _Peer(incarnation[:64], told, now, now, gone=True)

    def goodbye(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """A server or client ends."""
        peers = self._servers if _role(header) == "server" else self._clients
        rank = integer(header, "rank", 0, MAX_PEERS)
        known = peers.get(rank)
        if known is not None and known.incarnation == header.get("incarnation"):
            if peers is self._servers:
                del peers[rank]
            else:
                known.gone = True
            _log.info(f"{header['role']}-left", f"{header['role']} {rank} has said goodbye")
        return {}

    def tell(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Takes in what a client publishes.

        Raises:
            RendezvousError: too much, or another process has the client's rank by now.
        """
        rank, name = integer(header, "rank", 0, MAX_PEERS), text(header, "name", 512)
        client = self._clients.get(rank)
        if client is not None:
            if client.incarnation != header.get("incarnation"):
                raise RendezvousError(f"another process is client {rank} by now")
            client.heard = self._clock()
        value = json.dumps(header.get("value"))
        if len(value) > _MAX_VALUE:
            raise RendezvousError(f"'{name}' is told with more than {_MAX_VALUE} bytes")
        values = self._told.setdefault(name, {})
        self._told_bytes += len(value) - len(values.get(rank, ""))
        values[rank] = value
        while len(self._told) > _MAX_NAMES or self._told_bytes > _MAX_TOLD:
            oldest = next(iter(self._told))  # of a loader made long ago
            self._told_bytes -= sum(map(len, self._told.pop(oldest).values()))
        self._answer_those_told(name)
        return {}

    def hear(self, header: Mapping[str, Any], send: Send) -> None:
        """Answers, by `send`, when all have told what is asked for, or when the time is over.

        A value counts if its client has been heard of since the one that asks has come.
        """
        wanted = ranks(header, "ranks", MAX_PEERS)
        wait = number(header, "wait", 0.0, MAX_WAIT)
        if len(self._waiters) >= _MAX_WAITERS:
            raise RendezvousError(f"{_MAX_WAITERS} clients wait here already: ask again later")
        asker = self._clients.get(integer(header, "rank", 0, MAX_PEERS))
        came = asker.since if asker and asker.incarnation == header.get("incarnation") else 0.0
        name = text(header, "name", 512)
        waiter = _Waiter(name, wanted, came, self._clock() + wait, send)
        self._waiters.append(waiter)
        if wait == 0 or self._has_heard(waiter):
            self._answer(waiter)

    def _answer_those_told(self, name: str) -> None:
        for waiter in [w for w in self._waiters if w.name == name and self._has_heard(w)]:
            self._answer(waiter)

    def _has_heard(self, waiter: _Waiter) -> bool:
        told = self._told.get(waiter.name, {})
        return all(rank in told for rank in waiter.ranks) and all(
            self._is_there(rank, waiter) for rank in waiter.ranks
        )

    def _is_there(self, rank: int, waiter: _Waiter) -> bool:
        client = self._clients.get(rank)  # None: this directory is younger than both
        return client is None or client.heard >= waiter.since

    def _answer(self, waiter: _Waiter) -> None:
        self._waiters.remove(waiter)
        told = self._told.get(waiter.name, {})
        heard = [r for r in waiter.ranks if r in told and self._is_there(r, waiter)]
        waiter.send({"told": {str(r): json.loads(told[r]) for r in heard}})

    def tick(self) -> None:
        """Notices who is silent, and whose time is over. Called several times a second."""
        now = self._clock()
        for waiter in [w for w in self._waiters if now >= w.until or self._has_heard(w)]:
            self._answer(waiter)
        for rank, client in self._clients.items():
            if not client.gone and now - client.heard > self._lost_after:
                client.gone = True
                silent = now - client.heard
                _log.warning("client-lost", f"client {rank} is lost: silent for {silent:.0f} s")


def _role(header: Mapping[str, Any]) -> str:
    role = text(header, "role", 16)
    if role not in ("server", "client"):
        raise RendezvousError(f"role '{role}' is neither 'server' nor 'client'")
    return role


def _server_told(header: Mapping[str, Any], num_parts: int) -> dict[str, Any]:
    addresses = header.get("addresses")
    if not isinstance(addresses, dict) or not isinstance(addresses.get("tcp"), str):
        raise RendezvousError("a server registers without its address")
    kept = {k: str(v)[:256] for k, v in addresses.items() if k in ("tcp", "ipc") and v}
    parts = ranks(header, "parts", num_parts)
    return {
        "parts": parts,
        "addresses": kept,
        "host": text(header, "host", 64),
        "fingerprint": text(header, "fingerprint", 64),
        "pid": integer(header, "pid", 0),
    }
