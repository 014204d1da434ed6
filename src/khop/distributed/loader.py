"""`DistNeighborLoader`: batches of a partitioned graph."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from khop.channel.message import Block, read_block
from khop.channel.pool import BufferPool
from khop.data.arrays import storage_dtype
from khop.distributed.collate import pin_ring, to_pyg
from khop.distributed.context import require_context
from khop.distributed.dataset import DistDataset, seeds_of
from khop.distributed.group import Delivery, SamplerGroup
from khop.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
)
from khop.distributed.pipeline import Pipeline, PipelineSpec
from khop.distributed.stats import LoaderStats
from khop.distributed.transport import PartitionClient
from khop.loader.epochs import EpochKeys
from khop.partition.folder import AttrMeta, EdgeTypeMeta, FolderMeta, NodeTypeMeta
from khop.partition.part import Part
from khop.sampler.collect import CollectSpec
from khop.sampler.plan import EpochPlan, epoch_order
from khop.sampler.plan import seeds_of as positions_of
from khop.sampler.spec import SamplingSpec
from khop.typing import Array, Int64Array

_UINT8 = np.dtype(np.uint8)


class DistNeighborLoader:
    """Neighbourhoods of seed nodes, drawn from all partitions, as PyG `Data` or `HeteroData`.

    Batches are those that `khop.loader.NeighborLoader` makes of the whole graph with the same
    seeds, `seed` and `stream`, bit for bit, whatever the number of partitions and samplers. Each
    epoch delivers every seed once, in the loader's order. By default all trainers make the same
    number of batches, so that DDP cannot hang: trainers with fewer seeds make smaller ones.

    Args:
        data: the trainer's partition.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours.
        input_nodes: this trainer's seeds: original ids, a boolean mask over all nodes, or None for
            all nodes; of a heterogeneous graph (node type, such seeds), or a node type for all of
            its nodes. `node_split` makes even shares.
        batch_size: seeds a batch.
        shuffle: draw a new order each epoch.
        drop_last: leave out a last batch that would be smaller (on every trainer).
        with_edge: deliver `e_id` and edge attributes.
        with_weight: weighted sampling, still to come.
        edge_dir: 'in' or 'out'; default, and only possibility: the folder's.
        collect_features: deliver node attributes, and edge attributes if `with_edge`; if False,
            labels (`y`) only.
        to_device: where batches shall be.
        random_seed: makes epochs reproducible; default: each epoch takes a seed from torch's
            default generator.
        worker_options: `MpDistSamplingWorkerOptions` (sampler processes) or
            `CollocatedDistSamplingWorkerOptions` (default: sample in this process).
        seed: another name for `random_seed`, that of `khop.loader.NeighborLoader`.
        stream: separates the draws of trainers; default: the trainer's rank.
        replace: draw with replacement.
        transform: applied to each batch, in this process.
        even_batches: make the same number of batches on every trainer. All trainers must then make
            the loader. False, for loaders that only some trainers make, or where numbers may
            differ (use `torch.distributed.algorithms.Join` with DDP then).

    Raises:
        ValueError, TypeError, IndexError: bad arguments; says which, and what to do.
        RendezvousError: trainers do not agree or do not arrive.
    """

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: Any,
        input_nodes: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: str | None = None,
        collect_features: bool = False,
        to_device: Any = None,
        random_seed: int | None = None,
        worker_options: MpDistSamplingWorkerOptions
        | CollocatedDistSamplingWorkerOptions
        | None = None,
        *,
        seed: int | None = None,
        stream: int | None = None,
        replace: bool = False,
        transform: Callable[[Any], Any] | None = None,
        even_batches: bool = True,
    ) -> None:
        _check_data(data, edge_dir)
        if with_weight:
            raise NotImplementedError("with_weight=True (weighted sampling) is still to come")
        if seed is not None and random_seed is not None and seed != random_seed:
            raise ValueError(f"seed={seed} contradicts random_seed={random_seed}")
        self.data = data
        self.batch_size = batch_size
        self.to_device = None if to_device is None else torch.device(to_device)
        self.transform = transform
        self._options = worker_options or CollocatedDistSamplingWorkerOptions()
        edge_types = [t.name for t in data.meta.edge_types]
        sampling = SamplingSpec.create(num_neighbors, edge_types, replace, with_edge)
        self._spec = PipelineSpec(sampling, _collect_spec(data.meta, collect_features, with_edge))
        self._seed_type, given = data.seed_type(input_nodes, "input_nodes")
        ids, input_id = seeds_of(data, given, "input_nodes", self._seed_type)
        self._seeds = data.to_new_ids(ids, "input_nodes", self._seed_type)
        self._input_id = input_id
        context = require_context()
        keys_stream = context.rank if stream is None else stream
        self._keys = EpochKeys(random_seed if seed is None else seed, keys_stream, None)
        self._shuffle = shuffle
        self._plan = EpochPlan(len(ids), batch_size, drop_last)
        service = data.service()
        if even_batches and context.world_size > 1:
            self._plan = _agree_on_batches(self._plan, drop_last)
        self._stats = LoaderStats()
        node_types = [t.name for t in data.meta.node_types]
        seed_place = node_types.index(self._seed_type)
        self._maker = _make_maker(data, self._spec, self._options, batch_size, seed_place)
        self._service = service

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self._plan.num_batches

    def __iter__(self) -> Iterator[Any]:
        """A new epoch. Several may be iterated at the same time; leaving one early is harmless."""
        run_key = self._keys.next_run_key()
        order = epoch_order(self._plan.num_seeds, run_key, self._shuffle)
        seeds = self._seeds if order is None else self._seeds[order]
        epoch = self._maker.open_epoch(run_key, self._plan, seeds)
        return _EpochIterator(self, epoch, order)

    def stats(self) -> LoaderStats:
        """What the loader has done so far."""
        self._stats.restarts = self._maker.num_restarts
        return self._stats

    def shutdown(self) -> None:
        """Ends the sampler processes; done by itself when the loader is collected."""
        self._maker.close()

    def __del__(self) -> None:
        maker = getattr(self, "_maker", None)
        if maker is not None:
            maker.close()

    def _finish(self, delivery: Delivery, batch: int, order: Int64Array | None) -> Any:
        arrays, meta = delivery
        positions = positions_of(order, *self._plan.bounds(batch))
        input_id = torch.from_numpy(self._input_id[positions])
        made = to_pyg(
            arrays, meta, self.data.meta, self._seed_type, input_id, self.data.node_labels
        )
        self._stats.add(meta, len(positions))
        if self.to_device is not None:
            # Waits: the slot is the sampler's again when the last tensor on the CPU is gone.
            made = made.to(self.to_device)
        return made if self.transform is None else self.transform(made)


class _EpochIterator:
    """Walks through one epoch; gives up its batches when it is dropped."""

    def __init__(self, loader: DistNeighborLoader, epoch: int, order: Int64Array | None) -> None:
        self._loader = loader
        self._epoch = epoch
        self._order = order
        self._next = 0
        self._end = weakref.finalize(self, loader._maker.close_epoch, epoch)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._next >= len(self._loader) or not self._end.alive:
            self._end()
            raise StopIteration
        try:
            delivery = self._loader._maker.take(self._epoch, self._next)
        except BaseException:
            self._end()
            raise
        made = self._loader._finish(delivery, self._next, self._order)
        self._next += 1
        return made


class CollocatedMaker:
    """Makes batches in the trainer's own process.

    Args:
        part: the part at hand.
        spec: what batches shall be.
        seed_type: index of the seeds' node type.
        client: the other partitions, if there are any.
    """

    num_restarts = 0

    def __init__(
        self, part: Part, spec: PipelineSpec, seed_type: int, client: PartitionClient | None
    ) -> None:
        self._client = client
        self._seed_type = seed_type
        self._pipeline = Pipeline(part, spec, client)
        self._pool = BufferPool()
        self._epochs: dict[int, tuple[int, EpochPlan, Int64Array]] = {}
        self._num_epochs = 0

    def open_epoch(self, run_key: int, plan: EpochPlan, seeds: Int64Array) -> int:
        """Begins an epoch; see `SamplerGroup.open_epoch`."""
        number = self._num_epochs
        self._num_epochs += 1
        self._epochs[number] = (run_key, plan, seeds)
        return number

    def close_epoch(self, number: int) -> None:
        """Ends an epoch."""
        self._epochs.pop(number, None)

    def take(self, number: int, batch: int) -> Delivery:
        """Makes a batch."""
        run_key, plan, seeds = self._epochs[number]
        first, last = plan.bounds(batch)
        blocks: list[Array] = []

        def allocate(block: Block) -> Mapping[str, Array]:
            blocks.append(self._pool.empty((block.nbytes,), _UINT8))
            return block.write(blocks[0].data)

        own = np.ascontiguousarray(seeds[first:last])
        for tickets in self._pipeline.make(own, self._seed_type, run_key, batch, allocate):
            assert self._client is not None
            self._client.wait(tickets)  # type: ignore[arg-type]
        return read_block(blocks[0])

    def close(self) -> None:
        """Closes the connections to other partitions."""
        self._epochs.clear()
        if self._client is not None:
            self._client.close()
            self._client = None


def _make_maker(
    data: DistDataset, spec: PipelineSpec, options: Any, batch_size: int, seed_type: int
) -> SamplerGroup | CollocatedMaker:
    service = data.service()
    endpoints = service.endpoints()
    if not isinstance(options, MpDistSamplingWorkerOptions) or options.num_workers == 0:
        client = (
            PartitionClient(endpoints, service.credentials, options.rpc_timeout)
            if endpoints
            else None
        )
        part = Part(data.opened, data.partition_idx)
        return CollocatedMaker(part, spec, seed_type, client)
    config = {
        "root": str(data.opened.root),
        "part": data.partition_idx,
        "pipeline": spec.to_json(),
        "seed_type": seed_type,
        "endpoints": {part: asdict(endpoint) for part, endpoint in endpoints.items()},
        "credentials": None if service.credentials is None else asdict(service.credentials),
        "timeout": options.rpc_timeout,
        "concurrency": options.worker_concurrency,
    }
    return SamplerGroup(
        config,
        options.num_workers,
        options.worker_concurrency,
        ring_bytes(data.meta, spec, options, batch_size),
        options.max_restarts,
        service,
        _pin(options),
    )


def _pin(options: MpDistSamplingWorkerOptions) -> Callable[[int, int], None] | None:
    if not options.pin_memory:
        return None
    if not torch.cuda.is_available():
        warnings.warn("pin_memory=True has no effect: no CUDA device can be used", stacklevel=4)
        return None
    return pin_ring


def ring_bytes(
    meta: FolderMeta, spec: PipelineSpec, options: MpDistSamplingWorkerOptions, batch_size: int
) -> int:
    """Bytes of shared memory for one sampler: what is asked for, or room for its batches in flight.

    A batch is estimated from above by its fan-outs (-1 counts as twice the mean degree) and bounded
    by the graph. Untouched memory costs nothing; at most an eighth of the machine's is promised.
    """
    if options.channel_size is not None:
        return max(int(options.channel_size) // options.num_workers, 1 << 16)
    nodes, edges = sum(t.count for t in meta.node_types), sum(t.count for t in meta.edge_types)
    mean_degree = 2 * edges // max(nodes, 1) + 1
    frontier, num_nodes, num_edges = batch_size, batch_size, 0
    for hop in range(spec.sampling.num_hops):
        fanouts = [hops[hop] for hops in spec.sampling.fanouts]
        drawn = sum(mean_degree if fanout < 0 else fanout for fanout in fanouts)
        frontier = min(frontier * drawn, edges)
        num_edges += frontier
        num_nodes = min(num_nodes + frontier, nodes + batch_size)
    node_bytes = 8 + _widest(meta.node_types, spec.collect.node_attrs)
    edge_bytes = 16
    if spec.collect.with_edge:
        edge_bytes += 8 + _widest(meta.edge_types, spec.collect.edge_attrs)
    batch_bytes = num_nodes * node_bytes + num_edges * edge_bytes + (64 << 10)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = max(memory // 8 // options.num_workers, 1 << 20)
    return min(batch_bytes * (options.worker_concurrency + 2), limit)


def _widest(types: Sequence[NodeTypeMeta | EdgeTypeMeta], names: list[list[str]]) -> int:
    """Bytes of the attributes of one row, of the type with most."""
    widths = [
        sum(_row_bytes(t.attrs[n]) for n in wanted) for t, wanted in zip(types, names, strict=True)
    ]
    return max(widths, default=0)


def _row_bytes(attr: AttrMeta) -> int:
    return storage_dtype(attr.dtype).itemsize * int(np.prod(attr.shape, dtype=np.int64))


def _agree_on_batches(plan: EpochPlan, drop_last: bool) -> EpochPlan:
    """The same number of batches for all trainers."""
    context = require_context()
    name = f"loader-{context.number('loader')}"
    context.rendezvous.tell(name, [plan.num_batches_alone, plan.num_seeds])
    heard = context.rendezvous.hear_all(
        name,
        "make this loader (pass even_batches=False to loaders that only some trainers make)",
    )
    counts = [batches for batches, _ in heard]
    agreed = min(counts) if drop_last else max(counts)
    if not drop_last and any(seeds < agreed for _, seeds in heard):
        raise ValueError(
            f"trainers have {[seeds for _, seeds in heard]} seeds: some have fewer than the "
            f"{agreed} batches that the others make. Divide the seeds with node_split, or pass "
            "even_batches=False"
        )
    return replace(plan, num_batches_asked=agreed)


def _collect_spec(meta: FolderMeta, collect_features: bool, with_edge: bool) -> CollectSpec:
    node_attrs = [
        list(t.attrs) if collect_features else [n for n in t.attrs if n == "y"]
        for t in meta.node_types
    ]
    edge_attrs = [list(t.attrs) if collect_features and with_edge else [] for t in meta.edge_types]
    return CollectSpec(node_attrs, edge_attrs, with_edge)


def _check_data(data: Any, edge_dir: str | None) -> None:
    if data is None:
        raise NotImplementedError(
            "data=None (sampling on graph servers) is still to come: pass a DistDataset"
        )
    if not isinstance(data, DistDataset):
        raise TypeError(f"data must be a DistDataset (got '{type(data).__name__}')")
    meta = data.meta
    if edge_dir not in (None, "in", "out"):
        raise ValueError(f"edge_dir must be 'in' or 'out' (got '{edge_dir}')")
    if edge_dir is not None and edge_dir != meta.edge_dir:
        strategy = "by_dst" if edge_dir == "in" else "by_src"
        raise ValueError(
            f"edge_dir='{edge_dir}', but '{data.opened.root}' was partitioned for "
            f"'{meta.edge_dir}': a loader would silently miss neighbours. Partition again with "
            f"edge_assign_strategy='{strategy}' (--edge-dir {edge_dir}), or leave edge_dir out"
        )
