"""Edges of one type between two steps, in the object stores of a Ray cluster.

Imports Ray when blocks are read, and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from khop.partition.out_of_core.stage import Stage
from khop.partition.out_of_core.workspace import Columns
from khop.typing import Array, Int64Array


class ObjectStage(Stage):
    """Stage whose blocks are objects, one for each piece of the edge list.

    Args:
        columns: dtype and shape of a row of each column.
        places: [num_blocks + 1] int64, the first edge of each block.
        references: block -> of each piece its columns, or None if it has none of the block's edges.
    """

    def __init__(
        self, columns: Columns, places: Int64Array, references: Mapping[int, list[Any]]
    ) -> None:
        super().__init__({}, places)
        self._rows, self._references = columns, references
        self._held: tuple[int, list[Mapping[str, Array]]] = -1, []

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self._places) - 1

    def keep(self, blocks: Sequence[Any]) -> None:
        """Add the references of a piece: one for each block."""
        for block, reference in enumerate(blocks):
            self._references[block].append(reference)

    def of(self, blocks: range) -> ObjectStage:
        """Return a stage that holds these blocks alone."""
        chosen = {block: self._references[block] for block in blocks}
        return ObjectStage(self._rows, self._places, chosen)

    def read(self, block: int, name: str) -> Any:
        """Return a column of a block; the objects of one block are held until the next is read."""
        import ray

        if self._held[0] != block:
            self._held = -1, []
            pieces = ray.get(self._references[block])
            self._held = block, [piece for piece in pieces if piece is not None]
        dtype, shape = self._rows[name]
        found = [piece[name] for piece in self._held[1]]
        return np.concatenate(found) if found else np.empty((0, *shape), dtype)
