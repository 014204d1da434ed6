"""`SubGraphLoader`: enclosing subgraphs of seeds. Runs in the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.loader.arguments import NodeOptions, _NodeSampler
from khop.loader.neighbor_loader import NeighborLoader
from khop.sampler.methods import SamplingMethod
from khop.typing import NumNeighbors, SeedNodes, Transform

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SubGraphLoader(NeighborLoader):
    """Loader of induced subgraphs, for SEAL and ShaDow: all edges among seeds and neighbours.

    A batch holds the seeds, the neighbours drawn hop by hop, and every edge of the graph between
    two of them. `mapping` holds the positions of the seeds in the batch. With `disjoint=True` each
    seed has a separate subgraph, identified by `batch`.

    Args:
        data: a PyG `Data` or `HeteroData`, or a (FeatureStore, GraphStore) pair.
        input_nodes: seeds, as for `NeighborLoader`.
        num_neighbors: fan-out of each hop. -1 takes all neighbours. If None, no hops: the subgraph
            of only the seeds.
        replace, disjoint, transform_sampler_output, neighbor_sampler: as for `NeighborLoader`.
        **kwargs: `NodeOptions`: `batch_size`, `shuffle`, `seed`, `num_workers`, ...

    Raises:
        TypeError: `subgraph_type` is given.

    Example:
        >>> loader = SubGraphLoader(data, torch.tensor([0, 1, 2]), batch_size=3)
        >>> next(iter(loader)).num_edges  # between two of the three
        3
    """

    def __init__(
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        input_nodes: SeedNodes,
        num_neighbors: NumNeighbors | SamplingMethod | None = None,
        *,
        replace: bool = False,
        disjoint: bool = False,
        transform_sampler_output: Transform | None = None,
        neighbor_sampler: _NodeSampler | None = None,
        **kwargs: Unpack[NodeOptions],
    ) -> None:
        if "subgraph_type" in kwargs:
            raise TypeError("a SubGraphLoader's batches are induced: leave subgraph_type out")
        super().__init__(
            data,
            [] if num_neighbors is None else num_neighbors,
            input_nodes,
            replace=replace,
            subgraph_type="induced",
            disjoint=disjoint,
            transform_sampler_output=transform_sampler_output,
            neighbor_sampler=neighbor_sampler,
            **kwargs,
        )

    def _annotate(self, batch: Data | HeteroData, metadata: Any) -> None:
        super()._annotate(batch, metadata)
        self._map_seeds(batch)

    def _join_by_pyg(self, out: SamplerOutput | HeteroSamplerOutput) -> Data | HeteroData:
        batch = super()._join_by_pyg(out)
        self._map_seeds(batch)
        return batch

    def _map_seeds(self, batch: Data | HeteroData) -> None:
        seed_type = self.input_data.input_type
        store = batch if seed_type is None else batch[seed_type]
        store.mapping = torch.arange(store.batch_size)
