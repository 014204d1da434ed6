"""What samplers ask partition servers, and how requests, rows and exceptions cross processes.

A request is a dataclass with an `op`; on the wire it is a JSON header of its fields and `op`,
`protocol` and `id`, and the arrays that its docstring names. The reply has the same `id`, and
`error` if it was refused. Both sides read with `khop.codec`. Imports no torch.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np

from khop import codec, errors
from khop.channel.message import MAX_ARRAYS
from khop.codec import AtMost, Distinct, Id
from khop.errors import ProtocolError
from khop.sampler.requests import HopRequest, RowSet
from khop.typing import Array, Int64Array

PROTOCOL = 4

Request = Any
"""A dataclass with an `op`, the name of the request."""

_T = TypeVar("_T")
_ENVELOPE = ("op", "protocol", "id", "part", "timed")

# Exceptions whose constructors want more than a text, and those that end iterators.
_NOT_TEXT = ("UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup")
_NOT_REBUILT = (*_NOT_TEXT, "StopIteration", "StopAsyncIteration")
_MAX_TEXT = 100_000
_TYPES: dict[str, type[Exception]] = {
    name: kind
    for namespace in (vars(builtins), vars(errors))
    for name, kind in namespace.items()
    if isinstance(kind, type) and issubclass(kind, Exception) and name not in _NOT_REBUILT
}


RowPart = Literal["trees", "times", "excluded"]
RowParts = Annotated[list[RowPart], Distinct()]
"""What rows come with beside their ids; see `pack_rows`."""


@dataclass(frozen=True)
class Sample:
    """Asks for neighbours of nodes; carries `pack_rows`."""

    op: ClassVar[str] = "sample"

    relation: Id
    rows: RowParts
    hop: HopRequest


@dataclass(frozen=True)
class Induce:
    """Asks which neighbours of nodes are in a batch; carries `pack_rows` and int64 keys."""

    op: ClassVar[str] = "induce"

    relation: Id
    rows: RowParts
    with_edge: bool


@dataclass(frozen=True)
class HasEdges:
    """Asks whether nodes and others are joined, pair by pair; carries `pack_rows`, int64 others."""

    op: ClassVar[str] = "has_edges"

    relation: Id
    rows: RowParts


@dataclass(frozen=True)
class Fetch:
    """Asks for attributes of nodes or edges; carries int64 ids."""

    op: ClassVar[str] = "fetch"

    kind: Literal["node", "edge"]
    index: Id
    names: Annotated[list[Annotated[str, AtMost(512)]], AtMost(MAX_ARRAYS)]


@dataclass(frozen=True)
class OutputRows:
    """Asks for rows of a file of layer-wise outputs; carries their int64 places."""

    op: ClassVar[str] = "rows"

    layer: Id
    node_type: Id
    file: str


def request_header(request: Request, number: int, **envelope: Any) -> dict[str, Any]:
    """The header of a request.

    Args:
        request: see `Request`.
        number: by which its asker knows the reply.
        **envelope: what else goes along: `part`, `timed`.
    """
    # The name first: who shall answer is seen at a glance.
    fields: dict[str, Any] = codec.to_json(request)
    return {"op": request.op, "protocol": PROTOCOL, "id": number, **envelope, **fields}


def read_request(kind: type[_T], header: Mapping[str, Any]) -> _T:
    """A request from its header.

    Raises:
        ProtocolError: malformed, which names the field; or of another khop.
    """
    if header.get("protocol") != PROTOCOL:
        raise ProtocolError(
            f"protocol {str(header.get('protocol'))[:20]} instead of {PROTOCOL}: all machines must "
            "run the same khop"
        )
    fields = {name: value for name, value in header.items() if name not in _ENVELOPE}
    return codec.from_json(kind, fields, f"request '{str(header.get('op'))[:100]}'")


def describe_error(error: BaseException) -> dict[str, str]:
    """An exception as type name and text."""
    return {"type": type(error).__name__, "message": _short(str(error))}


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def rebuild_error(described: Any, where: str) -> Exception:
    """The same exception, where its type is known by name; else RuntimeError.

    Args:
        described: from `describe_error`; perhaps with a 'traceback'.
        where: the process that it was raised in.
    """
    if not isinstance(described, dict):
        return ProtocolError(f"{where} sent an error that does not say what it is")
    name, message = str(described.get("type"))[:100], _short(str(described.get("message")))
    text = f"{message}\n\nRaised in {where}."
    if described.get("traceback"):
        text += f"\n{_short(str(described['traceback']))}"
    kind = _TYPES.get(name)
    if kind is None:
        return RuntimeError(f"{name}: {text}")
    return kind(text)


def pack_rows(rows: RowSet) -> tuple[list[RowPart], list[Array]]:
    """Rows as vectors, and the names of those that come beside their ids."""
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
        arrays.extend(rows.excluded)
    return names, arrays


def unpack_rows(names: Sequence[RowPart], arrays: list[Array]) -> tuple[RowSet, list[Array]]:
    """The rows of a request, from what `pack_rows` made, and the arrays that follow.

    Raises:
        ProtocolError: arrays that are missing, or of other types or lengths than they must have.
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
    """The one vector of ids that a request carries.

    Raises:
        ProtocolError: it carries something else.
    """
    if len(arrays) != 1 or arrays[0].dtype != np.int64 or arrays[0].ndim != 1:
        raise ProtocolError("a request carries one vector of int64 ids")
    return arrays[0]


def check_index(value: int, count: int, name: str) -> int:
    """Raises ProtocolError if a place is none of `count`."""
    if value >= count:
        raise ProtocolError(f"'{name}' is {value}, but there are {count}")
    return value


def check_empty(arrays: Sequence[Array]) -> None:
    """Raises ProtocolError if arrays are left over."""
    if arrays:
        raise ProtocolError(f"a request carries {len(arrays)} arrays too many")
