"""`NeighborLoader` and the loaders of other neighbourhoods of seeds. Run in the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch_geometric.loader
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, NodeSamplerInput, SamplerOutput

from khop.loader.arguments import (
    HopOptions,
    NodeOptions,
    TorchOptions,
    _NodeSampler,
    check_hooks,
    check_loader_options,
    check_sampler,
    refuse_settled,
)
from khop.loader.base import EpochLoader
from khop.loader.batches.captured import CapturedSteps, record_by_torch
from khop.loader.batches.collate import annotate_seeds
from khop.loader.inputs import checked_nodes, checked_times, checked_values, split_nodes
from khop.loader.iteration.epochs import KeyedBatch
from khop.loader.selection import NodeInputs
from khop.sampler.arguments import check_times
from khop.sampler.methods import Hgt, SamplingMethod
from khop.sampler.pyg.device import DeviceOptions
from khop.sampler.pyg.device_drawer import Begun
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.output import SampledSubgraph
from khop.sampler.pyg.source import as_input, open_input
from khop.typing import NODE, NodeType, Numbers, NumNeighbors, Pad, SeedNodes, Transform, WorkerType

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SETTLED_BY_HGT = (
    "num_neighbors",
    "neighbor_sampler",
    "subgraph_type",
    "replace",
    "disjoint",
    "directed",
)


class NeighborLoader(EpochLoader, torch_geometric.loader.NeighborLoader):  # type: ignore[misc]
    """PyG's `NeighborLoader` without pyg-lib and torch-sparse.

    It takes PyG's arguments and returns PyG's batches: seeds first in `n_id`, `edge_index` in the
    batch's numbering, `e_id`, `input_id`, `batch_size`, `num_sampled_nodes`, `num_sampled_edges`,
    and every attribute of the sampled nodes and edges. The drawn neighbours are a function of seed,
    epoch, batch index and graph, for any number of workers. Subclasses may override `collate_fn`
    and `filter_fn`, and users may set them on a loader, for the epochs that begin afterwards. They
    are called as by PyG's.

    Args:
        data: a PyG `Data` or `HeteroData` (with `edge_index` or `adj_t`), or any pair of a PyG
            `FeatureStore` and a `GraphStore`. Batches of stores have edge attributes, too. Worker
            threads call stores at the same time. If the stores do not support this, pass
            `filter_per_worker=False` or `worker_type='process'`.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}. -1 takes all neighbours. `[]`,
            no hops, takes only the seeds. Or a sampling method: `khop.sampler.Labor([15, 10])`.
        input_nodes: seeds: int64 ids, a boolean mask, or None for all nodes. For a `HeteroData`: a
            node type, or (node type, seeds).
        input_time: [number of seeds] time of each seed. Only neighbours up to this time are drawn.
            If None, with `time_attr`, the times of the seed nodes.
        replace: draw with replacement.
        subgraph_type: 'directional' (the drawn edges), 'bidirectional' (and their reverses) or
            'induced' (all edges among the drawn nodes).
        disjoint: sample a separate subgraph for each seed, identified by `batch`. Always on with
            temporal sampling.
        temporal_strategy: 'uniform', or 'last': the latest neighbours.
        time_attr: attribute of nodes or of edges. Only neighbours (or edges) whose time is not
            later than the seed's are drawn.
        weight_attr: attribute of edges to draw neighbours by. Edges of weight 0 are never drawn.
        transform: applied to each batch, in the process that iterates.
        transform_sampler_output: applied to the sampler's output.
        is_sorted: edges are already sorted by destination and, with times, by time within each
            destination. They are checked instead of sorted.
        filter_per_worker: join features in the workers (default). If False, workers only sample,
            and the iterating thread joins: for stores that no other thread may read.
        neighbor_sampler: sampler to use. If None, the other arguments make one.
        directed: deprecated in PyG. False is subgraph type 'induced'.
        batch_size: seeds per batch. None with a `batch_sampler`.
        seed: makes epochs reproducible: epoch i is the same for equal seed and stream. If None,
            each epoch draws one from `generator` or torch's default generator, so that
            `torch.manual_seed` decides, as with PyG.
        stream: separates the random numbers of loaders with the same seed. If None, the rank of the
            trainer if torch.distributed is initialised, else 0, so that trainers draw differently.
        worker_type: meaning of `num_workers`: 'thread' (no copy of the graph, no pickling) or
            'process' (torch's worker processes, for heavy Python transforms). If None, threads.
            With `worker_init_fn` or `multiprocessing_context`, None means processes, as with PyG:
            seeds, affinity and `torch.utils.data.get_worker_info()` belong to a process.
            PyG's `enable_cpu_affinity`, `enable_multithreading` and `enable_memory_log` set
            `worker_init_fn` for the epochs that begin within them. Without workers, a thread draws
            the next batch ahead, without attributes. It does so if drawing takes more than 2 ms and
            torch may use more than one thread.
        device: GPU that draws and gathers: 'cuda:1', or 'cuda' for torch's current one. Batches are
            in its memory, and equal those made by the CPU. If None or 'cpu', the CPU.
        device_options: placement of graph and attributes with `device`.
        input_id: [number of seeds] `input_id` of seeds in batches. If None, their positions in
            `input_nodes`, or with a mask their ids.
        custom_cls: class of batches from stores. If None, `Data` or `HeteroData`.
        pad: pads batches with zeros to few shapes, so that `torch.compile` compiles once. 'auto'
            finds the sizes, and enlarges them for a larger batch. Or {'nodes': sizes, 'edges':
            sizes}: a total, or one size for the seeds (nodes only) and for each hop, by type if
            heterogeneous. Padded edges join padded nodes. `pad_node_mask` and `pad_edge_mask` are
            False for padding. If None, no padding. `pad_sizes` has the sizes in use.
        **kwargs: `TorchOptions`: `shuffle`, `drop_last`, `num_workers`, ...

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

    def __init__(
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        num_neighbors: NumNeighbors | SamplingMethod,
        input_nodes: SeedNodes = None,
        input_time: Numbers | None = None,
        replace: bool = False,
        subgraph_type: Literal["directional", "bidirectional", "induced"] | Enum = "directional",
        disjoint: bool = False,
        temporal_strategy: Literal["uniform", "last"] = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: _NodeSampler | None = None,
        directed: bool = True,
        *,
        batch_size: int | None = 1,
        seed: int | None = None,
        stream: int | None = None,
        worker_type: WorkerType | None = None,
        device: str | int | torch.device | None = None,
        device_options: DeviceOptions | None = None,
        input_id: Numbers | None = None,
        custom_cls: type[Data | HeteroData] | None = None,
        pad: Pad | None = None,
        **kwargs: Unpack[TorchOptions],
    ) -> None:
        check_loader_options(worker_type, kwargs, batch_size)
        check_hooks(transform=transform, transform_sampler_output=transform_sampler_output)
        if neighbor_sampler is None:
            check_times("input_time", input_time is not None, time_attr is not None, required=False)
        data = as_input(data)
        sampler: Any = neighbor_sampler
        if sampler is not None:
            check_sampler(sampler, "sample_from_nodes", data, device)
        else:
            sampler = NeighborSampler(
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
        info = open_input(data).info
        node_type, nodes = split_nodes(info, input_nodes)
        seeds = checked_nodes(info, node_type, nodes)
        num_seeds = len(seeds.ids)
        input_id = checked_values(input_id, num_seeds, "input_id", "seeds")
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
            custom_cls=custom_cls,
            neighbor_sampler=sampler,
            batch_size=batch_size,
            **kwargs,
        )
        if isinstance(sampler, NeighborSampler):
            sampler.seed_set(self.input_data)  # raises errors now, not in the first batch
        self._set_up(num_seeds, seed, stream, worker_type, kwargs, pad)

    def capture(self, function: Callable[[Any], Any], warm_up: int = 3) -> CapturedSteps:
        """Make a training step a CUDA graph, from the draw of its batch to the optimiser.

        For each batch, one launch draws it, gathers its attributes and calls `function`. The host
        waits for nothing. Needs `device='cuda'`, `DeviceOptions(cuda_graph='step')`, `pad` with a
        size for each hop and batches of one size (`drop_last=True`). Batches have no `input_id` and
        no `seed_time`. Attributes of the graph must be dense tensors or arrays.

        Args:
            function: the step: takes a batch and returns tensors. What it does on the GPU is
                recorded once. See `torch.cuda.graph` for what may be recorded.
            warm_up: number of batches for which `function` runs before it is recorded, which
                train as all others do.

        Returns:
            An iterable over the results of `function`, one per batch. Each iteration is an epoch.
            A result is overwritten by the next one.

        Raises:
            ValueError: the batches have no fixed shape, or another argument contradicts. While
                iterating: a batch was larger than `pad`'s sizes. Its step has seen padding alone.

        Example:
            >>> from khop.loader import DeviceOptions, NeighborLoader
            >>> pad = {"nodes": [8, 8], "edges": [8]}
            >>> options = {"device": "emulated", "device_options": DeviceOptions(cuda_graph="step")}
            >>> loader = NeighborLoader(data, [2], batch_size=3, pad=pad, **options)
            >>> [int(count) for count in loader.capture(lambda batch: batch.pad_edge_mask.sum())]
            [6, 6]
        """
        device = getattr(self.node_sampler, "device", None)
        on_gpu = device is not None and device.stream is not None
        return CapturedSteps(self, function, warm_up, record_by_torch if on_gpu else None)

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

    def _begin_planned(self, positions: KeyedBatch) -> tuple[Begun, Any]:
        seeds, metadata = self._inputs.take(positions.positions)
        sizes = self._sizes_on_device()
        return self.node_sampler.begin_nodes([seeds], positions.key, sizes), metadata

    @property
    def _padded_seeds(self) -> NodeType | None:
        seed_type = self.input_data.input_type
        return NODE if seed_type is None else seed_type

    def _seed_nodes(self) -> NodeSamplerInput:
        return self.input_data

    def _annotate(self, batch: Data | HeteroData, metadata: Any) -> None:
        annotate_seeds(batch, self.input_data.input_type, metadata)


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
        TypeError: `subgraph_type` is passed, which is always 'induced' here.

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


class HGTLoader(NeighborLoader):
    """PyG's `HGTLoader` without torch-sparse: all edges among nodes drawn by their links.

    `khop.sampler.Hgt` describes how nodes are drawn. In the `n_id` of its type, a batch has the
    seeds first, then the nodes in the order of their draws. It has every edge of the graph among
    these nodes, sorted by destination, and `e_id`, `input_id`, `batch_size`. Of a node with more
    than 50 edges, PyG's loader draws 50, some with other edges' ids. Here all are kept. A `Data` is
    a graph of one type. Over partitions, `DistNeighborLoader(dataset, Hgt(num_samples), ...)` makes
    the same batches.

    Method: HGSampling (https://arxiv.org/abs/2003.01332).

    Args:
        data: a PyG `HeteroData` or `Data`, or a (FeatureStore, GraphStore) pair.
        num_samples: nodes of each type in every iteration, or {node type: such a list}.
        input_nodes: seeds, as for `NeighborLoader`: a node type, or (node type, seeds).
        is_sorted: as for `NeighborLoader`. It saves no time unless edges have times.
        transform, transform_sampler_output, filter_per_worker: as for `NeighborLoader`.
        **kwargs: `HopOptions`: `batch_size`, `shuffle`, `seed`, `num_workers`, ...

    Raises:
        IndexError, TypeError, ValueError: as `NeighborLoader` and `khop.sampler.Hgt`, or for an
            option that the method determines, such as `replace`.

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
        refuse_settled(self, _SETTLED_BY_HGT, kwargs)
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
