"""Where messages come from, as far as the transport proves it, and whose turn it is.

Work is counted and given turns by user, not by connection: nobody gets more by connecting often.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import zmq

_T = TypeVar("_T")


@dataclass(frozen=True)
class Source:
    """Who has sent a message.

    Attributes:
        connection: the socket that it came to, by its place, and ZeroMQ's name of the peer there.
        user: whose connection it is. The public key where each client has its own; else the key,
            if there is one, and the address; the process of a local socket.
        is_server: whether it may speak as a graph server: it has the servers' key, or is a process
            of this user on this machine; without keys anybody.
        is_proven: whether that is by a key, or by the operating system.
        has_own_key: whether `user` is a key that no other client has.
    """

    connection: tuple[int, bytes]
    user: str
    is_server: bool = False
    is_proven: bool = False
    has_own_key: bool = False


def source_of(
    place: int, peer: zmq.Frame, frame: zmq.Frame, curve: Mapping[str, Any] | None
) -> Source:
    """Where a message comes from.

    Args:
        place: of the socket that it came to.
        peer: ZeroMQ's name of the peer.
        frame: any frame of the message; libzmq attaches what it knows of the connection.
        curve: keys of the socket; None: it is a local one, or there are none.
    """
    connection = place, peer.bytes
    address = str(_property(frame, "Peer-Address"))
    key = _property(frame, "User-Id") if curve is not None else None
    if key is None or curve is None:
        # Of local sockets 'localhost:user:group:process'; their folder is this user's alone.
        is_local = address.startswith("localhost:")
        return Source(connection, address, is_server=True, is_proven=is_local)
    if key == curve["public"]:
        return Source(connection, f"server {address}", is_server=True, is_proven=True)
    if len(curve["clients"]) > 1:
        return Source(connection, key, has_own_key=True)
    return Source(connection, f"{key} {address}")


def _property(frame: zmq.Frame, name: str) -> str | None:
    try:
        return str(frame.get(name))
    except (zmq.ZMQError, ValueError):
        return None


class Turns(Generic[_T]):
    """What waits to be done, a queue for each user; users take turns.

    Args:
        most: entries that may wait for a user.
        most_bytes: of them together; one entry may always wait.

    Example:
        >>> turns = Turns[str](2, 100)
        >>> [turns.put(user, user, 1) for user in ("a", "a", "a", "b")]
        [True, True, False, True]
        >>> turns.take(), turns.take(), turns.take(), turns.take()
        ('a', 'b', 'a', None)
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._waiting: OrderedDict[str, deque[tuple[_T, int]]] = OrderedDict()
        self._nbytes: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, user: str, entry: _T, nbytes: int, is_bounded: bool = True) -> bool:
        """Adds an entry behind the others of its user; returns whether there was room.

        Args:
            user: whose it is.
            entry: the entry.
            nbytes: its size.
            is_bounded: whether there need be room for it.
        """
        queue = self._waiting.get(user)
        taken = self._nbytes.get(user, 0)
        is_full = queue is not None and (
            len(queue) >= self._most or taken + nbytes > self._most_bytes
        )
        if is_full and is_bounded:
            return False
        if queue is None:
            queue = self._waiting[user] = deque()
        queue.append((entry, nbytes))
        self._nbytes[user] = taken + nbytes
        return True

    def take(self) -> _T | None:
        """The oldest entry of the user whose turn it is; None if nothing waits."""
        if not self._waiting:
            return None
        user, queue = self._waiting.popitem(last=False)
        entry, nbytes = queue.popleft()
        if queue:
            self._waiting[user] = queue  # behind the others
            self._nbytes[user] -= nbytes
        else:
            del self._nbytes[user]
        return entry
