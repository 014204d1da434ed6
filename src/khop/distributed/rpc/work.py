"""Cost of a request to a partition, and its division into slices. Imports no torch.

The size of a request does not bound its time: the same few bytes can request a draw from a row of
ten neighbours or of ten million. So a request has a cost, in *entries*. An entry is a neighbour
that is read, looked up or drawn, about 10 ns of a processor. The cost is computed before anything
is drawn, from the request and the degrees of its rows. A request that costs too much is refused.
Others are processed in slices of rows, between which other requests have their turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from khop.errors import ProtocolError
from khop.sampler.requests import HopRequest
from khop.typing import Array, Int64Array

SLICE = 3 << 20
"""Entries of a slice: about 30 ms."""

MOST = 1 << 30
"""Maximum cost of a request in entries: about 10 s."""

ROWS_AT_ONCE = 1 << 17
"""Number of rows whose degrees are read at a time: random access, 10 to 100 ns each."""

MOST_EXCLUDED = 1 << 19
"""Maximum number of a request's excluded edges. They are sorted at once: about 0.1 s."""

MOST_MEMBERS = 1 << 24
"""Maximum number of keys in a request for edges among nodes."""

MOST_REPEATED = 1 << 20
"""Maximum number of draws with replacement from one row. A row is not divided into slices."""

# Moves of an entry within memory that take as long as reading one neighbour.
_MOVES = 32
# Maximum number of moves for draws by weight from one row, which is not divided: about 0.1 s.
_MOST_MOVES = 1 << 28
# Costs in entries: of a row beside its neighbours, of a pick (few or many per row, or by weight),
# and of a neighbour for which LABOR draws (uniformly, by weight).
_ROW, _PICK, _FAR_PICK, _WEIGHTED_PICK, _LABOR, _WEIGHTED_LABOR = 5, 1, 3, 8, 2, 6
_FEW_PICKS = 48
# Cost of looking up a neighbour among a row's excluded ones, if these are more than a few.
_EXCLUDED, _FEW_EXCLUDED = 6, 8
# Cost of looking up a neighbour among members, if their table is larger than caches.
_MEMBER, _FEW_MEMBERS = 6, 1 << 16
# Bytes that are copied in the time of an entry. Cost of an attribute beside its rows.
_ROW_BYTES, _ATTRIBUTE = 32, 2048
# Neighbours that a test for an edge reads in the time of an entry.
_SCANNED = 16


def ranges(count: int, at_once: int | None = None) -> Iterator[slice]:
    """Divide `count` rows into slices of `at_once` rows each. If None, of `ROWS_AT_ONCE`."""
    at_once = at_once or ROWS_AT_ONCE
    for first in range(0, count, at_once):
        yield slice(first, min(first + at_once, count))


