"""Where a server is reached, and with which keys. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Endpoint:
    """Where a partition is served; `server_key` is its CURVE public key, None without CURVE."""

    address: str
    server_key: str | None = None


@dataclass(frozen=True)
class Credentials:
    """The job's CURVE key pair, Z85 text."""

    public: str
    secret: str = field(repr=False)


EndpointUpdate: TypeAlias = Endpoint | str
"""Where a server is now, or why it has ended."""
