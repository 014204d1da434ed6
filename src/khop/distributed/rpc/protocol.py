"""Requests to partition servers, and the encoding of rows and exceptions. Imports no torch.

Servers and their clients use it. A request is a dataclass with a name, `op`. Its message has a JSON
header (the fields, `op`, `protocol` and `id`) and the arrays that its docstring names. The reply
has the same `id`, and `error` if the request was refused. Both sides read with `khop.codec`.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from khop import codec, errors
from khop.channel.control import Message, Op
from khop.channel.message import FRAME_BYTES, MAX_ARRAYS
from khop.codec import AtMost, Between, Distinct, Id
from khop.distributed.processes.child import ChildProcess, wait_for_message
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.log import printable, printable_lines
from khop.sampler.requests import HopRequest, RowSet
from khop.typing import Array, Int64Array

PROTOCOL = 9

_T = TypeVar("_T")
_ENVELOPE = ("op", "protocol", "id", "part", "timed", "state")
# Patterns that find name and part of a request before its header is parsed in full.
_OP = re.compile(rb'"op": "(\w{1,32})"')
_PART = re.compile(rb'"part": (\d{1,9})[,}]')
_PEEKED = 4096

# Exceptions whose constructors take more than a text, or that end iterators.
_NOT_TEXT = ("UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup")
_NOT_REBUILT = (*_NOT_TEXT, "StopIteration", "StopAsyncIteration")
_MAX_TEXT = 100_000
_TYPES: dict[str, type[Exception]] = {
    name: error_type
    for namespace in (vars(builtins), vars(errors))
    for name, error_type in namespace.items()
    if isinstance(error_type, type)
    and issubclass(error_type, Exception)
    and name not in _NOT_REBUILT
}


class RequestFields(Protocol):
    """Type of requests: a dataclass with the request's fields. `op` is the request's name."""

    op: ClassVar[str]


Request = Any
"""A class like `RequestFields`, with `reply` in addition: the dataclass of the reply's fields."""


RowPart = Literal["trees", "times", "excluded"]
RowParts = Annotated[list[RowPart], Distinct()]
"""Names of the optional vectors that follow the ids of rows in a message: see `pack_rows`."""


@dataclass(frozen=True)
class Sample:
    """Request for sampled neighbours of nodes. Arrays: as `pack_rows` returns them."""

    op: ClassVar[str] = "sample"

    relation: Id
    rows: RowParts
    hop: HopRequest


@dataclass(frozen=True)
class Induce:
    """Request for the edges between nodes and the nodes of a batch.

    Arrays: the nodes as `pack_rows` returns them, then int64 keys of the batch's nodes.
    """

    op: ClassVar[str] = "induce"

    relation: Id
    rows: RowParts
    with_edge: bool


@dataclass(frozen=True)
class HasEdges:
    """Request that asks for pairs of nodes whether an edge joins them.

    Arrays: the first nodes as `pack_rows` returns them, then the second ones, int64.
    """

    op: ClassVar[str] = "has_edges"

    relation: Id
    rows: RowParts


@dataclass(frozen=True)
class Degrees:
    """Request for the number of neighbours of each node. Arrays: the nodes' ids, int64."""

    op: ClassVar[str] = "degrees"

    relation: Id


@dataclass(frozen=True)
class Fetch:
    """Request for attributes of nodes or edges. Arrays: their ids, int64.

    The reply has arrays of at most one frame: for each attribute one per slice of `frame_slices`.
    """

    op: ClassVar[str] = "fetch"

    element: Literal["node", "edge"]
    index: Id
    names: Annotated[list[Annotated[str, AtMost(512)]], AtMost(MAX_ARRAYS)]


@dataclass(frozen=True)
class OutputRows:
    """Request for rows of a part's file of layer-wise outputs. Arrays: int64 indices of the rows.

    The reply has the same form as the reply to `Fetch`.
    """

    op: ClassVar[str] = "rows"

    layer: Id
    node_type: Id
    file: str


ClientId = Annotated[str, AtMost(32)]
"""Random id of a client object, 128 bits, hexadecimal. Only the client and its servers know it."""

Incarnation = Annotated[str, AtMost(16)]
"""Random id of a server process, 64 bits, hexadecimal. It is new after each start."""

