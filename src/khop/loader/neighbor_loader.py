"""`NeighborLoader`: PyG's loader, with khop's kernels. Runs in the trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import torch_geometric.loader
from torch import Tensor
from torch_geometric.sampler import NodeSamplerInput

from khop.data.device import is_cpu
from khop.loader.arguments import check_hooks, check_loader_options, check_sampler
from khop.loader.base import EpochLoader
from khop.loader.batches.collate import annotate_seeds
from khop.loader.inputs import checked_nodes, checked_times, checked_values, split_nodes
from khop.loader.iteration.epochs import KeyedBatch
from khop.loader.selection import NodeInputs
from khop.sampler.arguments import check_times
from khop.sampler.pyg.device import DeviceOptions
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.output import SampledSubgraph
from khop.sampler.pyg.source import as_input, open_input
from khop.typing import WorkerType


class NeighborLoader(EpochLoader, torch_geometric.loader.NeighborLoader):  # type: ignore[misc]
    """PyG's `NeighborLoader` without pyg-lib and torch-sparse.

    It takes PyG's arguments and returns PyG's batches: seeds first in `n_id`, `edge_index` in the
    batch's numbering, `e_id`, `input_id`, `batch_size`, `num_sampled_nodes`, `num_sampled_edges`,
    and every attribute of the sampled nodes and edges. The drawn neighbours are a function of seed,
    epoch, batch index and graph, for any number of workers. Subclasses may override `collate_fn`
    and `filter_fn`, and users set them on a loader: they are called as by PyG's.

    Args:
        data: a PyG `Data` or `HeteroData` (with `edge_index` or `adj_t`), or any pair of a PyG
            `FeatureStore` and a `GraphStore`, whose edge attributes batches carry, too. Worker
            threads call stores at the same time: pass `filter_per_worker=False` (or
            `worker_type='process'`) for stores that do not support this.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours, and
            no hops, `[]`, only the seeds. Or a method with them, `khop.sampler.Labor([15, 10])`.
        input_nodes: seeds: int64 ids, a boolean mask, or None for all nodes. For a `HeteroData`: a
            node type, or (node type, seeds).
        input_time: [number of seeds] time of each seed; only neighbours up to it are drawn. If
            None, with `time_attr`, the times of the seed nodes.
        replace: draw with replacement.
        subgraph_type: 'directional' (the drawn edges), 'bidirectional' (and their reverses) or
            'induced' (all edges among the drawn nodes).
        disjoint: sample a separate subgraph for each seed, identified by `batch`; always on with
            temporal sampling.
        temporal_strategy: 'uniform', or 'last': the latest neighbours.
        time_attr: attribute of nodes or of edges; only neighbours (or edges) whose time is not
            later than the seed's are drawn.
        weight_attr: attribute of edges to draw neighbours by; those of weight 0 are never drawn.
        transform: applied to each batch, in the process that iterates.
        transform_sampler_output: applied to the sampler's output.
        is_sorted: edges are sorted by destination and, with times, by time for each: checked, not
            sorted.
        filter_per_worker: join features in the workers (default). If False, workers only sample,
            and the thread that iterates joins: for stores that no other may read.
        neighbor_sampler: use this sampler instead.
        directed: deprecated in PyG; False is subgraph type 'induced'.
        seed: makes epochs reproducible: epoch i is the same for equal seed and stream. If None,
            each epoch draws one from `generator` or torch's default generator, so that
            `torch.manual_seed` decides, as with PyG.
        stream: separates the random numbers of loaders with the same seed. If None, the rank of the
            trainer if torch.distributed is initialised, else 0, so that trainers draw differently.
        worker_type: meaning of `num_workers`: 'thread' (no copy of the graph, no pickling) or
            'process' (torch's worker processes, for heavy Python transforms). If None, threads; but
            processes, as with PyG, if `worker_init_fn` or `multiprocessing_context` is given,
            because seeds, affinity and `torch.utils.data.get_worker_info()` belong to a process.
            PyG's `enable_cpu_affinity`, `enable_multithreading` and `enable_memory_log` set
            `worker_init_fn` for the epochs that begin within them. Without workers, a thread still
            draws the next batch, without attributes, if drawing takes more than 2 ms and torch may
            use more than one thread.
        device: GPU that draws and gathers: 'cuda:1', or 'cuda' for torch's current one. Batches are
            in its memory, and equal those made by the CPU. If None or 'cpu', the CPU.
        device_options: placement of graph and attributes with `device`; see
            `khop.loader.DeviceOptions`.
        **kwargs: arguments of `torch.utils.data.DataLoader`: `batch_size`, `shuffle`, `drop_last`,
            `num_workers`, `generator`, `sampler`, ...

    Raises:
        IndexError, TypeError, ValueError: seeds do not exist or are not integers, or arguments
            contradict one another. While batches are made: positions of a user's own `sampler` do
            not exist, or an attribute has no rows for the nodes or edges of a batch.

    Example:
        >>> seeds = torch.tensor([0, 3])
        >>> for batch in NeighborLoader(data, [2, 2], seeds, batch_size=1):
        ...     print(batch.n_id.tolist(), batch.x.shape)
        [0, 1, 2, 3, 4] torch.Size([5, 4])
        [3, 4, 5, 0, 1] torch.Size([5, 4])
    """

    pyg_loader = torch_geometric.loader.NodeLoader
    read_by_pyg = ("data", "node_sampler", "input_data", "custom_cls")

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: Literal["uniform", "last"] = "uniform",
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
        worker_type: WorkerType | None = None,
        device: Any = None,
        device_options: DeviceOptions | None = None,
        **kwargs: Any,
    ) -> None:
        check_loader_options(worker_type, kwargs)
        check_hooks(transform=transform, transform_sampler_output=transform_sampler_output)
        if neighbor_sampler is None:
            check_times("input_time", input_time is not None, time_attr is not None, required=False)
        data = as_input(data)
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
                device=device,
                device_options=device_options,
            )
        elif not is_cpu(device):
            raise ValueError("pass device to the sampler that is given, not to the loader")
        else:
            check_sampler(neighbor_sampler, "sample_from_nodes", data)
        info = open_input(data).info
        node_type, given = split_nodes(info, input_nodes)
        seeds = checked_nodes(info, node_type, given)
        num_seeds = len(seeds.ids)
        input_id = checked_values(kwargs.pop("input_id", None), num_seeds, "input_id", "seeds")
        super().__init__(
            data,
            num_neighbors,
            (node_type, seeds.ids) if info.heterogeneous else seeds.ids,
            checked_times(input_time, num_seeds, "input_time", "seeds"),
            input_id=seeds.input_id if input_id is None else input_id,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            **kwargs,
        )
        if isinstance(neighbor_sampler, NeighborSampler):
            neighbor_sampler.seed_set(self.input_data)  # raises errors now, not in the first batch
        self._set_up(num_seeds, seed, stream, worker_type, kwargs)

    @property
    def _sampler(self) -> Any:
        return self.node_sampler

    def _draw(self, inputs: NodeSamplerInput, key: BatchKey | None) -> Any:
        if getattr(self.node_sampler, "is_keyed", False):
            return self.node_sampler.sample_from_nodes(inputs, key=key)
        return self.node_sampler.sample_from_nodes(inputs)

    @cached_property
    def _inputs(self) -> NodeInputs:
        return NodeInputs(self.node_sampler, self.input_data)

    def _draw_planned(self, positions: KeyedBatch) -> tuple[SampledSubgraph, Any]:
        seeds, metadata = self._inputs.take(positions.positions)
        return self.node_sampler.draw_nodes([seeds], positions.key), metadata

    def _seed_nodes(self) -> NodeSamplerInput:
        return self.input_data

    def _annotate(self, batch: Any, metadata: Any) -> None:
        annotate_seeds(batch, self.input_data.input_type, metadata)
