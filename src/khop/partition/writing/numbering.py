"""New node ids, contiguous in each part, and the data that all writers of a folder share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from khop import _native
from khop.partition.draws import DrawAttrs
from khop.partition.out_of_core.workspace import Workspace
from khop.storage.book import RangeBook
from khop.storage.folder import FolderWriter
from khop.typing import Array, EdgeDir, IntArray, NodeType, Progress


class Numbering:
    """New ids of the nodes of a type, by which a folder stores them: contiguous in each part.

    Nodes are sorted by part, then by `keys` [num_nodes] if not None, then by original id.

    Attributes:
        owners: [num_nodes] int32 part of each node.
        book: the range of new ids of each part.
        old_of_new: [num_nodes] original id of each new id, int32 if that fits, else int64.
        new_of_old: [num_nodes] new id of each original id, of the same dtype.
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


@dataclass(frozen=True)
class FolderJob:
    """Folder that is being written, and the data that writers of nodes and of edges share.

    `PartitionerBase.partition` makes it.
    """

    writer: FolderWriter
    workspace: Workspace
    numbering: Mapping[NodeType, Numbering]
    num_parts: int
    edge_dir: EdgeDir
    draws: DrawAttrs
    neighbor_ids: bool
    edge_ids: bool
    progress: Progress
