"""`HGTLoader`: as many nodes of each type in every iteration. Runs in the trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from khop.loader.neighbor_loader import NeighborLoader
from khop.sampler.methods import Hgt

_SETTLED = ("num_neighbors", "neighbor_sampler", "subgraph_type", "replace", "disjoint", "directed")


class HGTLoader(NeighborLoader):
    """PyG's `HGTLoader` without torch-sparse: all edges among nodes drawn by their links.

    `khop.sampler.Hgt` says how nodes are drawn. A batch has the seeds first in the `n_id` of their
    type, then the nodes of each type in the order in which they were drawn, every edge of the graph
    among them, sorted by destination, `e_id`, `input_id` and `batch_size`. PyG's loader draws 50
    edges of longer rows, of which some have other edges' ids; here rows are whole. A `Data` is a
    graph of one type. Over partitions, `DistNeighborLoader(dataset, Hgt(num_samples), ...)` makes
    the same batches.

    Method: HGSampling (https://arxiv.org/abs/2003.01332).

    Args:
        data: a PyG `HeteroData` or `Data`, or a (FeatureStore, GraphStore) pair.
        num_samples: nodes of each type in every iteration; or {node type: such a list}.
        input_nodes: seeds, as for `NeighborLoader`: a node type, or (node type, seeds).
        is_sorted: accepted; without times edges are compressed in linear time, sorted or not.
        transform, transform_sampler_output, filter_per_worker: as for `NeighborLoader`.
        **kwargs: as for `NeighborLoader`, torch's among them: `batch_size`, `shuffle`, `seed`,
            `num_workers`, ...

    Raises:
        IndexError, TypeError, ValueError: as `NeighborLoader` and `khop.sampler.Hgt`; what the
            method settles, `replace` for example.

    Example:
        >>> loader = HGTLoader(data, [2, 1], torch.tensor([0, 3]), batch_size=2, seed=0)
        >>> batch = next(iter(loader))
        >>> batch.n_id[:2].tolist(), batch.num_nodes, batch.batch_size
        ([0, 3], 5, 2)
    """

    def __init__(
        self,
        data: Any,
        num_samples: Any,
        input_nodes: Any,
        is_sorted: bool = False,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        filter_per_worker: bool | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _SETTLED:
            if name in kwargs:
                raise TypeError(f"{type(self).__name__} has no argument {name}: leave it out")
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
