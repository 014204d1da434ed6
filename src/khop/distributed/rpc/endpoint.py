"""Addresses and keys with which any process reaches a server. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import zmq

from khop.errors import SecurityError


@dataclass(frozen=True)
class Endpoint:
    """Address of a server, and its CURVE public key as Z85 text.

    If the key is None, CURVE is not used.
    """

    address: str
    server_key: str | None = None


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, Z85 text of 40 characters each.

    A process uses it as server, or as its credentials to connect to servers.
    """

    public: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> KeyPair:
        """Make a new key pair.

        Raises:
            SecurityError: this libzmq was built without CURVE.
        """
        if not zmq.has("curve"):
            raise SecurityError(
                "this libzmq was built without CURVE: install pyzmq's own wheel "
                "(pip install --force-reinstall pyzmq)"
            )
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


EndpointUpdate: TypeAlias = Endpoint | str
"""The new endpoint of a server, or the reason why the server has ended."""
