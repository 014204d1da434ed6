"""Arithmetic on rows of neighbours, which several methods share. Imports no torch.

An *entry* is a position in the neighbours of `Rows`, which are stored row by row.
"""

from __future__ import annotations

import numpy as np

from khop import _native
from khop.sampler.methods.access import Rows
from khop.typing import Array, Float64Array, Int64Array, UInt64Array


def ranges(begins: Array, counts: Array) -> Int64Array:
    """Return begins[i], ..., begins[i] + counts[i] - 1 for each i, one range after the other."""
    before = np.cumsum(counts, dtype=np.int64) - counts
    return np.arange(int(counts.sum(dtype=np.int64))) + np.repeat(begins - before, counts)


def positions_in_rows(rows: Int64Array) -> Int64Array:
    """Return the position of each entry in its row, from 0.

    Args:
        rows: [n] int64 row of each entry, ascending.
    """
    begins = np.flatnonzero(np.diff(rows, prepend=-1) != 0)
    return ranges(np.zeros_like(begins), np.diff(begins, append=len(rows)))


def kept(rows: Rows, entries: Int64Array) -> Rows:
    """Return rows reduced to some of their neighbours.

    Args:
        rows: the rows.
        entries: [n] int64 entries that stay, ascending. An entry can repeat.
    """
    counts, neighbors, edges = rows
    ends = np.searchsorted(entries, np.cumsum(counts, dtype=np.int64))
    left = np.diff(ends, prepend=0).astype(np.int32)
    return left, neighbors[entries], None if edges is None else edges[entries]


def numbered(ids: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Number ids in the order in which they first appear.

    Args:
        ids: [n] integers, not negative.

    Returns:
        The distinct ids in this order, and the number of each id.
    """
    ids = np.ascontiguousarray(ids, np.int64)
    table = _native.NodeNumbers(int(ids.max(initial=0)) + 1)
    numbers = table.number(ids)
    return table.ids(), numbers


def sortable(values: Array) -> Float64Array | Int64Array | UInt64Array:
    """Return values as kernels compare them, in the same order, with the same ones equal.

    Args:
        values: [n] of any dtype that can be sorted.
    """
    values = np.asarray(values)
    dtypes = {"f": np.float64, "u": np.uint64, "i": np.int64, "b": np.int64}
    if values.dtype.kind not in dtypes or values.dtype.itemsize > 8:
        values = np.unique(values, return_inverse=True)[1]
    contiguous: Float64Array | Int64Array | UInt64Array
    contiguous = np.ascontiguousarray(values, dtypes[values.dtype.kind])  # type: ignore[assignment]
    return contiguous


def scaled_to_counts(norm: Float64Array, row: Int64Array) -> Float64Array:
    """Scale positive weights of edges so that each row's sum is its number of edges.

    Args:
        norm: [n] float64.
        row: [n] int64 row of each edge.
    """
    counts, sums = np.bincount(row), np.bincount(row, norm)
    scale = np.divide(counts, sums, out=np.zeros(len(sums)), where=sums > 0)
    return norm * scale[row]
