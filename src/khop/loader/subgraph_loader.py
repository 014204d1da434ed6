"""`SubGraphLoader`: the enclosing subgraphs of seeds."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from khop.loader.neighbor_loader import NeighborLoader


class SubGraphLoader(NeighborLoader):
    """All edges among seeds and their neighbours, as SEAL and ShaDow want them.

    A batch holds the seeds, the neighbours drawn hop by hop, and every edge of the graph between
    two of them. `mapping` says where in the batch the seeds are. With `disjoint=True` each seed has
    a subgraph of its own, told apart by `batch`.

    Args:
        data: a PyG `Data` or `HeteroData`, or a (FeatureStore, GraphStore) pair.
        input_nodes: seeds, as for `NeighborLoader`.
        num_neighbors: fan-out of each hop; -1 takes all neighbours; None: no hops, the subgraph of
            the seeds alone.
        **kwargs: as for `NeighborLoader`, but for `subgraph_type`.

    Raises:
        TypeError: `subgraph_type` is given.
    """

    def __init__(
        self,
        data: Data | HeteroData | Any,
        input_nodes: Any,
        num_neighbors: Any = None,
        **kwargs: Any,
    ) -> None:
        if "subgraph_type" in kwargs:
            raise TypeError("a SubGraphLoader's batches are induced: leave subgraph_type out")
        hops = [] if num_neighbors is None else num_neighbors
        super().__init__(data, hops, input_nodes, subgraph_type="induced", **kwargs)

    def _annotate(self, batch: Any, metadata: Any) -> None:
        super()._annotate(batch, metadata)
        self._map_seeds(batch)

    def _joined_by_pyg(self, out: Any) -> Any:
        batch = super()._joined_by_pyg(out)
        self._map_seeds(batch)
        return batch

    def _map_seeds(self, batch: Any) -> None:
        """Adds where the seeds are."""
        seed_type = self.input_data.input_type
        store = batch if seed_type is None else batch[seed_type]
        store.mapping = torch.arange(store.batch_size)
