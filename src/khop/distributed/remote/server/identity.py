"""Senders of messages, as far as the transport authenticates them, and queues of their work.

Run by graph servers. Work is counted and queued by user, not by connection, so more connections
give a user no more of it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import zmq

from khop.distributed.rpc.partition_handler import pack_or_refuse
from khop.loopback import is_loopback
from khop.typing import Array

_T = TypeVar("_T")


@dataclass(frozen=True)
class Source:
    """Sender of a message.

    Attributes:
        connection: index of the socket where it arrived, and ZeroMQ's name of the peer there.
        user: user of the connection. The public key if each client has its own; else the key, if
            there is one, and the address, where all loopback addresses are one; of a local socket,
            the process.
        is_server: whether it may act as a graph server: it has the servers' key, or is a process
            of this user on this machine; without keys, any process.
        is_proven: whether a key or the operating system proves this.
        has_own_key: whether `user` is a key that no other client has.
    """

    connection: tuple[int, bytes]
    user: str
    is_server: bool = False
    is_proven: bool = False
    has_own_key: bool = False


class Requester:
    """Sender of a request, which gets the replies.

    Args:
        source: connection and user of the sender.
        request_id: id of the request, chosen by the sender. If None, there was none.
        send_frames: sends frames; called with the two parts of `Source.connection`, and them.
    """

    __slots__ = ("_send_frames", "request_id", "source")

    def __init__(
        self,
        source: Source,
        request_id: int | None,
        send_frames: Callable[[int, bytes, Sequence[Any]], None],
    ) -> None:
        self.source = source
        self.request_id = request_id
        self._send_frames = send_frames

    def send(self, header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Send a message; dropped if the sender of the request has disconnected.

        A message larger than clients accept becomes an error.
        """
        self._send_frames(*self.source.connection, pack_or_refuse(header, arrays))


def source_of(
    place: int, peer: zmq.Frame, frame: zmq.Frame, curve: Mapping[str, Any] | None
) -> Source:
    """Return the sender of a message.

    Args:
        place: index of the socket where it arrived.
        peer: ZeroMQ's name of the peer.
        frame: any frame of the message; libzmq attaches properties of the connection.
        curve: keys of the socket. None if it is a local one, or without keys.
    """
    connection = place, peer.bytes
    address = str(_property(frame, "Peer-Address"))
    if is_loopback(address):
        address = "loopback"  # a process of this machine has all 16 million of them
    key = _property(frame, "User-Id") if curve is not None else None
    if key is None or curve is None:
        # 'localhost:user:group:process' for local sockets; only this user can enter their folder.
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
    """Queues of pending work, one for each user, served round-robin.

    Args:
        most: maximum number of entries in a user's queue.
        most_bytes: maximum bytes of these. A single entry is always accepted.

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
        """Append an entry to its user's queue; return whether there was room.

        Args:
            user: the user.
            entry: the entry.
            nbytes: its size.
            is_bounded: whether the bounds apply.
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
        """Remove and return the oldest entry of the next user; None if all queues are empty."""
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
