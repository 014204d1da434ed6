"""Senders of messages, as far as the transport authenticates them.

Run by graph servers. Work is counted and queued by user, not by connection, so more connections
give a user no more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from khop.distributed.rpc.partition_handler import pack_or_refuse
from khop.loopback import is_loopback
from khop.typing import Array


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
