"""Checks of the fields of a request, before anything is done with them.

All raise ProtocolError that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from khop.errors import ProtocolError
from khop.typing import Array, Int64Array


def integer(
    header: Mapping[str, Any], name: str, low: int = -(2**63), high: int = 2**63 - 1
) -> int:
    """An integer from `low` to `high`."""
    value = header.get(name)
    if type(value) is not int:
        raise ProtocolError(f"'{name}' must be an integer")
    if not low <= value <= high:
        raise ProtocolError(f"'{name}' is {value}, but must lie between {low} and {high}")
    return value


def flag(header: Mapping[str, Any], name: str) -> bool:
    """True or false."""
    value = header.get(name)
    if not isinstance(value, bool):
        raise ProtocolError(f"'{name}' must be true or false")
    return value


def index(header: Mapping[str, Any], name: str, count: int) -> int:
    """An integer from 0 to count - 1."""
    value = integer(header, name)
    if not 0 <= value < count:
        raise ProtocolError(f"'{name}' is {value}, but there are {count}")
    return value


def ids(arrays: list[Array]) -> Int64Array:
    """The one vector of ids that a request carries."""
    if len(arrays) != 1 or arrays[0].dtype != np.int64 or arrays[0].ndim != 1:
        raise ProtocolError("a request carries one vector of int64 ids")
    return arrays[0]


def text(header: Mapping[str, Any], name: str, longest: int) -> str:
    """A text of at most `longest` characters."""
    value = header.get(name)
    if not isinstance(value, str) or len(value) > longest:
        raise ProtocolError(f"'{name}' must be a text of at most {longest} characters")
    return value


def number(header: Mapping[str, Any], name: str, low: float, high: float) -> float:
    """A finite number from `low` to `high`."""
    value = header.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ProtocolError(f"'{name}' must be a number from {low:g} to {high:g}")
    return float(value)


def ranks(header: Mapping[str, Any], name: str, count: int) -> list[int]:
    """A list of different integers from 0 to count - 1."""
    values = header.get(name)
    if not isinstance(values, list) or len(values) > count:
        raise ProtocolError(f"'{name}' must be a list of at most {count} integers")
    if any(type(v) is not int or not 0 <= v < count for v in values):
        raise ProtocolError(f"'{name}' must hold integers from 0 to {count - 1}")
    if len(set(values)) < len(values):
        raise ProtocolError(f"'{name}' names something twice")
    return values
