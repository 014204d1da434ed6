"""Cost of a request to a partition, and its division into slices. Imports no torch.

Bytes bound memory, and cost bounds time: the same few bytes can ask for a draw from a row of ten
neighbours or of ten million. Cost is counted in *entries*: neighbours that are read, looked up or
drawn, about 10 ns of a processor each. It follows from the request and from the degrees of its
rows, before anything is drawn. A request that costs too much is refused; others are processed
in slices of rows, between which other requests have their turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from khop.errors import ProtocolError
from khop.sampler.requests import HopRequest
from khop.typing import Array, Int64Array

SLICE = 1 << 21
"""Entries of a slice: about 20 ms."""

MOST = 1 << 30
"""Most entries of a request: about 10 s."""

ROWS_AT_ONCE = 1 << 17
"""Rows whose degrees are read at a time: random access, 10 to 100 ns each."""

MOST_EXCLUDED = 1 << 20
"""Most excluded edges of a request. They are sorted at once: about 0.1 s."""

MOST_MEMBERS = 1 << 24
"""Most keys of a request for edges among nodes."""

MOST_REPEATED = 1 << 20
"""Most draws with replacement from one row, which is not divided."""

# Moves of an entry in memory that take as long as to read a neighbour.
_MOVES = 32
# Most moves of one row's draws by weight, which are not divided: about 0.1 s.
_MOST_MOVES = 1 << 28
# Entries that a row counts for, beside its neighbours; a pick; a pick by weight; a neighbour whose
# number is drawn by weight.
_ROW, _PICK, _WEIGHTED_PICK, _WEIGHTED_LABOR = 8, 2, 8, 4
# Bytes that are copied in the time of an entry; entries that an attribute itself counts for.
_ROW_BYTES, _ATTRIBUTE = 32, 2048
# Questions for an edge read a row's neighbours many at a time.
_SCANNED = 16


def ranges(count: int, at_once: int = ROWS_AT_ONCE) -> Iterator[slice]:
    """Yield slices of `count` entries, one after the other."""
    for first in range(0, count, at_once):
        yield slice(first, min(first + at_once, count))


def slices(costs: Int64Array, limit: int = SLICE) -> list[slice]:
    """Cut rows into slices of about the same cost.

    Args:
        costs: [n] int64 cost of each row.
        limit: a slice costs at most twice as much, or is a single row.

    Example:
        >>> slices(np.array([3, 3, 3, 9, 1]), 10)
        [slice(0, 3, None), slice(3, 5, None)]
    """
    if not len(costs):
        return [slice(0, 0)]
    place = np.cumsum(costs) // limit
    cuts = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), len(costs)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def check_cost(cost: int, what: str) -> None:
    """Raise ProtocolError if a request costs more than allowed.

    Args:
        cost: its cost.
        what: what it asks for, for the message: 'neighbours of 5 rows'.
    """
    if cost > MOST:
        raise ProtocolError(
            f"{what} would take the work of reading {cost} neighbours, more than the {MOST} that "
            "are allowed: ask for less at a time (a smaller batch, or a smaller fan-out)"
        )


def check_count(count: int, most: int, what: str) -> None:
    """Raise ProtocolError if a request names more than `most` of something."""
    if count > most:
        raise ProtocolError(f"a request names {count} {what}, more than the {most} allowed")


def picks_of(hop: HopRequest, degrees: Int64Array) -> Int64Array:
    """Return how many neighbours a hop draws from rows at most."""
    if hop.fanout < 0:
        return degrees
    if hop.replace:
        return np.where(degrees > 0, hop.fanout, 0)
    return np.minimum(degrees, hop.fanout)


def reads_degrees(hop: HopRequest, has_excluded: bool) -> bool:
    """Return whether the cost of a hop depends on the degrees of its rows."""
    return hop.fanout < 0 or hop.last or has_excluded or hop.method.needs_neighbor_ids


def cost_of_draws(hop: HopRequest, num_rows: int) -> int:
    """Return the cost of a hop that does not depend on degrees."""
    return num_rows * (_ROW + _cost_of_pick(hop) * max(hop.fanout, 0) + _moves(hop, hop.fanout, 0))


def costs_of_rows(
    hop: HopRequest, degrees: Int64Array, num_excluded: Int64Array | None
) -> Int64Array:
    """Return the cost of each row of a hop, [n] int64.

    Args:
        hop: the hop.
        degrees: [n] int64.
        num_excluded: [n] int64 excluded edges of each row, if there are any.

    Raises:
        ProtocolError: one row would take too long; it cannot be divided.
    """
    picks = picks_of(hop, degrees)
    costs = _ROW + _cost_of_pick(hop) * picks
    if hop.method.needs_neighbor_ids:  # LABOR reads rows whole
        costs = costs + degrees * (_WEIGHTED_LABOR if hop.weighted else 1)
    elif hop.last:
        costs = costs + degrees
    if num_excluded is not None:
        costs = costs + np.where(num_excluded > 0, degrees + num_excluded, 0)
    if hop.weighted and not hop.replace and hop.fanout >= 0:
        gaps = np.minimum(num_excluded, degrees) if num_excluded is not None else 0
        drawn = np.where(degrees > hop.fanout, picks, 0)  # others are taken whole
        moves = drawn.astype(np.float64) * (drawn / 2 + gaps)
        if len(moves) and moves.max() > _MOST_MOVES:
            raise ProtocolError(
                f"a fan-out of {hop.fanout} by weight without replacement takes too long from a "
                "row of more neighbours: ask for a smaller one"
            )
        costs = costs + (moves / _MOVES).astype(np.int64)
    return costs


def check_draws(hop: HopRequest) -> None:
    """Raise ProtocolError if a hop asks one row for too many draws with replacement."""
    if hop.replace and hop.fanout > MOST_REPEATED:
        raise ProtocolError(
            f"a fan-out of {hop.fanout} with replacement is more than the {MOST_REPEATED} that are "
            "allowed: ask for a smaller one"
        )


def costs_of_edges(degrees: Int64Array) -> Int64Array:
    """Return the cost of a question for an edge of each row."""
    return _ROW + degrees // _SCANNED


def costs_of_induced(degrees: Int64Array) -> Int64Array:
    """Return the cost of a look at all neighbours of each row; a quarter of that of a draw."""
    return _ROW + degrees // 4


def rows_in_slice(row_bytes: int) -> int:
    """Return how many rows of attributes are gathered at a time."""
    return max(1, SLICE // (_ROW + row_bytes // _ROW_BYTES))


def cost_of_rows(num_rows: int, row_bytes: int) -> int:
    """Return the cost of gathering rows of an attribute."""
    return _ATTRIBUTE + num_rows * (_ROW + row_bytes // _ROW_BYTES)


def joined(pieces: Sequence[Sequence[Array]]) -> Iterator[list[Array]]:
    """Join the arrays of replies to pieces of a request, one after the other.

    Yields:
        An empty list after each piece that was copied, then the arrays, last.
    """
    outs: list[Array] = []
    for arrays in zip(*pieces, strict=True):
        out = np.empty(sum(map(len, arrays)), arrays[0].dtype)
        begin = 0
        for array in arrays:
            out[begin : begin + len(array)] = array
            begin += len(array)
            yield []
        outs.append(out)
    yield outs


def _cost_of_pick(hop: HopRequest) -> int:
    return _WEIGHTED_PICK if hop.weighted else _PICK


def _moves(hop: HopRequest, picks: int, gaps: int) -> int:
    if not hop.weighted or hop.replace:
        return 0
    return picks * (picks // 2 + gaps) // _MOVES
