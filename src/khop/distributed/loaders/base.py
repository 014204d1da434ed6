"""Base class of the distributed loaders: epochs, order, processes, delivery. Runs in trainers."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic_ns
from typing import Any, NamedTuple

from torch import Tensor

from khop.channel.layout import Received
from khop.distributed.graph import PartitionedGraph
from khop.distributed.job.context import TrainerContext
from khop.distributed.loaders.backends import create_backend
from khop.distributed.loaders.collate import Assembler, Tensors, batch_edge_types, to_tensors
from khop.distributed.loaders.device_transfer import DeviceTransfer, PendingTransfer, TargetDevice
from khop.distributed.options import WorkerOptions
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.loader.epochs import EpochKeys
from khop.loader.fingerprint import describe_sampling, digest
from khop.loader.resume import EpochCursor, EpochProgress, LoaderFingerprint, Stateful
from khop.metrics.loader_stats import LoaderStats, StatsAccumulator
from khop.metrics.watch import DeliveryWatch
from khop.sampler.plan import EpochPlan, epoch_order
from khop.sampler.plan import seeds_of as positions_of
from khop.trace.clock import BatchTimings
from khop.typing import Array, Int64Array, NodeType


@dataclass(frozen=True)
class DeliveryOptions:
    """Delivery options of a loader; fields as the arguments of `DistNeighborLoader`."""

    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    to_device: Any = None
    random_seed: int | None = None
    worker_options: WorkerOptions | None = None
    seed: int | None = None
    stream: int | None = None
    transform: Callable[[Any], Any] | None = None
    even_batches: bool = True

    @property
    def pin_memory(self) -> bool:
        """True if memory is to be page-locked; sampling in this process has no such option."""
        return bool(getattr(self.worker_options, "pin_memory", False))


class DistLoader(Stateful, abc.ABC):
    """Base of the loaders of partitioned graphs.

    Args:
        data: the graph: the trainer's partition, or the graph that servers serve.
        spec: specification of the batches.
        columns: [num_columns, num_seeds] int64, ids and times of the seeds; see `Pipeline.make`.
        options: delivery options.
        weights: [num_nodes] float64 sampling weights of negative endpoints, by name; see
            `khop.distributed.sampling.pipeline.Pipeline`.
        lists: lengths of the lists that the seeds consist of, if each list is for one graph server;
            see `EpochPlan`.

    Raises:
        ValueError, TypeError: bad options.
        RendezvousError: trainers do not agree or do not arrive.
    """

    def __init__(
        self,
        data: PartitionedGraph,
        spec: PipelineSpec,
        columns: Int64Array,
        options: DeliveryOptions,
        weights: Mapping[str, Array] | None = None,
        lists: Sequence[int] | None = None,
    ) -> None:
        seed = options.random_seed if options.seed is None else options.seed
        if options.random_seed not in (None, seed):
            raise ValueError(f"seed={seed} contradicts random_seed={options.random_seed}")
        self.data = data
        self.batch_size = options.batch_size
        self._destination = TargetDevice(options.to_device, options.pin_memory)
        self.to_device = self._destination.torch_device
        self._transfer = DeviceTransfer(self._destination)
        self.transform = options.transform
        self._columns = columns
        self._assembler = Assembler(data.meta, self._labels(), batch_edge_types(data.meta))
        context = data.context
        stream = context.rank if options.stream is None else options.stream
        self._keys = EpochKeys(seed, stream, None)
        self._cursor = EpochCursor(self._keys, context.rank)
        self._spec, self._weights = spec, weights or {}
        self._shuffle = options.shuffle
        self._plan = EpochPlan(columns.shape[1], options.batch_size, options.drop_last, None, lists)
        data.connect()
        if options.even_batches and context.world_size > 1:
            self._plan = _agree_on_batches(context, self._plan, options.drop_last)
        self._backend = create_backend(
            data,
            spec,
            options.worker_options,
            self._plan,
            self._weights,
            self._destination,
            self._transfer,
        )
        self._tally = StatsAccumulator(self._backend.num_samplers)
        self._restarts_before = 0

    def _labels(self) -> dict[NodeType, Tensor]:
        """Return the labels that the folder does not hold, on the batches' device."""
        labels, device = self.data.node_labels, self.to_device
        if not self._destination.is_device:
            return labels
        return {node_type: values.to(device) for node_type, values in labels.items()}

    @abc.abstractmethod
    def _annotate(self, batch: Any, tensors: Tensors, positions: Int64Array) -> None:
        """Add seed attributes to a batch, whose seeds are at `positions` of the input."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._plan.num_batches

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. Several may run at the same time; an epoch may be left early."""
        progress = self._cursor.begin()
        order = epoch_order(self._plan.num_seeds, progress.run_key, self._shuffle, self._plan.lists)
        columns = self._columns if order is None else self._columns[:, order]
        epoch = self._backend.open_epoch(progress.run_key, self._plan, columns, progress.delivered)
        return _EpochIterator(self, epoch, order, progress)

    @abc.abstractmethod
    def _described_seeds(self) -> list[Any]:
        """Return type, original ids and times of the seeds, for `digest`."""

    def _identity(self) -> LoaderFingerprint:
        """Return the fingerprint that must match for a state to be restored."""
        seeds, sampling = self._digests
        return LoaderFingerprint(
            seeds=seeds,
            sampling=sampling,
            batch_size=self.batch_size,
            drop_last=self._plan.drop_last,
            shuffle=self._shuffle,
            seed=self._keys.seed,
            stream=self._keys.stream,
            num_batches=self._plan.num_batches,
        )

    @cached_property
    def _digests(self) -> tuple[str, str]:
        """Digests of the seeds and of the sampling options; computed when first needed."""
        spec, meta, weights = self._spec, self.data.meta, []
        if spec.link is not None:
            weights = [self._weights.get(name) for name in ("src_weight", "dst_weight")]
        return digest(self._described_seeds()), describe_sampling(
            spec.sampling,
            {t.name: t.count for t in meta.node_types},
            {t.name: t.count for t in meta.edge_types},
            spec.link,
            weights,
            by_time=meta.time_attr is not None,
        )

    def stats(self) -> LoaderStats:
        """Return statistics over all epochs of the loader, or since `reset_stats()`."""
        return self._tally.snapshot(self._backend.num_restarts - self._restarts_before)

    def reset_stats(self) -> None:
        """Reset the statistics to zero."""
        self._restarts_before = self._backend.num_restarts
        self._tally.clear()

    def shutdown(self) -> None:
        """End the sampler processes; also called when the loader is garbage-collected."""
        self._transfer.close()
        self._backend.close()

    def __del__(self) -> None:
        if getattr(self, "_backend", None) is not None:
            self.shutdown()

    def _start(self, received: Received, batch: int, order: Int64Array | None) -> PendingTransfer:
        """Assemble a batch and start its transfer to the target device."""
        positions = positions_of(order, *self._plan.bounds(batch))
        tensors = to_tensors(received)
        made = self._assembler.assemble(received, tensors)
        self._annotate(made, Tensors(received.layout.index, tensors), positions)
        return self._transfer.start(made)

    def _finish(self, pending: PendingTransfer) -> Any:
        made = self._transfer.finish(pending)
        return made if self.transform is None else self.transform(made)


