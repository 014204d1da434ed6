"""Base of the handlers of requests, and the table of the requests that a server answers.

Partition servers, output servers and graph servers use it. Imports no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Literal

from khop import _native
from khop.channel.message import MAX_ARRAYS, MESSAGE_BYTES, pack, unpack
from khop.codec import INT64
from khop.data.steps import run
from khop.data.tickets import Ticket
from khop.distributed.rpc.identity import NOBODY, Source
from khop.distributed.rpc.protocol import (
    RequestFields,
    check_carried,
    describe_error,
    peek_op,
    read_request,
)
from khop.errors import ProtocolError
from khop.trace.requests import served_since
from khop.typing import Array

# A refusal does not parse headers longer than this.
_MAX_REFUSED = 16 << 10

Steps = Generator["list[Ticket] | None", None, list[Array]]
"""Generator that makes a reply in slices of some 20 ms, and returns the reply's arrays.

Between slices, it yields None, or tickets. The next slice can begin once these tickets are done.
"""

Answer = Callable[[Any, list[Array]], "list[Array] | Steps"]
"""Function of a request and its arrays. It returns the reply's arrays, or `Steps` to make them."""


def finish(reply: list[Array] | Steps) -> list[Array]:
    """Return a reply's arrays. If they are made in slices (a generator), run all slices."""
    return reply if isinstance(reply, list) else run(reply)


Access = Literal["read", "read_state", "write"]
"""Class of a request.

`read`: depends on the request and the folder alone. Any server of the part answers, in any thread,
and the request may be sent again. `write`: changes the state of the part's primary, and is applied
once. `read_state`: reads this state. The part's writer thread runs the last two, in order.
"""


@dataclass(frozen=True)
class RequestType:
    """Description of a request that a server answers: its class, its bounds and its function.

    Attributes:
        message: dataclass of its fields, with an `op`.
        access: class of the request.
        answer: function that answers the request, see `Answer`. A write in slices is finished even
            if its sender disconnects. Between slices, other requests can see it half done.
        carries: maximum bytes of the arrays of a request.
        arrays: maximum number of these arrays.
    """

    message: type[RequestFields]
    access: Access
    answer: Answer
    carries: int = MESSAGE_BYTES
    arrays: int = MAX_ARRAYS


class NotYet(Exception):
    """Raised for a write that arrives before an earlier write of the same client."""


class FrameHandler:
    """Base of all request handlers: calls the function for the request's name.

    Args:
        subject: name of the data that is served: 'partition'.
        index: index that requests must have as `part`. If None, they must have none.
        types: the requests that are answered.
        incarnation: text for the attribute. If None, a new random one.

    Attributes:
        incarnation: random text in each reply, by which clients notice that a server is another
            process than before.
        stop: flag that ends the kernels that work on requests, once it is set.
    """

    def __init__(
        self,
        subject: str,
        index: int | None,
        types: Sequence[RequestType],
        incarnation: str | None = None,
    ) -> None:
        self._subject = subject
        self._index = index
        self._types = {t.message.op: t for t in types}
        # Whether a request has tighter bounds than all messages. Its name is then read first.
        self._bounded = any((t.carries, t.arrays) != (MESSAGE_BYTES, MAX_ARRAYS) for t in types)
        self.incarnation = incarnation or os.urandom(8).hex()
        self.stop = _native.StopFlag()

    @property
    def names(self) -> list[str]:
        """Names of the requests that this server answers."""
        return list(self._types)

    def __call__(self, frames: list[Any]) -> list[Any]:
        """Return the frames of the reply to a request's frames. Never raises."""
        return finish(self.steps(frames))

    def steps(
        self, frames: list[Any], source: Source = NOBODY
    ) -> Generator[list[Ticket] | None, None, list[Any]]:
        """Return the frames of the reply. Between slices, yield as `Steps`. Never raises."""
        began = monotonic_ns()
        header: dict[str, Any] = {"id": None, "incarnation": self.incarnation}
        try:
            peeked = self._bounded and self._types.get(peek_op(frames[0]) if frames else "")
            if peeked:
                check_carried(frames, peeked.message.op, peeked.carries, peeked.arrays)
            fields, arrays = unpack(frames)
            request_id = fields.get("id")
            if type(request_id) is not int or not 0 <= request_id <= INT64:
                raise ProtocolError(
                    "a request has no 'id', by which the sender recognises the reply"
                )
            header["id"] = request_id
            request_type = self._types.get(str(fields.get("op")))
            if request_type is None or (self._bounded and request_type is not peeked):
                raise ProtocolError(f"no such request '{str(fields.get('op'))[:100]}'")
            request = read_request(request_type.message, fields)
            if fields.get("part") != self._index:
                own = "" if self._index is None else f" {self._index}"
                raise ProtocolError(f"this is {self._subject}{own}")
            reply = self._answer(request_type, request, arrays, fields, source)
            if not isinstance(reply, list):
                reply = yield from reply
            if fields.get("timed") is True:
                header["served"] = served_since(began)
            return pack(header, reply)
        except NotYet:
            return pack({**header, "again": True}, [])
        except Exception as error:
            if header["id"] is None:  # it was refused unread
                header["id"] = id_of(frames)
            return pack({**header, "error": describe_error(error)}, [])

    def _answer(
        self,
        request_type: RequestType,
        request: RequestFields,
        arrays: list[Array],
        header: Mapping[str, Any],
        source: Source,
    ) -> list[Array] | Steps:
        return request_type.answer(request, arrays)


def refusal(frames: list[Any], why: Exception) -> list[Any]:
    """Return the frames of an error (`why`) as reply to a request, which is not read in full.

    Fast, and never raises.
    """
    return pack({"id": id_of(frames), "error": describe_error(why)}, [])


def id_of(frames: list[Any]) -> int | None:
    """Return the id in a request's header, without other checks. None if it has none.

    Fast, and never raises.
    """
    if not frames or len(frames[0]) > _MAX_REFUSED:
        return None
    try:
        request_id = json.loads(bytes(frames[0]))["id"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    return _checked_id(request_id)


def pack_or_refuse(header: Mapping[str, Any], arrays: Sequence[Array]) -> list[Any]:
    """Return the frames of a reply or event. If it is too large, return an error's frames."""
    try:
        return pack(header, arrays)
    except (ProtocolError, ValueError, RecursionError) as error:
        return pack({"id": _checked_id(header.get("id")), "error": describe_error(error)}, [])


def _checked_id(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= INT64 else None
