"""Features whose rows lie in several places: shards, one after the other, or rows in a new order.

Any process; imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from khop.data.arrays import storage_dtype
from khop.data.feature import Feature
from khop.typing import Array, Int64Array, IntArray


class _Elsewhere(Feature):
    """Base of features whose rows are those of others."""

    @cached_property
    def array(self) -> Array:  # type: ignore[override]
        """All rows, in memory once they are asked for."""
        return self.gather(np.arange(self.num_rows))


class JoinedFeature(_Elsewhere):
    """Rows of several features, one after the other; nothing is copied.

    Args:
        pieces: one feature or more, of one dtype and row shape.

    Raises:
        ValueError: they differ.

    Example:
        >>> joined = JoinedFeature([Feature(np.array([1, 2])), Feature(np.array([3]))])
        >>> joined.gather(np.array([2, 0])).tolist()
        [3, 1]
    """

    def __init__(self, pieces: Sequence[Feature]) -> None:
        first = pieces[0]
        for piece in pieces:
            if (piece.dtype, piece.row_shape) != (first.dtype, first.row_shape):
                raise ValueError(
                    f"pieces of one feature differ: rows of {first.dtype} {list(first.row_shape)} "
                    f"and of {piece.dtype} {list(piece.row_shape)}"
                )
        self._pieces = pieces
        self._bounds = np.cumsum([0, *(piece.num_rows for piece in pieces)])
        self.dtype = first.dtype

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self._bounds[-1])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; () for 1-D features."""
        return self._pieces[0].row_shape

    def gather(
        self,
        rows: IntArray,
        out: Array | None = None,
        places: Int64Array | None = None,
        num_threads: int = 1,
    ) -> Array:
        """Copy rows; see `Feature.gather`."""
        if out is None:
            out = np.empty((len(rows), *self.row_shape), storage_dtype(self.dtype))
        holders = np.searchsorted(self._bounds, rows, side="right") - 1
        for holder in np.unique(holders):
            here = np.flatnonzero(holders == holder)
            to = here if places is None else places[here]
            # A row that does not exist is refused by the piece next to it.
            piece = min(max(holder, 0), len(self._pieces) - 1)
            own = (rows[here] - self._bounds[piece]).astype(np.int64)
            self._pieces[piece].gather(own, out, to, num_threads)
        return out

    def content(self) -> tuple[Array, ...]:
        """Return arrays that tell these rows from others."""
        return tuple(array for piece in self._pieces for array in piece.content())


class TakenFeature(_Elsewhere):
    """Rows of another feature, in another order; nothing is copied.

    Args:
        rows: the other feature.
        places: [num_rows] int32 or int64, where each row is in it.

    Example:
        >>> taken = TakenFeature(Feature(np.array([5, 6, 7])), np.array([2, 2, 0]))
        >>> taken.gather(np.array([0, 2])).tolist()
        [7, 5]
    """

    def __init__(self, rows: Feature, places: IntArray) -> None:
        self._rows, self._places = rows, places
        self.dtype = rows.dtype

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._places)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; () for 1-D features."""
        return self._rows.row_shape

    def gather(
        self,
        rows: IntArray,
        out: Array | None = None,
        places: Int64Array | None = None,
        num_threads: int = 1,
    ) -> Array:
        """Copy rows; see `Feature.gather`."""
        return self._rows.gather(self._places[rows], out, places, num_threads)

    def content(self) -> tuple[Array, ...]:
        """Return arrays that tell these rows from others."""
        return (*self._rows.content(), self._places)
