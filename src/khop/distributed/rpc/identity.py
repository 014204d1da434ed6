"""Senders of messages, as far as the transport authenticates them.

Run by graph servers, and by partition servers for requests that write. Work is counted and queued
by user, not by connection, so more connections give a user no more of it. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from khop.loopback import is_loopback


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
        key: public key of the connection. If None, it has none.
    """

    connection: tuple[int, bytes]
    user: str
    is_server: bool = False
    is_proven: bool = False
    has_own_key: bool = False
    key: str | None = None


NOBODY = Source((-1, b""), "")
"""Sender of a request whose sender does not matter."""


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
        return Source(connection, f"server {address}", is_server=True, is_proven=True, key=key)
    if len(curve["clients"]) > 1:
        return Source(connection, key, has_own_key=True, key=key)
    return Source(connection, f"{key} {address}", key=key)


def _property(frame: zmq.Frame, name: str) -> str | None:
    try:
        return str(frame.get(name))
    except (zmq.ZMQError, ValueError):
        return None