def slices(costs: Int64Array, limit: int | None = None) -> list[slice]:
    """Divide rows into slices that cost about the same: at most `limit`, plus the first row's cost.

    Example:
        >>> slices(np.array([3, 3, 3, 9, 1]), 10)
        [slice(0, 3, None), slice(3, 5, None)]
    """
    if not len(costs):
        return [slice(0, 0)]
    slice_of_row = np.cumsum(costs) // (limit or SLICE)
    cuts = [0, *(np.flatnonzero(np.diff(slice_of_row)) + 1).tolist(), len(costs)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def check_cost(cost: int, content: str) -> None:
    """Raise ProtocolError if a request costs more than `MOST` neighbours.

    `content` names the request in the error, such as 'neighbours of 5 rows'.
    """
    if cost > MOST:
        raise ProtocolError(
            f"{content} would take the work of reading {cost} neighbours, more than the {MOST} "
            "that are allowed: ask for less at a time (a smaller batch, or a smaller fan-out)"
        )


def check_count(count: int, most: int, entries: str) -> None:
    """Raise ProtocolError if `count` is above `most`. `entries` names the items of a request."""
    if count > most:
        raise ProtocolError(f"a request names {count} {entries}, more than the {most} allowed")


def picks_of(hop: HopRequest, degrees: Int64Array) -> Int64Array:
    """Return the maximum number of neighbours that a hop draws from each row, [n] int64."""
    if hop.fanout < 0:
        return degrees
    if hop.replace:
        return np.where(degrees > 0, hop.fanout, 0)
    return np.minimum(degrees, hop.fanout)


def reads_degrees(hop: HopRequest, has_excluded: bool) -> bool:
    """Return True if the cost of a hop depends on the numbers of neighbours of its rows."""
    by_weight = hop.weighted and not hop.replace
    reads_whole = hop.last or has_excluded or hop.method.needs_neighbor_ids
    return hop.fanout < 0 or reads_whole or (by_weight and hop.fanout > _FEW_PICKS)


def cost_of_row(hop: HopRequest) -> int:
    """Return the cost of each row of a hop whose cost does not depend on degrees, in entries."""
    return _ROW + _cost_of_pick(hop) * max(hop.fanout, 0)


def costs_of_rows(
    hop: HopRequest, degrees: Int64Array, num_excluded: Int64Array | None
) -> Int64Array:
    """Return the cost of drawing a hop from each row (node), [n] int64, in neighbours read.

    Args:
        hop: parameters of the hop.
        degrees: [n] int64 number of neighbours of each row.
        num_excluded: numbers of excluded edges per row, [n] int64. If None, there are none.

    Raises:
        ProtocolError: a single row, which cannot be divided, would take too long.
    """
    picks = picks_of(hop, degrees)
    costs = _ROW + _cost_of_pick(hop) * picks
    if hop.method.needs_neighbor_ids:  # LABOR reads rows whole
        costs = costs + degrees * (_WEIGHTED_LABOR if hop.weighted else _LABOR)
    elif hop.last:
        costs = costs + degrees
    if num_excluded is not None:
        many = num_excluded > _FEW_EXCLUDED
        each: Int64Array = np.where(many, _EXCLUDED, np.minimum(num_excluded, 1))
        costs = costs + each * degrees + num_excluded
    if hop.weighted and not hop.replace and hop.fanout >= 0:
        gaps = 0 if num_excluded is None else np.minimum(num_excluded, degrees)
        drawn = np.where(degrees > hop.fanout, picks, 0)  # others are taken whole
        moves: Array = drawn * (0.5 * drawn + gaps)
        if len(moves) and moves.max() > _MOST_MOVES:
            raise ProtocolError(
                f"a fan-out of {hop.fanout} by weight without replacement takes too long from a "
                "row of more neighbours: ask for a smaller one"
            )
        costs = costs + (moves / _MOVES).astype(np.int64)
    return costs


def check_draws(hop: HopRequest) -> None:
    """Raise ProtocolError if a hop makes too many draws with replacement from one row."""
    if hop.replace and hop.fanout > MOST_REPEATED:
        raise ProtocolError(
            f"a fan-out of {hop.fanout} with replacement is more than the {MOST_REPEATED} that are "
            "allowed: ask for a smaller one"
        )


def costs_of_edges(degrees: Int64Array) -> Int64Array:
    """Return the cost of testing for one edge of each row, by its degree: [n] int64, in entries."""
    return _ROW + degrees // _SCANNED


def costs_of_induced(degrees: Int64Array, num_members: int) -> Int64Array:
    """Return the cost in entries, [n] int64, of finding rows' neighbours among `num_members`."""
    return _ROW + (degrees // 2 if num_members <= _FEW_MEMBERS else degrees * _MEMBER)


def rows_in_slice(row_bytes: int) -> int:
    """Return how many rows of an attribute, of `row_bytes` bytes each, to gather in one slice."""
    return max(1, SLICE // (_ROW + row_bytes // _ROW_BYTES))


def cost_of_rows(num_rows: int, row_bytes: int) -> int:
    """Return the cost of gathering rows of an attribute, in entries of about 10 ns."""
    return _ATTRIBUTE + num_rows * (_ROW + row_bytes // _ROW_BYTES)


def joined(
    pieces: Sequence[Sequence[Array]], empty: Callable[[tuple[int, ...], np.dtype[Any]], Array]
) -> Generator[None, None, list[Array]]:
    """Join the arrays of all slices of a request's reply, one after the other.

    `empty` allocates the results.
    """
    outs: list[Array] = []
    for arrays in zip(*pieces, strict=True):
        out = empty((sum(map(len, arrays)),), arrays[0].dtype)
        begin = 0
        for i, array in enumerate(arrays):
            out[begin : begin + len(array)] = array
            begin += len(array)
            if i % 8 == 7:
                yield
        outs.append(out)
    return outs


def _cost_of_pick(hop: HopRequest) -> int:
    if hop.weighted:
        return _WEIGHTED_PICK
    return _FAR_PICK if hop.fanout > _FEW_PICKS else _PICK
