"""New node ids, contiguous by part."""

from __future__ import annotations

import numpy as np

from khop.storage.book import RangeBook
from khop.typing import Array, Int64Array, IntArray


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
        old_of_new, new_of_old: [num_nodes] int64.
    """

    def __init__(self, owners: IntArray, num_parts: int, keys: Array | None = None) -> None:
        self.owners = owners
        sizes = np.bincount(owners, minlength=num_parts)
        self.book = RangeBook([0, *np.cumsum(sizes).tolist()])
        narrow = owners.astype(np.uint16) if num_parts <= 2**16 else owners
        self.old_of_new: Int64Array = np.argsort(narrow, kind="stable").astype(np.int64)
        self.new_of_old: Int64Array = np.empty_like(self.old_of_new)
        self.new_of_old[self.old_of_new] = np.arange(len(owners))
        if keys is not None:
            by_key = np.argsort(keys, kind="stable")
            self.old_of_new[:] = by_key[np.argsort(owners[by_key], kind="stable")]
            self.new_of_old[self.old_of_new] = np.arange(len(owners))
