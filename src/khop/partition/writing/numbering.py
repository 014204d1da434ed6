"""New node ids, contiguous by part."""

from __future__ import annotations

import numpy as np

from khop import _native
from khop.storage.book import RangeBook
from khop.typing import Array, IntArray


class Numbering:
    """New ids of a node type: by part, and within a part by `keys` and original ids.

    Args:
        owners: [num_nodes] part of each node.
        num_parts: number of parts.
        keys: [num_nodes] numbers; the nodes of a part are ascending in them, and those with equal
            ones in their original ids. If None, in their original ids alone.

    Attributes:
        owners: [num_nodes] part of each node.
        book: the part of each range of new ids.
        old_of_new, new_of_old: [num_nodes] ids, of the narrowest of int32 and int64 that fits.
    """

    def __init__(self, owners: IntArray, num_parts: int, keys: Array | None = None) -> None:
        self.owners = np.ascontiguousarray(owners, np.int32)
        bounds, self.old_of_new, self.new_of_old = _native.number_by_owner(self.owners, num_parts)
        self.book = RangeBook(bounds.tolist())
        if keys is not None:
            by_key = np.argsort(keys, kind="stable")
            _, order, _ = _native.number_by_owner(self.owners[by_key], num_parts)
            self.old_of_new = by_key[order].astype(self.old_of_new.dtype)
            self.new_of_old[self.old_of_new] = np.arange(len(owners))
