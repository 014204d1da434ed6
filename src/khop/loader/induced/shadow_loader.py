"""`ShaDowKHopSampler`: loader with a separate subgraph for each seed. Runs in the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from khop.loader.arguments import NodeOptions, check_positive, refuse_settled
from khop.loader.batches.collate import put
from khop.loader.batches.collator import Collator
from khop.loader.induced.base import check_homogeneous
from khop.loader.neighbor_loader import NeighborLoader
from khop.sampler.pyg.output import SampledSubgraph
from khop.typing import Numbers

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SETTLED = ("subgraph_type", "disjoint", "neighbor_sampler", "transform_sampler_output")


class ShaDowKHopSampler(NeighborLoader):
    """PyG's `ShaDowKHopSampler`: for each root, a subgraph with all edges of its neighbourhood.

    Each root (seed) draws its own neighbours, hop by hop. Its subgraph has every edge among them. A
    batch is a PyG `Batch`: subgraphs one after the other, nodes ascending in each, edges by source
    and destination. It has `batch`, `ptr`, `root_n_id` (positions of the roots), `y` of the roots
    alone, the attributes of all nodes and edges, `n_id`, `e_id` and `input_id`. Over
    partitions, `DistSubGraphLoader(dataset, roots, [num_neighbors] * depth, disjoint=True)` draws
    the same subgraphs, roots first. Where subgraphs of a batch overlap, the edges of a node are
    read once. So hubs cost little more than their edges in the batch (benchmarks/README.md).

    Method: shaDow-GNN (https://arxiv.org/abs/2012.01380).

    Args:
        data: a PyG `Data`, with `edge_index` or `adj_t`.
        depth: number of hops.
        num_neighbors: fan-out of each hop. -1 takes all neighbours.
        node_idx: roots: int64 ids, a boolean mask, or None for all nodes.
        replace: draw with replacement.
        **kwargs: `NodeOptions`: `batch_size`, `shuffle`, `seed`, `num_workers`, ...

    Raises:
        IndexError, TypeError, ValueError: as `NeighborLoader`, or `depth` is no positive integer,
            or for an option that this loader determines, such as `disjoint`.

    Example:
        >>> loader = ShaDowKHopSampler(data, 1, 2, torch.tensor([0, 3]), batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.n_id.tolist(), batch.root_n_id.tolist(), batch.y.shape
        ([0, 1, 2, 3, 4, 5], [0, 3], torch.Size([2]))
    """

    def __init__(
        self,
        data: Data,
        depth: int,
        num_neighbors: int,
        node_idx: Numbers | None = None,
        replace: bool = False,
        **kwargs: Unpack[NodeOptions],
    ) -> None:
        check_homogeneous(data, type(self).__name__)
        check_positive(depth, "depth")
        refuse_settled(self, _SETTLED, kwargs)
        super().__init__(
            data,
            [num_neighbors] * depth,
            node_idx,
            replace=replace,
            subgraph_type="induced",
            disjoint=True,
            **kwargs,
        )
        self.depth = depth
        self.num_neighbors = num_neighbors

    def _collate(self, joiner: Collator, drawn: SampledSubgraph, metadata: Any) -> Any:
        num_roots = metadata[0].numel()
        drawn, roots = _by_tree(drawn, num_roots)
        joined: Data = super()._collate(joiner, drawn, metadata)
        batch = Batch(_base_cls=type(joined))
        batch._store._mapping.update(joined._store._mapping)
        assert drawn.trees is not None
        sizes = torch.bincount(drawn.trees[0], minlength=num_roots)
        batch.ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        batch.root_n_id = roots
        if "y" in self.data and self.data.is_node_attr("y"):
            batch.y = batch.y[roots]
        return batch

    def _annotate(self, batch: Batch, metadata: Any) -> None:
        put(batch._store, "input_id", metadata[0])
        put(batch._store, "seed_time", metadata[1])


def _by_tree(drawn: SampledSubgraph, num_roots: int) -> tuple[SampledSubgraph, Tensor]:
    """Sort nodes by tree (the subgraph of one root) and id, and edges by their ends.

    Returns the sorted subgraph, and the positions of the `num_roots` roots in it.
    """
    assert drawn.trees is not None
    (node,), (tree,), (ends,), (edge,) = drawn.nodes, drawn.trees, drawn.edge_index, drawn.edges
    order = torch.argsort(tree * (node.max() + 1) + node)  # a node is in a tree once
    position = torch.empty_like(order)
    position[order] = torch.arange(order.numel(), device=order.device)
    ends = position[ends]
    by_ends = torch.argsort(ends[0] * node.numel() + ends[1], stable=True)
    sorted_ = drawn._replace(
        nodes=[node[order]],
        trees=[tree[order]],
        edge_index=[ends[:, by_ends]],
        edges=[None if edge is None else edge[by_ends]],
    )
    return sorted_, position[:num_roots]
