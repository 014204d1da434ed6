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
from khop.distributed.rpc.identity import NOBODY, Source
from khop.distributed.rpc.protocol import check_carried, describe_error, peek_op, read_request
from khop.errors import ProtocolError
from khop.trace.requests import served_since
from khop.typing import Array

# A refusal does not parse headers longer than this.
_MAX_REFUSED = 16 << 10

Steps = Generator[None, None, list[Array]]
"""Work on a reply, in slices of some 20 ms; returns the reply's arrays."""

Answer = Callable[[Any, list[Array]], "list[Array] | Steps"]
"""Function of a request and its arrays: the reply's arrays, or the steps to them."""


def finish(reply: list[Array] | Steps) -> list[Array]:
    """Return a reply's arrays, after all steps to them."""
    if isinstance(reply, list):
        return reply
    while True:
        try:
            next(reply)
        except StopIteration as end:
            arrays: list[Array] = end.value
            return arrays


Access = Literal["read", "read_state", "write"]
"""Class of a request.

`read`: its reply follows from the request and the folder, so any server of the part gives it, in
any of its threads, and it may be sent again. `write`: it changes the state of the part's primary,
and is applied once. `read_state`: it reads that state. The last two run in the writer thread of the
part, in order.
"""


@dataclass(frozen=True)
class RequestType:
    """A request that a server answers: its class, its bounds and its function.

    Attributes:
        message: dataclass of its fields, with an `op`.
        access: class of the request.
        answer: returns the reply's arrays, or the steps to them. A write that yields is finished
            even if its sender has disconnected; others may see it half done meanwhile.
        carries: most bytes of the arrays of a request.
        arrays: most of these arrays.
    """

    message: type[Any]
    access: Access
    answer: Answer
    carries: int = MESSAGE_BYTES
    arrays: int = MAX_ARRAYS


class NotYet(Exception):
    """A write came before another one of its client that it must follow."""


class FrameHandler:
    """Base of all request handlers: calls the function for the request's name.

    Args:
        what: name of the data that is served: 'partition'.
        number: its number; requests for another are refused. If None, requests have no number.
        types: the requests that are answered.
        incarnation: see below. If None, a new one.

    Attributes:
        incarnation: random text in each reply, by which clients notice that a server is another
            process than before.
        stop: ends the kernels that work on requests, once it is set.
    """

    def __init__(
        self,
        what: str,
        number: int | None,
        types: Sequence[RequestType],
        incarnation: str | None = None,
    ) -> None:
        self._what = what
        self._number = number
        self._types = {kind.message.op: kind for kind in types}
        # Whether a type has other bounds than any message, so that names are looked at first.
        self._bounded = any((k.carries, k.arrays) != (MESSAGE_BYTES, MAX_ARRAYS) for k in types)
        self.incarnation = incarnation or os.urandom(8).hex()
        self.stop = _native.StopFlag()

    @property
    def names(self) -> list[str]:
        """Names of the requests that are answered."""
        return list(self._types)

    def __call__(self, frames: list[Any]) -> list[Any]:
        """Return the frames of the reply to a request's frames; never raises."""
        return finish(self.steps(frames))

    def steps(self, frames: list[Any], source: Source = NOBODY) -> Generator[None, None, list[Any]]:
        """Process a request in slices, and return the frames of the reply; never raises.

        Args:
            frames: the request.
            source: its sender, where the handler needs to know.
        """
        began = monotonic_ns()
        header: dict[str, Any] = {"id": None, "incarnation": self.incarnation}
        try:
            peeked = self._bounded and self._types.get(peek_op(frames[0]) if frames else "")
            if peeked:
                check_carried(frames, peeked.message.op, peeked.carries, peeked.arrays)
            fields, arrays = unpack(frames)
            number = fields.get("id")
            if type(number) is not int or not 0 <= number <= INT64:
                raise ProtocolError(
                    "a request has no 'id', by which the sender recognises the reply"
                )
            header["id"] = number
            kind = self._types.get(str(fields.get("op")))
            if kind is None or (self._bounded and kind is not peeked):
                raise ProtocolError(f"no such request '{str(fields.get('op'))[:100]}'")
            request = read_request(kind.message, fields)
            if fields.get("part") != self._number:
                mine = "" if self._number is None else f" {self._number}"
                raise ProtocolError(f"this is {self._what}{mine}")
            reply = self._answer(kind, request, arrays, fields, source)
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
        kind: RequestType,
        request: Any,
        arrays: list[Array],
        header: Mapping[str, Any],
        source: Source,
    ) -> list[Array] | Steps:
        """Return the reply to a request that has been read, or the steps to it."""
        return kind.answer(request, arrays)


def refusal(frames: list[Any], why: Exception) -> list[Any]:
    """Return the frames of an error reply to an unread request; never raises, costs little."""
    return pack({"id": id_of(frames), "error": describe_error(why)}, [])


def id_of(frames: list[Any]) -> int | None:
    """Return the id of an unread request; None if it has none. Never raises, costs little."""
    if not frames or len(frames[0]) > _MAX_REFUSED:
        return None
    try:
        number = json.loads(bytes(frames[0]))["id"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    return number if type(number) is int and 0 <= number <= INT64 else None


def pack_or_refuse(header: Mapping[str, Any], arrays: Sequence[Array]) -> list[Any]:
    """Return the frames of a reply or event, or of an error if it cannot be sent; never raises."""
    try:
        return pack(header, arrays)
    except (ProtocolError, ValueError, RecursionError) as error:
        number = header.get("id")
        number = number if type(number) is int and 0 <= number < 1 << 63 else None
        return pack({"id": number, "error": describe_error(error)}, [])
