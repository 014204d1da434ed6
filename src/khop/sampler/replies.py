"""Checks of other partitions' replies, before kernels read them.

A server that is damaged or hostile must not do more than fail a batch. So the requester checks that
a reply has the arrays that were asked for, the right number of entries, and only ids that exist.
All checks raise ProtocolError; kernels rely on them. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from khop.data.arrays import storage_dtype
from khop.errors import ProtocolError
from khop.sampler.requests import Drawn, Ticket
from khop.typing import Array, BoolArray


class Checked:
    """A ticket whose reply is checked when it is taken.

    Args:
        ticket: the ticket.
        check: returns the reply's arrays, or raises ProtocolError.
    """

    def __init__(self, ticket: Ticket, check: Callable[[list[Array]], list[Array]]) -> None:
        self._ticket = ticket
        self._check = check

    @property
    def done(self) -> bool:
        """True if `result` can be called."""
        return self._ticket.done

    def result(self) -> list[Array]:
        """Return the reply's arrays; raise ProtocolError if they are not what was asked for."""
        return self._check(self._ticket.result())


def check_drawn(
    arrays: list[Array], part: int, num_rows: int, with_edge: bool, below: int, edges: Sequence[int]
) -> Drawn:
    """Check neighbours of rows that another partition drew or found.

    Args:
        arrays: arrays of the reply.
        part: the partition that sent it.
        num_rows: number of rows that were asked for.
        with_edge: edges were asked for.
        below: neighbours are ids, or numbers of members, below this.
        edges: bounds of the numbers of the part's edges: the first, and the one after the last.

    Raises:
        ProtocolError: the reply is not of this form.
    """
    if len(arrays) != 2 + with_edge:
        raise ProtocolError(f"partition {part} sent {len(arrays)} arrays of neighbours")
    counts, neighbors = arrays[0], arrays[1]
    _check_vector(counts, part, ("int32",), num_rows, "counts")
    _check_vector(neighbors, part, ("int32", "int64"), None, "neighbours")
    if num_rows and int(counts.min()) < 0:
        raise ProtocolError(f"partition {part} sent a count below 0")
    if int(counts.sum(dtype=np.int64)) != len(neighbors):
        raise ProtocolError(f"partition {part} sent counts that do not match its neighbours")
    _check_range(neighbors, part, 0, below, "neighbour")
    if not with_edge:
        return counts, neighbors, None
    _check_vector(arrays[2], part, ("int64",), len(neighbors), "edges")
    _check_range(arrays[2], part, edges[0], edges[1], "edge")
    return counts, neighbors, arrays[2]


def check_found(arrays: list[Array], part: int, count: int) -> BoolArray:
    """Check another partition's reply about which pairs are joined."""
    if len(arrays) != 1:
        raise ProtocolError(f"partition {part} sent {len(arrays)} arrays for one")
    _check_vector(arrays[0], part, ("bool",), count, "answers")
    return arrays[0]


def check_rows(
    arrays: list[Array], part: int, expected: Sequence[tuple[str, str, tuple[int, ...]]], below: int
) -> list[Array]:
    """Check rows of attributes that another partition sent.

    Args:
        arrays: arrays of the reply.
        part: the partition that sent it.
        expected: name, name of the dtype and shape of each.
        below: original ids, called 'id' or 'edge_id', are below this.
    """
    if len(arrays) != len(expected):
        raise ProtocolError(f"partition {part} sent {len(arrays)} attributes, not {len(expected)}")
    for array, (name, dtype, shape) in zip(arrays, expected, strict=True):
        if array.dtype != storage_dtype(dtype) or array.shape != shape:
            raise ProtocolError(
                f"partition {part} sent {array.dtype} {array.shape} for '{name}', which is {dtype} "
                f"{shape}"
            )
        if name in ("id", "edge_id"):
            _check_range(array, part, 0, below, "original id")
    return arrays


def _check_vector(
    array: Array, part: int, dtypes: tuple[str, ...], count: int | None, what: str
) -> None:
    if array.ndim != 1 or array.dtype.name not in dtypes or count not in (None, len(array)):
        raise ProtocolError(
            f"partition {part} sent {array.dtype} {array.shape} for {what} of {count or 'its'} rows"
        )


def _check_range(ids: Array, part: int, low: int, high: int, what: str) -> None:
    if len(ids) and not (low <= int(ids.min()) and int(ids.max()) < high):
        raise ProtocolError(
            f"partition {part} sent {what} {int(ids.min())} or {int(ids.max())}, but they run from "
            f"{low} to {high - 1}"
        )
