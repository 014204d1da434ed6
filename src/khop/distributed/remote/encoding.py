"""Encoding of replies, texts and events of graph servers; both sides use it. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from khop import codec
from khop.distributed.remote.directory_messages import Table
from khop.distributed.remote.session_messages import EVENTS
from khop.distributed.rpc.protocol import Request
from khop.errors import ProtocolError
from khop.typing import Array

# Fields of a reply that all have.
_ENVELOPE = ("id", "incarnation", "served")


def read_table(arrays: Sequence[Array], where: str) -> Table:
    """Read the directory's table from the arrays of its reply.

    Raises:
        ProtocolError: malformed; names the server.
    """
    return codec.from_json(Table, read_text(arrays, where), f"{where} sent a table that is none")


def read_reply(request: Request, header: Mapping[str, Any], where: str) -> Any:
    """Read a server's reply to a request, of type `request.reply`.

    Raises:
        ProtocolError: malformed; names the server.
    """
    fields = {name: value for name, value in header.items() if name not in _ENVELOPE}
    return codec.from_json(request.reply, fields, f"{where} answered '{request.op}' with nonsense")


def text_array(content: Any) -> Array:
    """Return JSON text as an array, uint8, for content that may be longer than a header."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def text_bytes(arrays: Sequence[Array]) -> bytes:
    """Return the bytes of the only text that a message carries.

    Raises:
        ProtocolError: it carries something else.
    """
    if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 1:
        raise ProtocolError("a message must carry one text")
    return arrays[0].tobytes()


def read_text(arrays: Sequence[Array], where: str) -> Any:
    """Return the content of a `text_array`.

    Raises:
        ProtocolError: it is not JSON; names the server.
    """
    try:
        return json.loads(text_bytes(arrays))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{where} sent what is not JSON: {str(error)[:100]}") from None


def event_header(event: Any) -> dict[str, Any]:
    """Return the header of an event."""
    return {"event": event.event, **codec.to_json(event)}


def read_event(header: Mapping[str, Any], where: str) -> Any:
    """Read an event of a session, one of `EVENTS`, from its header.

    Raises:
        ProtocolError: malformed, or not an event; names the server.
    """
    kind = EVENTS.get(str(header.get("event")))
    if kind is None:
        raise ProtocolError(f"{where} speaks of an event '{str(header.get('event'))[:40]!r}'")
    fields = {name: value for name, value in header.items() if name != "event"}
    return codec.from_json(kind, fields, f"{where} sent an event '{kind.__name__}'")
