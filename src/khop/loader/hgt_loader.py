"""`HGTLoader`: as many nodes of each type in every iteration. Runs in the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

from khop.loader.arguments import HopOptions, refuse_settled
from khop.loader.neighbor_loader import NeighborLoader
from khop.sampler.methods import Hgt
from khop.typing import NodeType, SeedNodes, Transform

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SETTLED = ("num_neighbors", "neighbor_sampler", "subgraph_type", "replace", "disjoint", "directed")


class HGTLoader(NeighborLoader):
    """PyG's `HGTLoader` without torch-sparse: all edges among nodes drawn by their links.

    `khop.sampler.Hgt` describes how nodes are drawn. In the `n_id` of its type, a batch has the
    seeds first, then the nodes in the order of their draws. It has every edge of the graph among
    these nodes, sorted by destination, and `e_id`, `input_id`, `batch_size`. Of rows with more than
    50 edges, PyG's loader draws 50, some with other edges' ids. Here rows are whole. A `Data` is a
    graph of one type. Over partitions, `DistNeighborLoader(dataset, Hgt(num_samples), ...)` makes
    the same batches.

    Method: HGSampling (https://arxiv.org/abs/2003.01332).

    Args:
        data: a PyG `HeteroData` or `Data`, or a (FeatureStore, GraphStore) pair.
        num_samples: nodes of each type in every iteration, or {node type: such a list}.
        input_nodes: seeds, as for `NeighborLoader`: a node type, or (node type, seeds).
        is_sorted: accepted. Without times, edges are compressed in linear time, sorted or not.
        transform, transform_sampler_output, filter_per_worker: as for `NeighborLoader`.
        **kwargs: `HopOptions`: `batch_size`, `shuffle`, `seed`, `num_workers`, ...

    Raises:
        IndexError, TypeError, ValueError: as `NeighborLoader` and `khop.sampler.Hgt`, or an option
            that the method settles, `replace` for example.

    Example:
        >>> loader = HGTLoader(data, [2, 1], torch.tensor([0, 3]), batch_size=2, seed=0)
        >>> batch = next(iter(loader))
        >>> batch.n_id[:2].tolist(), batch.num_nodes, batch.batch_size
        ([0, 3], 5, 2)
    """

    def __init__(
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        num_samples: Sequence[int] | Mapping[NodeType, Sequence[int]],
        input_nodes: SeedNodes,
        is_sorted: bool = False,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        filter_per_worker: bool | None = None,
        **kwargs: Unpack[HopOptions],
    ) -> None:
        refuse_settled(self, _SETTLED, kwargs)
        super().__init__(
            data,
            Hgt(num_samples),
            input_nodes,
            is_sorted=is_sorted,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            **kwargs,
        )
