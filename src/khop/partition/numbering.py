"""New node ids, contiguous by part."""

from __future__ import annotations

import numpy as np

from khop import _native
from khop.storage.book import RangeBook
from khop.typing import IntArray


class Numbering:
    """New ids of a node type: by part, and within a part in the order of original ids.

    Args:
        owners: [num_nodes] part of each node.
        num_parts: number of parts.

    Attributes:
        owners: [num_nodes] part of each node.
        book: the part of each range of new ids.
        old_of_new, new_of_old: [num_nodes] ids, of the narrowest of int32 and int64 that fits.
    """

    def __init__(self, owners: IntArray, num_parts: int) -> None:
        self.owners = np.ascontiguousarray(owners, np.int32)
        bounds, self.old_of_new, self.new_of_old = _native.number_by_owner(self.owners, num_parts)
        self.book = RangeBook(bounds.tolist())
