"""`NeighborLoader`: PyG's, with khop's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.data.arrays import check_range
from khop.loader.background import BackgroundIterator
from khop.loader.collate import Gatherer, join_data, join_hetero_data
from khop.loader.epochs import EpochKeys, GivenBatches, KeyedBatch, PlannedBatches, SeedPositions
from khop.loader.stores import StoreJoiner, is_pair_of_stores
from khop.sampler.neighbor import NeighborSampler
from khop.sampler.plan import EpochPlan
from khop.sampler.source import as_input, open_input
from khop.typing import NODE


class NeighborLoader(torch_geometric.loader.NeighborLoader):  # type: ignore[misc]
    """PyG's `NeighborLoader`, needing neither pyg-lib nor torch-sparse.

    Takes PyG's arguments, returns PyG's batches: seeds first in `n_id`, `edge_index` in the batch's
    numbering, `e_id`, `input_id`, `batch_size`, `num_sampled_nodes`, `num_sampled_edges`, and every
    attribute of the sampled nodes and edges. Which neighbours are drawn is a function of seed,
    epoch, batch index and graph, whatever the number of workers.

    Args:
        data: a PyG `Data` or `HeteroData` (with `edge_index` or `adj_t`), or anybody's pair of a
            PyG `FeatureStore` and a `GraphStore`, of which batches also carry edge attributes.
            Threads call stores at the same time: pass `worker_type='process'` for stores that do
            not allow this.
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

    def __init__(
        self,
        data: Any,
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
        worker_type: Literal["thread", "process"] = "thread",
        **kwargs: Any,
    ) -> None:
        if worker_type not in ("thread", "process"):
            raise ValueError(f"worker_type must be 'thread' or 'process' (got '{worker_type}')")
        if input_time is not None:
            raise NotImplementedError("input_time is still to come")
        _check_loader_options(worker_type, kwargs)
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
        self._stores = StoreJoiner(data, self.custom_cls) if is_pair_of_stores(data) else None
        self._worker_type = worker_type
        self._given = kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None
        self._shuffle = bool(kwargs.get("shuffle") or False)
        self._epochs = EpochKeys(seed, _rank() if stream is None else stream, self.generator)
        # Threads of the background share the cores; worker processes have one each.
        self._gatherer = Gatherer(max(1, torch.get_num_threads() // max(1, self.num_workers)))
        # torch guards this attribute against change; worker processes must see the keys of batches.
        self.__dict__["dataset"] = SeedPositions(self.input_data.node.numel())

    def __iter__(self) -> Iterator[Any]:
        """A new epoch."""
        # Taken before torch draws anything, so that workers of any kind see the same key.
        run_key = self._epochs.next_run_key()
        if self._worker_type == "process" and self.num_workers > 0:
            self._run_key = run_key
            epoch: Iterator[Any] = super().__iter__()
            return epoch
        return self._iterate_here(self._batches(run_key))

    def _iterate_here(self, batches: PlannedBatches | GivenBatches) -> Iterator[Any]:
        if self.num_workers == 0:
            made: Iterator[Any] = map(self._make, batches)
        else:
            ahead = self.num_workers * (self.prefetch_factor or 2)
            made = BackgroundIterator(self._make, batches, self.num_workers, ahead, self.timeout)
        return map(self._finish, made)

    @property
    def _index_sampler(self) -> Any:
        """What torch's own iterators walk along: the epoch's batches, keyed."""
        return _LazyEpoch(self)

    def _batches(self, run_key: int) -> PlannedBatches | GivenBatches:
        if self._given:
            return GivenBatches(self.batch_sampler, run_key)
        plan = EpochPlan(self.input_data.node.numel(), self.batch_size, self.drop_last)
        return PlannedBatches(plan, run_key, self._shuffle)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self.batch_sampler)

    def _make(self, positions: KeyedBatch) -> Any:
        """Samples and joins a batch; runs in threads."""
        return self._join(self._sample(positions))

    def _finish(self, batch: Any) -> Any:
        """What is done to a batch in the thread that iterates."""
        if self.transform is not None:
            batch = self.transform(batch)
        if self.pin_memory and torch.cuda.is_available():
            batch = batch.pin_memory()
        return batch

    def _sample(self, positions: Any) -> Any:
        inputs = self.input_data[positions]
        key = getattr(positions, "key", None)
        if getattr(self.node_sampler, "is_keyed", False):
            return self.node_sampler.sample_from_nodes(inputs, key=key)
        return self.node_sampler.sample_from_nodes(inputs)

    def collate_fn(self, index: Any) -> Any:
        """Samples a batch of seeds, given by their positions in the input."""
        out = self._sample(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Joins a sampled subgraph with its attributes and applies the transform."""
        batch = self._join(out)
        return batch if self.transform is None else self.transform(batch)

    def _join(self, out: Any) -> Any:
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        data = self.data
        as_drawn = getattr(out, "orig_row", None) is None
        if self._stores is not None and as_drawn:
            permutation = self.node_sampler.edge_permutation
            return self._stores.join(out, self.input_data.input_type, permutation)
        ours = isinstance(self.node_sampler, NeighborSampler) and as_drawn
        if ours and isinstance(out, SamplerOutput) and isinstance(data, Data):
            return join_data(data, out, self._gatherer)
        if ours and isinstance(data, HeteroData) and _is_complete(out, data):
            return join_hetero_data(data, out, self.input_data.input_type, self._gatherer)
        return _join_by_pyg(self, out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _LazyEpoch:
    """The epoch that a loader has begun last, looked up with the first batch that torch asks for.

    Torch makes more iterators than it uses, and keeps this object over the epochs of persistent
    workers.
    """

    def __init__(self, loader: NeighborLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[KeyedBatch]:
        yield from self._loader._batches(self._loader._run_key)


def _is_complete(out: Any, data: HeteroData) -> bool:
    """Whether a sampler's output, which a user's hook may have changed, speaks of every type."""
    if not isinstance(out, HeteroSamplerOutput) or out.edge is None:
        return False
    has_counts = out.num_sampled_nodes is not None and out.num_sampled_edges is not None
    types = (set(out.node), set(out.edge), set(out.row), set(out.col))
    edge_types = set(data.edge_types)
    return has_counts and types == (set(data.node_types), edge_types, edge_types, edge_types)


def _join_by_pyg(loader: NeighborLoader, out: Any) -> Any:
    # PyG's own method, on what it reads of a loader but without the hooks, which are applied here.
    plain = SimpleNamespace(
        data=loader.data,
        node_sampler=loader.node_sampler,
        input_data=loader.input_data,
        custom_cls=loader.custom_cls,
        transform=None,
        transform_sampler_output=None,
    )
    return torch_geometric.loader.NodeLoader.filter_fn(plain, out)


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return 0


def _check_loader_options(worker_type: str, kwargs: dict[str, Any]) -> None:
    if "batch_size" in kwargs and kwargs["batch_size"] is None and not kwargs.get("batch_sampler"):
        raise ValueError("batch_size=None makes no batches: give a number or a batch_sampler")
    if worker_type == "thread":
        for name in ("worker_init_fn", "multiprocessing_context"):
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} is for worker processes: pass worker_type='process'")


def _checked_seeds(data: Any, input_nodes: Any) -> Any:
    """`input_nodes` as PyG takes them; masks in any form, which PyG may mistake for ids."""
    source = open_input(data)
    # PyG cannot tell the number of nodes of every store.
    all_nodes = torch.arange if is_pair_of_stores(data) else lambda count: None
    if not source.heterogeneous:
        count = source.num_nodes[NODE]
        return all_nodes(count) if input_nodes is None else _checked_ids(input_nodes, count)
    node_type, ids = (input_nodes, None) if isinstance(input_nodes, str) else (None, None)
    if isinstance(input_nodes, (tuple, list)) and len(input_nodes) == 2:
        node_type, ids = input_nodes
    if not isinstance(node_type, str) or node_type not in source.num_nodes:
        raise ValueError(
            "input_nodes of a heterogeneous graph must be a node type, or (node type, seeds), with "
            f"a type of {list(source.num_nodes)} (got {input_nodes!r})"
        )
    count = source.num_nodes[node_type]
    return node_type, all_nodes(count) if ids is None else _checked_ids(ids, count)


def _checked_ids(ids: Any, num_nodes: int) -> Any:
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