WriteNumber = Annotated[int, Between(0, 2**53)]
"""Number of a write among a client's writes to a part, from 1."""

MOST_IN_FLIGHT = 64
"""Maximum number of writes of a client to a part that are sent and have no reply."""


@dataclass(frozen=True)
class Enroll:
    """Request of a client before it first uses a part's state, the data of users' requests.

    Arrays: none. The server with the state then keeps its replies to the client's writes. The reply
    has the server's incarnation, which changes with a restart.
    """

    op: ClassVar[str] = "enroll"

    client: ClientId


@dataclass(frozen=True)
class StateEnvelope:
    """Field `state` in the header of a request that uses a part's state.

    Attributes:
        incarnation: incarnation of the server whose state is meant.
        client: id of the client. Only writes have it and the fields below.
        sequence: number of the write.
        settled: number below which each write has a reply, or has failed at the client.
        previous: number of the client's last earlier write that is not settled. 0 if there is none.
    """

    incarnation: Incarnation
    client: ClientId = ""
    sequence: WriteNumber = 0
    settled: WriteNumber = 0
    previous: WriteNumber = 0


def peek_op(header: Any) -> str:
    """Return the request's name in a header, without checks of other fields. '' if none."""
    match = _OP.search(bytes(header[:_PEEKED]))
    return "" if match is None else match[1].decode()


def peek_part(header: Any) -> int | None:
    """Return the part in a request's header, without checks of other fields. None if none."""
    match = _PART.search(bytes(header[:_PEEKED]))
    return None if match is None else int(match[1])


def check_carried(frames: Sequence[Any], op: str, most: int, most_arrays: int) -> None:
    """Raise ProtocolError if a request carries more arrays or bytes than its name allows.

    Called before its arrays are joined and their descriptions are read. `most` bounds their bytes,
    `most_arrays` their number. `op` is '' if the name is unknown.
    """
    nbytes = sum(map(len, frames[1:]))
    if nbytes > most or len(frames) > 1 + most_arrays + most // FRAME_BYTES:
        raise ProtocolError(
            f"a request{op and f' {op!r}'} carries {nbytes} bytes in {len(frames) - 1} frames, "
            f"more than the {most} bytes in at most {most_arrays} arrays that are allowed"
        )


def request_header(request: RequestFields, request_id: int, **envelope: Any) -> dict[str, Any]:
    """Return the header of a request. `envelope` has further fields: part, timed, state."""
    # The name comes first: a reader of a message sees it at once.
    fields: dict[str, Any] = codec.to_json(request)
    return {"op": request.op, "protocol": PROTOCOL, "id": request_id, **envelope, **fields}


def read_request(message: type[_T], header: Mapping[str, Any]) -> _T:
    """Convert a request's header to its dataclass (`message`), with all fields checked.

    Raises:
        ProtocolError: a field is malformed, or the sender has another version of the protocol.
    """
    if header.get("protocol") != PROTOCOL:
        raise ProtocolError(
            f"protocol {str(header.get('protocol'))[:20]} instead of {PROTOCOL}: all machines must "
            "run the same khop"
        )
    fields = {name: value for name, value in header.items() if name not in _ENVELOPE}
    return codec.from_json(message, fields, f"request '{str(header.get('op'))[:100]}'")


def describe_error(error: BaseException) -> dict[str, str]:
    return {"type": type(error).__name__, "message": _short(str(error))}


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def rebuild_error(described: object, where: str, is_own: bool = False) -> Exception:
    """Make an exception of the description that another process has sent.

    If its type is neither builtin nor khop's, it becomes RuntimeError. Its text may reach a
    terminal, so unprintable characters in it are escaped.

    Args:
        described: from `describe_error`, optionally with a 'traceback'.
        where: the process in which it was raised.
        is_own: whether this process started that process. The type may then also come from the
            error's 'module', if this process has imported the module.
    """
    if not isinstance(described, dict):
        return ProtocolError(f"{where} sent an error that does not say what it is")
    name, message = str(described.get("type"))[:100], _short(str(described.get("message")))
    text = f"{message}\n\nRaised in {where}."
    if described.get("traceback"):
        text += f"\n{_short(str(described['traceback']))}"
    text = printable_lines(text)
    error_type = _TYPES.get(name)
    if error_type is None and is_own:
        error_type = _imported(described.get("module"), name)
    if error_type is None:
        return RuntimeError(f"{printable(name)}: {text}")
    return error_type(text)


