"""Base class of the distributed loaders: epochs, order, processes, delivery. Runs in trainers."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from time import monotonic_ns
from typing import Any

import numpy as np
from torch import Tensor

from khop.channel.layout import Received
from khop.distributed.graph import PartitionedGraph
from khop.distributed.loaders.agreement import (
    agree_on_batches,
    agreed_number,
    check_agreement,
)
from khop.distributed.loaders.backends import RowCaching, create_backend
from khop.distributed.loaders.collate import Assembler, Tensors, batch_edge_types, to_tensors
from khop.distributed.loaders.device_transfer import DeviceTransfer, PendingTransfer, TargetDevice
from khop.distributed.loaders.exchange_choice import Exchanging
from khop.distributed.loaders.loader_options import LoaderOptions
from khop.distributed.loaders.opened_pack import checked_pack, report_unpacked
from khop.distributed.loaders.placing import LoaderPlacement
from khop.distributed.loaders.virtual_shares import VirtualShares, check_virtual_ranks
from khop.distributed.loaders.widening import Widening, widened_by
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.distributed.sampling.process_handle import Worker
from khop.loader.batches.padding import Padder
from khop.loader.iteration.fingerprint import describe_sampling, digest
from khop.loader.iteration.iterator import BatchSource, Cost, Taken
from khop.loader.iteration.resume import EpochProgress, LoaderFingerprint
from khop.loader.iteration.stateful import StatefulLoader
from khop.loader.iteration.virtual_cursor import VirtualCursor, VirtualProgress
from khop.loader.iteration.virtual_ranks import VirtualRanks
from khop.metrics.loader_stats import LoaderStats, StatsAccumulator
from khop.sampler.plan import EpochPlan, epoch_order, seeds_of as positions_of
from khop.storage.pack import Pack
from khop.trace.clock import BatchTimings
from khop.typing import Array, Int64Array, NodeType


class DistLoader(StatefulLoader, abc.ABC):
    """Base of the loaders of partitioned graphs.

    Args:
        data: the graph: the trainer's partition, or the graph that servers serve.
        spec: specification of the batches.
        columns: [num_columns, num_seeds] int64 ids and times of the seeds: see `Pipeline.make`.
        options: values of all options of the loader.
        weights: {name: [num_nodes] float64 sampling weights of negative endpoints}: see `arrays` of
            `khop.distributed.sampling.pipeline.Pipeline`.
        lists: lengths of the seed lists, one list per graph server. If None, there is one list.

    Raises:
        ValueError, TypeError: bad options, or a pack of another loader.
        RendezvousError: trainers do not agree or do not arrive.
    """

    def __init__(
        self,
        data: PartitionedGraph,
        spec: PipelineSpec,
        columns: Int64Array,
        options: LoaderOptions,
        weights: Mapping[str, Array] | None = None,
        lists: Sequence[int] | None = None,
    ) -> None:
        seed, stream = options["seed"], options["stream"]
        worker_options = options["worker_options"]
        self.data = data
        self.batch_size = options["batch_size"]
        self.drop_last = options["drop_last"]
        pin_memory = bool(getattr(worker_options, "pin_memory", False))
        target = TargetDevice(options["device"], pin_memory)
        self.device = target.torch_device
        edge_types, method = batch_edge_types(data.meta), spec.sampling.method
        spec = replace(spec, collect=widened_by(options["widen"], spec.collect, target.is_device))
        self._transfer = DeviceTransfer(target, Widening(data.meta, spec.collect, edge_types))
        self.transform = options["transform"]
        self._columns = columns
        self._assembler = Assembler(data.meta, self._labels(), edge_types, method)
        self._padder: Padder | None = None
        if options["pad"] is not None:
            types = [t.name for t in data.meta.node_types], edge_types
            is_hetero, num_seeds = data.meta.heterogeneous, options["batch_size"]
            self._padder = Padder(options["pad"], *types, is_hetero, num_seeds, self._padded_seeds)
        context = data.context
        exchange = Exchanging.of(options, data, spec, target.device)
        if options["num_virtual_ranks"] is not None:
            check_virtual_ranks(options["num_virtual_ranks"], seed, stream, lists)
        self._set_up_epochs(seed, stream, None, context.rank)
        self._spec, self._weights = spec, weights or {}
        self._shuffle = options["shuffle"]
        self._plan = EpochPlan(
            self._num_items(), options["batch_size"], options["drop_last"], None, lists
        )
        data.connect()
        described = exchange.described(type(self).__name__, options["batch_size"], spec)
        self._virtual: VirtualShares | None = None
        if options["num_virtual_ranks"] is not None:
            num_ranks, is_even = options["num_virtual_ranks"], options["even_batches"]
            self._virtual = self._divide(num_ranks, is_even, described)
            self._cursor = VirtualCursor(self._keys, context.rank, self._virtual.ranks)
            self._plan = replace(self._plan, num_batches_asked=self._virtual.num_batches)
        elif options["even_batches"] and context.world_size > 1:
            self._plan = agree_on_batches(context, self._plan, options["drop_last"], described)
        num_samplers = getattr(worker_options, "num_workers", 0)
        self._placing = LoaderPlacement(options["placement"], data, self.device, num_samplers)
        self._pack: Pack | None = None
        if options["packed"] is not None:
            self._pack = checked_pack(options["packed"], data, self._identities())
        self._backend = create_backend(
            data,
            spec,
            worker_options,
            replace(self._plan, batch_size=self._most_seeds()),
            self._weights,
            self._transfer,
            RowCaching.of(options["cache_memory"], options["lookahead"]),
            exchange,
            self._placing,
            self._pack,
        )
        self._tally = StatsAccumulator(self._backend.num_samplers)

    @property
    def _padded_seeds(self) -> NodeType | None:
        """Node type whose first nodes in a batch are its seeds, `batch_size` at most, or None."""
        return None

    @property
    def pad_sizes(self) -> dict[str, Any] | None:
        """Sizes of padded batches, in the form of the option `pad`.

        None without `pad`, and with 'auto' before the first batch. They grow when a batch is
        larger. Another loader that gets them makes batches of the same shape.
        """
        return None if self._padder is None else self._padder.shapes.sizes

    def _divide(
        self, num_virtual_ranks: int, even_batches: bool, described: Mapping[str, Any]
    ) -> VirtualShares:
        """Divide the seeds among virtual ranks, parts of an epoch that any trainer can make.

        All trainers call it together. With `even_batches`, virtual ranks have equally many batches.
        `described` are further options that must be equal.
        """
        data, plan = self.data, self._plan
        options = [num_virtual_ranks, plan.batch_size, plan.drop_last, self._shuffle, even_batches]
        seeds = [self._keys.seed, digest(self._described_seeds(None))]
        check_agreement(data.context, [*options, *seeds, dict(described)])
        homes = [rank % data.num_partitions for rank in range(num_virtual_ranks)]
        shares = self._shares(homes)
        plans = [replace(plan, num_seeds=len(share)) for share in shares]
        if even_batches:
            counts = [(share.num_batches_alone, share.num_seeds) for share in plans]
            agreed = agreed_number(counts, plan.drop_last, "virtual ranks")
            plans = [replace(share, num_batches_asked=agreed) for share in plans]
        num_batches = [plan.num_batches for plan in plans]
        ranks = VirtualRanks(num_batches, homes, data.homes, even_batches, plan.drop_last)
        return VirtualShares(shares, plans, ranks, data.context.rank, self._shuffle)

    @abc.abstractmethod
    def _shares(self, homes: Sequence[int]) -> list[Int64Array]:
        """Divide the loader's items (seeds or clusters) among virtual ranks.

        `homes` has the partition of each virtual rank, whose items it gets first.
        """

    def _labels(self) -> dict[NodeType, Tensor]:
        """Return the labels that only the trainer has, not the folder, on the batches' device."""
        labels, device = self.data.node_labels, self.device
        if not self._transfer.target.is_device:
            return labels
        return {node_type: values.to(device) for node_type, values in labels.items()}

    @abc.abstractmethod
    def _annotate(self, batch: Any, tensors: Tensors, positions: Int64Array) -> None:
        """Add labels, times and ids of its seeds to a batch.

        `tensors` are its arrays. `positions` are its seeds' positions in the loader's input.
        """

    def _num_items(self) -> int:
        """Return the number of items (seeds or clusters) that batches are made of."""
        return int(self._columns.shape[1])

    def _most_seeds(self) -> int:
        """Return the maximum number of seeds per batch."""
        return self._plan.batch_size

    def _epoch_plan(self, progress: EpochProgress) -> tuple[EpochPlan, Int64Array | None]:
        """Return an epoch's division into batches, and its seeds' order (None: the user's)."""
        plan = self._plan
        if self._virtual is not None:
            assert isinstance(progress, VirtualProgress)
            return self._virtual.epoch_plan(progress)
        return plan, epoch_order(plan.num_seeds, progress.run_key, self._shuffle, plan.lists)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._plan.num_batches

    def __repr__(self) -> str:
        """Return class, graph, fan-outs or method, and numbers of seeds and batches."""
        sampling, seeds = self._spec.sampling.summary, self._plan.num_seeds
        counts = f"{seeds:,} seeds, {len(self):,} batches"
        return f"{type(self).__name__}({self.data!r}, {sampling}, {counts})"

    def _open(self, progress: EpochProgress) -> BackendBatches:
        """Return the source of an epoch's batches, from the first undelivered one on."""
        if self._pack is not None:
            report_unpacked(self._pack, progress.run_key)
        return BackendBatches(self, progress)

    @property
    def _num_restarts(self) -> int:
        return self._backend.num_restarts

    def _described_seeds(self, share: Int64Array | None) -> list[Any]:
        """Return type, original ids and times of the seeds, for fingerprints.

        `share` has positions of seeds. If None, all seeds are described.
        """
        seed_type, *columns = self._seed_columns()
        if share is not None:
            columns = [None if column is None else column[share] for column in columns]
        lists = [] if self._plan.lists is None else [np.asarray(self._plan.lists)]
        return [seed_type, *columns, *lists]

    @abc.abstractmethod
    def _seed_columns(self) -> list[Any]:
        """Return type (None if the graph is homogeneous), ids and times of the seeds."""

    @cached_property
    def _digests(self) -> tuple[str, str]:
        """Digests of the seeds and of the sampling options, computed when first needed."""
        return digest(self._described_seeds(None)), self._sampling_digest

    @cached_property
    def _share_digests(self) -> list[str]:
        """Digest of each virtual rank's seeds. A loader of only these seeds has the same."""
        assert self._virtual is not None
        return [digest(self._described_seeds(share)) for share in self._virtual.shares]

    def _identities(self) -> list[LoaderFingerprint]:
        if self._virtual is None:
            return super()._identities()
        sampling = self._sampling_digest
        shares = zip(self._share_digests, self._virtual.plans, strict=True)
        return [
            self._identity(seeds, sampling, rank, plan.num_batches)
            for rank, (seeds, plan) in enumerate(shares)
        ]

    @cached_property
    def _sampling_digest(self) -> str:
        spec, meta, weights = self._spec, self.data.meta, []
        if spec.link is not None:
            weights = [self._weights.get(name) for name in ("src_weight", "dst_weight")]
        return describe_sampling(
            spec.sampling,
            {t.name: t.count for t in meta.node_types},
            {t.name: t.count for t in meta.edge_types},
            spec.link,
            weights,
            by_time=meta.time_attr is not None,
        )

    @property
    def workers(self) -> list[Worker]:
        """The processes of this loader that run now, ordered by index. Empty after `shutdown`.

        In worker mode these are its samplers. With graph servers this is one receiver, or the
        servers' samplers if all servers are on this machine. A loader that samples in the trainer's
        process has none.
        """
        return list(self._backend.workers)

    def stats(self) -> LoaderStats:
        """Return statistics over all epochs of the loader, or since `reset_stats()`."""
        placement, backend = self._placing.described(self.workers), self._backend
        return replace(super().stats(), placement=placement, cache_bytes=backend.cache_bytes)

    def shutdown(self) -> None:
        """End the sampler processes. Also called when the loader is garbage-collected."""
        self._transfer.close()
        self._backend.close()

    def __del__(self) -> None:
        if getattr(self, "_backend", None) is not None:
            self.shutdown()


