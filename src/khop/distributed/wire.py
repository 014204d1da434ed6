"""What samplers ask partition servers, and how rows and exceptions cross processes."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import numpy as np

from khop import errors
from khop.errors import ProtocolError
from khop.sampler.requests import RowSet
from khop.typing import Array

PROTOCOL = 3

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


def pack_rows(rows: RowSet) -> tuple[list[str], list[Array]]:
    """Rows as vectors, and the names of those that come beside their ids."""
    names: list[str] = []
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


def unpack_rows(header: Mapping[str, Any], arrays: list[Array]) -> tuple[RowSet, list[Array]]:
    """The rows of a request, from what `pack_rows` made, and the arrays that follow.

    Raises:
        ProtocolError: arrays that are missing, or of other types or lengths than they must have.
    """
    names = header.get("rows")
    if not isinstance(names, list) or any(not isinstance(name, str) for name in names):
        raise ProtocolError("a request does not say what its rows come with")
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


def check_empty(arrays: list[Array]) -> None:
    """Raises ProtocolError if arrays are left over."""
    if arrays:
        raise ProtocolError(f"a request carries {len(arrays)} arrays too many")
