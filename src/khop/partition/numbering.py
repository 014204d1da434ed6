"""New node ids, contiguous by part."""

from __future__ import annotations

import numpy as np

from khop.storage.book import RangeBook
from khop.typing import Int64Array, IntArray


class Numbering:
    """New ids of a node type: by part, and within a part in the order of original ids.

    Args:
        owners: [num_nodes] part of each node.
        num_parts: number of parts.

    Attributes:
        owners: [num_nodes] part of each node.
        book: the part of each range of new ids.
        old_of_new, new_of_old: [num_nodes] int64.
    """

    def __init__(self, owners: IntArray, num_parts: int) -> None:
        self.owners = owners
        sizes = np.bincount(owners, minlength=num_parts)
        self.book = RangeBook([0, *np.cumsum(sizes).tolist()])
        narrow = owners.astype(np.uint16) if num_parts <= 2**16 else owners
        self.old_of_new: Int64Array = np.argsort(narrow, kind="stable").astype(np.int64)
        self.new_of_old: Int64Array = np.empty_like(self.old_of_new)
        self.new_of_old[self.old_of_new] = np.arange(len(owners))
