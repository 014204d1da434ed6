"""Arguments as GLT's functions take them: in GLT's order, of one type or by type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")


def by_type(values: Any, single: _T) -> dict[_T, Any]:
    """Return values by type: a mapping as it is, None as no types, all else as of one type."""
    if values is None:
        return {}
    return dict(values) if isinstance(values, Mapping) else {single: values}


def in_order(
    owner: str, order: Sequence[str], args: Sequence[object], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return positional and keyword arguments by name.

    Args:
        owner: name of the class or function, for errors.
        order: names of the positional arguments.
        args: the positional arguments.
        kwargs: the keyword arguments.

    Raises:
        TypeError: more positional arguments than names, or an argument is there twice.
    """
    if len(args) > len(order):
        raise TypeError(
            f"{owner} takes {len(order)} arguments (got {len(args)}): the last is {order[-1]}"
        )
    positional = dict(zip(order, args, strict=False))
    if repeated := positional.keys() & kwargs.keys():
        raise TypeError(f"{owner} got '{min(repeated)}' twice")
    return {**positional, **kwargs}