class BackendBatches(BatchSource):
    """Source of an epoch's batches, which samplers, servers or this process make.

    Any error ends the epoch.

    Args:
        loader: the loader.
        progress: progress of the epoch.
    """

    def __init__(self, loader: DistLoader, progress: EpochProgress) -> None:
        columns, backend = loader._columns, loader._backend
        plan, order = loader._epoch_plan(progress)
        columns = columns if order is None else columns[:, order]
        self._loader = loader
        self._plan, self._order = plan, order
        self.can_prefetch = loader._transfer.target.is_device
        self._epoch = backend.new_epoch()
        self._end = weakref.finalize(self, backend.close_epoch, self._epoch)
        try:
            backend.open_epoch(self._epoch, progress.run_key, plan, columns, progress.delivered)
        except BaseException:  # Ctrl-C: a notebook's user goes on with the loader
            self.close()
            raise

    def take(self, index: int) -> Taken:
        """Wait for batch `index`, convert it to PyG's form and start its copy to the device."""
        loader = self._loader
        if index >= len(loader) or not self._end.alive:
            raise StopIteration
        try:
            received = loader._backend.take(self._epoch, index)
            taken = monotonic_ns()
            return taken, (index, received, self._start(received, index))
        except BaseException:
            self.close()
            raise

    def _start(self, received: Received, index: int) -> PendingTransfer:
        loader = self._loader
        positions = positions_of(self._order, *self._plan.bounds(index))
        tensors = to_tensors(received)
        made = loader._assembler.assemble(received, tensors)
        # Copies in device memory are faster.
        if loader._padder is not None and not loader._transfer.target.is_device:
            made = self._padded(received, made)
        loader._annotate(made, Tensors(received.layout.index, tensors), positions)
        return loader._transfer.start(made)

    def _padded(self, received: Received, batch: Any) -> Any:
        assert self._loader._padder is not None
        return self._loader._padder.pad_batch(batch, self._loader._assembler.rows(received))

    def has_arrived(self, index: int) -> bool:
        """Return True if batch `index` has arrived, so that its transfer to a device can start."""
        loader = self._loader
        return index < len(loader) and loader._backend.has_arrived(self._epoch, index)

    def finish(self, pending: tuple[int, Received, PendingTransfer]) -> tuple[Any, Cost]:
        """Wait for the copy of the batch to the device, and apply `transform`."""
        loader, (index, received, transfer) = self._loader, pending
        batch = loader._transfer.finish(transfer)
        if loader._padder is not None and loader._transfer.target.is_device:
            batch = self._padded(received, batch)
        if loader.transform is not None:
            batch = loader.transform(batch)
        first, last = self._plan.bounds(index)
        counter = received.counter
        (nodes,), (edges,) = counter("nodes"), counter("edges")
        sizes = nodes, edges, *counter("rows")
        timings = BatchTimings(*counter("made"))
        return batch, (self._epoch, index, last - first, sizes, timings)

    def close(self) -> None:
        """End the epoch, and release the batches that have not been taken."""
        self._end()
