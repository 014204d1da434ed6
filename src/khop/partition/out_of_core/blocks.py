"""Blocks of rows, which are sorted one at a time. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from khop.typing import Int64Array, IntArray

# Rows without edges take memory, too: their pointers.
_ROWS_AN_EDGE = 4


def block_bounds(indptr: IntArray, parts: Sequence[int], most_edges: int) -> Int64Array:
    """Cut rows into blocks of at most `most_edges` edges; no block has rows of two parts.

    A row with more edges is a block of its own.

    Args:
        indptr: [num_rows + 1] row pointers.
        parts: [num_parts + 1] bounds of the parts' rows.
        most_edges: edges of a block; at least 1.

    Returns:
        [num_blocks + 1] int64 bounds of the blocks' rows.
    """
    bounds, num_edges = [0], int(indptr[-1])
    for last in parts[1:]:
        first = bounds[-1]
        while first < last:
            # Of the pointers' own dtype: NumPy would copy them all to another.
            limit = indptr.dtype.type(min(num_edges, int(indptr[first]) + most_edges))
            fitting = int(np.searchsorted(indptr, limit, "right"))
            first = max(first + 1, min(last, fitting - 1, first + _ROWS_AN_EDGE * most_edges))
            bounds.append(first)
    return np.array(bounds if len(bounds) > 1 else [0, 0], np.int64)
