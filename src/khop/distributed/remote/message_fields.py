"""Limits, field types and secrets that requests to graph servers have in common.

Graph servers, clients and receivers use it. Imports no torch.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated

from khop.channel.message import FRAME_BYTES
from khop.codec import AtMost, Between, Distinct, Id

MAX_CLIENTS = 2048
MAX_SERVERS = 512
MAX_WAIT = 10.0
MAX_DEPTH = 4096
CHUNK_BYTES = FRAME_BYTES  # of a batch, in one event
LEAST_CHUNK = 4096  # minimum bytes that a chunk counts for against a session's credits
MAX_ROWS = 4 << 20  # of a reply; more rows are requested in pieces
MAX_WORKERS = 256
MAX_SEEDS = 1 << 20  # of a batch
MAX_VALUE = 64 << 10  # bytes of a value that a client publishes

# All clients' names are sent to every server, every second.
ShortName = Annotated[str, AtMost(64)]
Address = Annotated[str, AtMost(256)]
Digest = Annotated[str, AtMost(64)]
Pid = Annotated[int, Between(0, 2**31)]
Seconds = Annotated[float, Between(0.0, 1e9)]
ServerRank = Annotated[int, Between(0, MAX_SERVERS - 1)]
ClientRank = Annotated[int, Between(0, MAX_CLIENTS - 1)]
ServerCount = Annotated[int, Between(1, MAX_SERVERS)]
ClientCount = Annotated[int, Between(0, MAX_CLIENTS)]
Part = Annotated[int, Between(0, 65_535)]
Parts = Annotated[list[Part], AtMost(65_536), Distinct()]
BatchIds = Annotated[list[Id], AtMost(16 * MAX_DEPTH), Distinct()]
Label = Annotated[str, AtMost(512)]


def new_secret() -> str:
    """Return a new secret, with which a process or loader authenticates."""
    return secrets.token_hex(16)


def incarnation_of(secret: str) -> str:
    """Return the hash of a secret, which others may have: it identifies the secret's owner."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()[:32]