class _PrefetchedBatch(NamedTuple):
    """Batch whose transfer to the target device has started.

    Attributes:
        received: its sizes and counters.
        pending: its transfer.
        taken: time at which the trainer received it, `monotonic_ns`.
    """

    received: Received
    pending: PendingTransfer
    taken: int


class _EpochIterator:
    """Iterator over one epoch; releases its batches when it is dropped."""

    def __init__(
        self,
        loader: DistLoader,
        epoch: int,
        order: Int64Array | None,
        progress: EpochProgress,
    ) -> None:
        self._loader = loader
        self._epoch = epoch
        self._order = order
        self._progress = progress
        self._next = progress.delivered
        self._prefetched: _PrefetchedBatch | Exception | None = None
        self._watch = DeliveryWatch(loader._tally)
        self._end = weakref.finalize(self, loader._backend.close_epoch, epoch)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._next >= len(self._loader) or not self._end.alive:
            if self._next >= len(self._loader):
                self._progress.end()
            self._end()
            raise StopIteration
        asked = monotonic_ns()
        try:
            prefetched = self._prefetched or self._start(self._next)
            self._prefetched = None
            if isinstance(prefetched, Exception):
                self._end()
                raise prefetched
            # From here on the batch counts: if it fails, the next call continues with the next one.
            batch, self._next = self._next, self._next + 1
            self._prefetch_next(self._next)
            made = self._loader._finish(prefetched.pending)
        except BaseException:
            self._progress.fail()
            raise
        self._count(batch, asked, prefetched)
        self._progress.deliver()
        return made

    def _count(self, batch: int, asked: int, prefetched: _PrefetchedBatch) -> None:
        """Count a batch that is returned now and was requested at `asked` (`monotonic_ns`)."""
        first, last = self._loader._plan.bounds(batch)
        counter = prefetched.received.counter
        (nodes,), (edges,) = counter("nodes"), counter("edges")
        local, cached, remote = counter("rows")
        sizes = nodes, edges, local, cached, remote
        cost = BatchTimings(*counter("made"))
        taken = max(asked, prefetched.taken)
        self._watch.deliver(asked, taken, self._epoch, batch, last - first, sizes, cost)

    def _start(self, batch: int) -> _PrefetchedBatch:
        try:
            received = self._loader._backend.take(self._epoch, batch)
        except BaseException:
            self._end()
            raise
        return self._start_transfer(received, batch)

    def _start_transfer(self, received: Received, batch: int) -> _PrefetchedBatch:
        taken = monotonic_ns()
        return _PrefetchedBatch(received, self._loader._start(received, batch, self._order), taken)

    def _prefetch_next(self, batch: int) -> None:
        """Start the transfer of the next batch to a device, if that batch has arrived.

        An error is raised by the call that returns this batch.
        """
        loader = self._loader
        wanted = loader._destination.is_device and batch < len(loader)
        if wanted and loader._backend.has_arrived(self._epoch, batch):
            received = loader._backend.take(self._epoch, batch)
            try:
                self._prefetched = self._start_transfer(received, batch)
            except Exception as error:
                self._prefetched = error


def _agree_on_batches(context: TrainerContext, plan: EpochPlan, drop_last: bool) -> EpochPlan:
    """Return the plan with a number of batches that is the same for all trainers."""
    name = f"loader-{context.number('loader')}"
    context.rendezvous.publish(name, [plan.num_batches_alone, plan.num_seeds])
    heard = context.rendezvous.all_gather(
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