def _imported(module: object, name: str) -> type[Exception] | None:
    """Return the exception class of this name, if this process has imported its module.

    None otherwise, or if the class or a base defines `__init__`, `__new__` or `__str__` in Python:
    it may need more than a text.
    """
    cls = getattr(sys.modules.get(str(module)), name, None)
    if name in _NOT_REBUILT or not isinstance(cls, type) or not issubclass(cls, Exception):
        return None
    has_code = any(
        isinstance(vars(c).get(m), FunctionType | staticmethod)
        for c in cls.__mro__
        for m in ("__init__", "__new__", "__str__")
    )
    return None if has_code or issubclass(cls, UnicodeError) else cls


def wait_until_ready(process: ChildProcess, where: str) -> Message:
    """Wait until a server that was started has sent READY, and return this message.

    Raises:
        PartitionUnavailableError: the server ended first. `where` names it, as 'graph server 0'.
        Exception: the server could not start. This is the error that was raised there.
    """
    message = wait_for_message(process.line)
    if message is None:
        raise PartitionUnavailableError(f"{where} did not start: it {process.exit_status()}")
    if message.op is Op.ERROR:
        raise rebuild_error(message.json(), where)
    return message


def pack_rows(rows: RowSet) -> tuple[list[RowPart], list[Array]]:
    """Return the arrays of nodes whose neighbours are requested, ids first.

    The first value names the optional arrays (trees, times, excluded edges) among them.
    """
    names: list[RowPart] = []
    arrays: list[Array] = [rows.ids]
    if rows.trees is not None:
        names.append("trees")
        arrays.append(rows.trees)
    if rows.times is not None:
        names.append("times")
        arrays.append(rows.times)
    if rows.excluded is not None:
        names.append("excluded")
        arrays += rows.excluded
    return names, arrays


def unpack_rows(names: Sequence[RowPart], arrays: list[Array]) -> tuple[RowSet, list[Array]]:
    """Make the nodes of a request from the arrays of `pack_rows`. Return the other arrays, too.

    Raises:
        ProtocolError: arrays are missing, or have a wrong dtype or length.
    """
    rest = list(arrays)

    def take(dtype: type, length: int | None) -> Array:
        if not rest or rest[0].ndim != 1 or rest[0].dtype != dtype:
            raise ProtocolError(f"a request lacks a vector of {dtype.__name__} for its rows")
        array = rest.pop(0)
        if length is not None and len(array) != length:
            raise ProtocolError(f"a request's rows come with {len(array)} entries, not {length}")
        return array

    ids = take(np.int64, None)
    trees = take(np.int32, len(ids)) if "trees" in names else None
    times = take(np.int64, len(ids)) if "times" in names else None
    if trees is not None and len(trees) and int(trees.min()) < 0:
        raise ProtocolError("a request's rows belong to trees below 0")
    excluded = None
    if "excluded" in names:
        excluded_rows = take(np.int64, None)
        excluded = excluded_rows, take(np.int64, len(excluded_rows))
    return RowSet(ids, trees, times, excluded), rest


def ids_of(arrays: Sequence[Array]) -> Int64Array:
    """Return a request's only array, a vector of ids.

    Raises:
        ProtocolError: the request has other arrays.
    """
    if len(arrays) != 1 or arrays[0].dtype != np.int64 or arrays[0].ndim != 1:
        raise ProtocolError("a request carries one vector of int64 ids")
    return arrays[0]


def check_index(value: int, count: int, name: str) -> int:
    """Return `value` if it is below `count`. Otherwise raise ProtocolError with its `name`."""
    if value >= count:
        raise ProtocolError(f"'{name}' is {value}, but there are {count}")
    return value


def check_empty(arrays: Sequence[Array]) -> None:
    """Raise ProtocolError if a request that has no arrays carries some."""
    if arrays:
        raise ProtocolError(f"a request carries {len(arrays)} arrays too many")
