"""`NeighborLoader`: PyG's, with khop's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

from khop.data.arrays import check_range
from khop.loader.base import EpochLoader, WorkerType, check_loader_options
from khop.loader.collate import annotate_seeds
from khop.sampler.neighbor import BatchKey, NeighborSampler


class NeighborLoader(EpochLoader, torch_geometric.loader.NeighborLoader):  # type: ignore[misc]
    """PyG's `NeighborLoader`, needing neither pyg-lib nor torch-sparse.

    Takes PyG's arguments, returns PyG's batches: seeds first in `n_id`, `edge_index` in the batch's
    numbering, `e_id`, `input_id`, `batch_size`, `num_sampled_nodes`, `num_sampled_edges`, and every
    attribute of the sampled nodes and edges. Which neighbours are drawn is a function of seed,
    epoch, batch index and graph, whatever the number of workers.

    Args:
        data: a PyG `Data` or `HeteroData`.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours.
        input_nodes: seeds: int64 ids, a boolean mask, or None for all nodes; of a `HeteroData`: a
            node type, or (node type, seeds).
        input_time, disjoint, temporal_strategy, time_attr, weight_attr, subgraph_type: PyG's
            options that are still to come raise NotImplementedError.
        replace: draw with replacement.
        transform: applied to each batch, in the process that iterates.
        transform_sampler_output: applied to what the sampler returns.
        is_sorted: accepted; not needed.
        filter_per_worker: with worker processes: join features there (default) or in the trainer.
        neighbor_sampler: use this sampler instead.
        directed: deprecated in PyG; only True.
        seed: makes epochs reproducible; epoch i of two loaders of equal seed is the same. Default:
            each epoch takes one from `generator` or torch's default generator, so that
            `torch.manual_seed` decides, as with PyG (worker processes take one more from it).
        stream: separates loaders of the same seed. Default: the rank of the trainer if
            torch.distributed is initialised, else 0, so that trainers draw differently.
        worker_type: what `num_workers` counts: 'thread' (default; no copy of the graph, no
            pickling) or 'process' (torch's worker processes, for heavy Python transforms).
        **kwargs: those of `torch.utils.data.DataLoader`: `batch_size`, `shuffle`, `drop_last`,
            `num_workers`, `generator`, `sampler`, ...

    Raises:
        NotImplementedError: an option that is still to come, by name.
        IndexError, TypeError, ValueError: seeds that do not exist or are no integers; arguments
            that contradict one another.
    """

    pyg_loader = torch_geometric.loader.NodeLoader
    read_by_pyg = ("data", "node_sampler", "input_data", "custom_cls")

    def __init__(
        self,
        data: Data | HeteroData,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        seed: int | None = None,
        stream: int | None = None,
        worker_type: WorkerType = "thread",
        **kwargs: Any,
    ) -> None:
        check_loader_options(worker_type, kwargs)
        if input_time is not None:
            raise NotImplementedError("input_time is still to come")
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler(
                data,
                num_neighbors,
                subgraph_type,
                replace,
                disjoint,
                temporal_strategy,
                time_attr,
                weight_attr,
                is_sorted,
                directed=directed,
            )
        input_nodes = _checked_seeds(data, input_nodes)
        super().__init__(
            data,
            num_neighbors,
            input_nodes,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            **kwargs,
        )
        self._set_up(self.input_data.node.numel(), seed, stream, worker_type, kwargs)

    @property
    def _sampler(self) -> Any:
        return self.node_sampler

    def _draw(self, inputs: NodeSamplerInput, key: BatchKey | None) -> Any:
        if isinstance(self.node_sampler, NeighborSampler):
            return self.node_sampler.sample_from_nodes(inputs, key=key)
        return self.node_sampler.sample_from_nodes(inputs)

    def _annotate(self, batch: Any, metadata: Any) -> None:
        annotate_seeds(batch, self.input_data.input_type, metadata)


def _checked_seeds(data: Any, input_nodes: Any) -> Any:
    """`input_nodes` as PyG takes them; masks in any form, which PyG may mistake for ids."""
    if not isinstance(data, HeteroData):
        return _checked_ids(input_nodes, int(data.num_nodes))
    node_type, ids = (input_nodes, None) if isinstance(input_nodes, str) else (None, None)
    if isinstance(input_nodes, (tuple, list)) and len(input_nodes) == 2:
        node_type, ids = input_nodes
    if not isinstance(node_type, str) or node_type not in data.node_types:
        raise ValueError(
            "input_nodes of a HeteroData must be a node type, or (node type, seeds), with a type "
            f"of {data.node_types} (got {input_nodes!r})"
        )
    return node_type, _checked_ids(ids, int(data[node_type].num_nodes))


def _checked_ids(ids: Any, num_nodes: int) -> Any:
    if ids is None:
        return None
    if isinstance(ids, (list, np.ndarray)):
        empty = isinstance(ids, list) and not ids
        ids = torch.as_tensor(np.asarray(ids, np.int64 if empty else None))
    if not isinstance(ids, Tensor):
        ids = torch.tensor(list(ids))
    if ids.dim() != 1:
        raise ValueError(f"input_nodes must have one dimension (got {ids.dim()})")
    if ids.dtype == torch.bool:
        if ids.numel() != num_nodes:
            raise ValueError(
                f"input_nodes is a mask of {ids.numel()} entries for {num_nodes} nodes"
            )
        return ids
    if ids.dtype.is_floating_point or ids.dtype.is_complex:
        raise TypeError(f"input_nodes must hold integers (got '{ids.dtype}')")
    check_range(ids.cpu().numpy(), num_nodes, "input_nodes")
    return ids
