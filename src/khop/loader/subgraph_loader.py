"""`SubGraphLoader`: enclosing subgraphs of seeds. Runs in the trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from khop.loader.neighbor_loader import NeighborLoader


class SubGraphLoader(NeighborLoader):
    """Loader of induced subgraphs, for SEAL and ShaDow: all edges among seeds and neighbours.

    A batch holds the seeds, the neighbours drawn hop by hop, and every edge of the graph between
    two of them. `mapping` holds the positions of the seeds in the batch. With `disjoint=True` each
    seed has a separate subgraph, identified by `batch`.

    Args:
        data: a PyG `Data` or `HeteroData`, or a (FeatureStore, GraphStore) pair.
        input_nodes: seeds, as for `NeighborLoader`.
        num_neighbors: fan-out of each hop; -1 takes all neighbours. If None, no hops: the subgraph
            of only the seeds.
        **kwargs: as for `NeighborLoader`, without `subgraph_type`.

    Raises:
        TypeError: `subgraph_type` is given.

    Example:
        >>> loader = SubGraphLoader(data, torch.tensor([0, 1, 2]), batch_size=3)
        >>> next(iter(loader)).num_edges  # those between the three
        3
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

    def _join_by_pyg(self, out: Any) -> Any:
        batch = super()._join_by_pyg(out)
        self._map_seeds(batch)
        return batch

    def _map_seeds(self, batch: Any) -> None:
        """Add `mapping`, the positions of the seeds."""
        seed_type = self.input_data.input_type
        store = batch if seed_type is None else batch[seed_type]
        store.mapping = torch.arange(store.batch_size)
