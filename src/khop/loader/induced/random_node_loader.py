"""`RandomNodeLoader`: a graph's nodes, cut into parts. Runs in the trainer."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from torch_geometric.data import Data, HeteroData

from khop.loader.arguments import EpochOptions, check_positive
from khop.loader.induced.base import InducedLoader
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.source import open_input
from khop.sampler.requests import SeedSet
from khop.typing import Int64Array

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RandomNodeLoader(InducedLoader):
    """PyG's `RandomNodeLoader`: parts of the nodes, each with all edges among them.

    A batch has ceil(num_nodes / num_parts) nodes. In a heterogeneous graph, all node types count
    together. A part has consecutive ids. With `shuffle=True`, each epoch has new random parts.

    Args:
        data: a PyG `Data` or `HeteroData`.
        num_parts: number of parts.
        **kwargs: `EpochOptions`: `transform`, `seed`, `shuffle`, `num_workers`, ...

    Raises:
        TypeError, ValueError: `num_parts` is no positive integer, or other arguments are invalid.

    Example:
        >>> loader = RandomNodeLoader(data, num_parts=2, shuffle=True, seed=1)
        >>> [batch.n_id.numel() for batch in loader]
        [3, 3]
    """

    def __init__(
        self, data: Data | HeteroData, num_parts: int, **kwargs: Unpack[EpochOptions]
    ) -> None:
        if not isinstance(data, Data | HeteroData):
            raise TypeError(
                f"RandomNodeLoader takes a Data or a HeteroData (got '{type(data).__name__}')"
            )
        if "batch_size" in kwargs:
            raise TypeError("num_parts says how large batches are: leave batch_size out")
        check_positive(num_parts, "num_parts")
        self.num_parts = num_parts
        counts = open_input(data).num_nodes.values()
        self._bounds = [0, *itertools.accumulate(counts)]  # of each type's nodes among all
        super().__init__(
            data, self._bounds[-1], batch_size=max(1, -(-self._bounds[-1] // num_parts)), **kwargs
        )

    def _chosen(self, items: Int64Array, key: BatchKey) -> list[SeedSet]:
        return [
            SeedSet(i, np.ascontiguousarray(items[(items >= a) & (items < b)] - a))
            for i, (a, b) in enumerate(itertools.pairwise(self._bounds))
        ]
