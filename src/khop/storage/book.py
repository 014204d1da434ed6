"""Map from ids to partitions: each part owns a contiguous range of ids. Used by any process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from khop.typing import Int64Array, IntArray


class RangeBook:
    """Map from ids to parts by binary search over the range bounds.

    Args:
        bounds: [num_parts + 1] non-decreasing. Part p owns ids bounds[p] .. bounds[p + 1] - 1.

    Raises:
        ValueError: bounds that decrease, do not begin with 0, or are fewer than two.

    Example:
        >>> book = RangeBook([0, 3, 6])
        >>> book.owner(np.array([2, 3])), book.size(1)
        (array([0, 1]), 3)
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = [int(b) for b in bounds]
        if len(self.bounds) < 2 or self.bounds[0] != 0:
            raise ValueError(
                f"bounds must begin with 0 and hold two entries or more (got {bounds})"
            )
        if any(a > b for a, b in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError(f"bounds must not decrease (got {bounds})")

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.bounds) - 1

    @property
    def num_ids(self) -> int:
        """Number of ids in all parts."""
        return self.bounds[-1]

    def size(self, part: int) -> int:
        """Return the number of ids that `part` owns."""
        return self.bounds[part + 1] - self.bounds[part]

    def owner(self, ids: IntArray) -> Int64Array:
        """Return the part that owns each id: int64, in the shape of `ids`. All ids must exist."""
        return np.searchsorted(self.bounds, ids, side="right").astype(np.int64) - 1
