"""Addresses and keys with which any process reaches a server. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Endpoint:
    """Address of a server, and its CURVE public key as Z85 text (None without CURVE)."""

    address: str
    server_key: str | None = None


@dataclass(frozen=True)
class Credentials:
    """CURVE key pair with which a process connects to servers, Z85 text."""

    public: str
    secret: str = field(repr=False)


EndpointUpdate: TypeAlias = Endpoint | str
"""The new endpoint of a server, or the reason for which it has ended."""
