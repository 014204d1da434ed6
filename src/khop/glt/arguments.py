"""Helpers for arguments of GLT's functions: positional order, and values by type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")


def by_type(values: Any, single: _T) -> dict[_T, Any]:
    """Return {type: value} from such a mapping, from one value of type `single`, or from None."""
    if values is None:
        return {}
    return dict(values) if isinstance(values, Mapping) else {single: values}


def in_order(
    owner: str, order: Sequence[str], args: Sequence[object], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a call's positional and keyword arguments as one dictionary by name.

    Args:
        owner: name of the class or function, for errors.
        order: names of the positional arguments.
        args: the positional arguments.
        kwargs: the keyword arguments.

    Raises:
        TypeError: there are more positional arguments than names, or an argument is given twice.
    """
    if len(args) > len(order):
        raise TypeError(
            f"{owner} takes {len(order)} arguments (got {len(args)}): the last is {order[-1]}"
        )
    positional = dict(zip(order, args, strict=False))
    if repeated := positional.keys() & kwargs.keys():
        raise TypeError(f"{owner} got '{min(repeated)}' twice")
    return {**positional, **kwargs}
