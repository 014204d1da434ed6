"""Base of the loaders of graphs in memory: epochs, workers, and joining of batches.

Runs in the trainer and, with `worker_type='process'`, in torch's worker processes.
"""

from __future__ import annotations

from functools import cached_property
from threading import get_native_id
from time import monotonic_ns
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from khop.loader.arguments import wants_processes
from khop.loader.batches.collator import Collator
from khop.loader.batches.device import DeviceJoiner, OnDevice
from khop.loader.batches.pyg_form import PygForm
from khop.loader.batches.stores import StoreJoiner, is_pair_of_stores
from khop.loader.iteration.background import BackgroundIterator, drawn_beside
from khop.loader.iteration.epochs import KeyedBatch, PlannedBatches, SeedPositions
from khop.loader.iteration.fingerprint import describe_sampling, digest
from khop.loader.iteration.iterator import BatchSource
from khop.loader.iteration.profile import (
    DrawnBatch,
    MadeBatches,
    Timed,
    size_of_drawn,
    size_of_output,
)
from khop.loader.iteration.resume import EpochProgress
from khop.loader.iteration.stateful import StatefulLoader
from khop.loader.iteration.torch_workers import LazyEpoch, TorchBatches, torch_iterator
from khop.loader.iteration.user_sampler import UserBatchSampler
from khop.metrics.loader_stats import StatsAccumulator
from khop.sampler.link_spec import LinkSpec
from khop.sampler.plan import EpochPlan
from khop.sampler.pyg.device import TorchDevice
from khop.sampler.pyg.draw_scope import batch_scope
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.output import SampledSubgraph
from khop.sampler.pyg.random_walks import torch_threads
from khop.typing import WorkerType


class EpochLoader(PygForm, StatefulLoader):
    """Mixin that overrides the iteration of a PyG loader: khop's kernels sample and gather.

    Epochs are planned by index. Batches are made in the iterating thread, in other threads or in
    torch's worker processes. Where a user's hook or sampler stands between sampling and joining,
    batches take PyG's form there (`PygForm`).
    """

    # Of PyG's loader:
    custom_cls: Any
    # Of torch's:
    batch_sampler: Any
    batch_size: int
    generator: Any
    num_workers: int
    persistent_workers: bool
    pin_memory: bool
    prefetch_factor: int | None
    timeout: float

    # Defined by the loaders of nodes and of links.

    def _draw_planned(self, positions: KeyedBatch) -> tuple[SampledSubgraph, Any]:
        """Sample a batch with khop's sampler; return the subgraph and the sampler's metadata."""
        raise NotImplementedError

    def _seed_nodes(self) -> Any:
        """Return the seed nodes in the form that `NeighborSampler.sample_prob` takes."""
        raise NotImplementedError

    def _link_spec(self) -> tuple[LinkSpec | None, list[Any]]:
        """Return the specification of link batches, and the weights of negatives' ends."""
        return None, []

    # Shared by all loaders.

    def _set_up(
        self,
        num_seeds: int,
        seed: int | None,
        stream: int | None,
        worker_type: WorkerType | None,
        kwargs: dict[str, Any],
    ) -> None:
        """Complete the construction, after PyG's part."""
        self._num_seeds = num_seeds
        self._stores = (
            StoreJoiner(self.data, self.custom_cls) if is_pair_of_stores(self.data) else None
        )
        self._worker_type = worker_type
        self._given = kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None
        self._shuffle = bool(kwargs.get("shuffle") or False)
        self._set_up_epochs(seed, stream, self.generator, _rank())
        self._tally = StatsAccumulator(self.num_workers)
        self._num_epochs = 0  # made in this process
        self._begun: EpochProgress | None = None
        # Background threads share the cores; worker processes have one each.
        self._joiner = Collator(max(1, torch_threads() // max(1, self.num_workers)))
        self._device_joiner: DeviceJoiner | None = None
        self._device_joiner = self._make_device_joiner()
        # torch does not let this attribute be set; worker processes must get the keys of batches.
        self.__dict__["dataset"] = SeedPositions(num_seeds)
        # PyG passes the loader's bound method to torch, which keeps it: only the garbage collector
        # could then free the loader, its graph and its workers. The class has the method, too.
        self.__dict__.pop("collate_fn", None)

    def _make_device_joiner(self) -> DeviceJoiner | None:
        """Return the joiner for the sampler's device, or None if the CPU samples."""
        device = getattr(self._sampler, "device", None)
        if not isinstance(device, TorchDevice):
            return None
        if self._in_processes:
            raise ValueError(
                "a device draws in the trainer's process, not in worker processes: leave "
                "worker_type='process', worker_init_fn and multiprocessing_context out"
            )
        return DeviceJoiner(device.name, self._sampler.device_options, self._seed_hotness)

    @property
    def _in_processes(self) -> bool:
        """True if the epoch that begins is made in torch's worker processes."""
        if self.num_workers == 0 or self._worker_type == "thread":
            return False
        return self._worker_type == "process" or (
            self._device_joiner is None and wants_processes(self)
        )

    def _seed_hotness(self) -> Any:
        """Return the probability that a batch needs each node."""
        return self._sampler.sample_prob(self._seed_nodes(), batch_size=self.batch_size)

    def _open(self, progress: EpochProgress) -> BatchSource:
        """Return the source of an epoch's batches, from the first that has not been delivered."""
        self._joiner.forget()
        if self._device_joiner is not None:
            self._device_joiner.forget()
        if self._in_processes:
            self._begun = progress
            return TorchBatches(self.pyg_loader.__iter__(self))
        batches = self._batches(progress)
        epoch, self._num_epochs = self._num_epochs, self._num_epochs + 1
        if self.num_workers == 0:
            # A user's own sampler may name seeds that depend on the time of the request.
            may = not self._given and torch_threads() > 1 and self._is_native()
            drawn = drawn_beside(self._draw_timed, batches, may)
            made = map(self._join_drawn, drawn)
            return MadeBatches(made, drawn.close, self._finish, False, epoch)
        work = self.num_workers, self.num_workers * (self.prefetch_factor or 2), self.timeout
        if not self._joins_here:
            threads = BackgroundIterator(self._make, batches, *work)
            return MadeBatches(threads, threads.close, self._finish, True, epoch)
        drawing = BackgroundIterator(self._draw_timed, batches, *work)
        joined = map(self._join_drawn, drawing)
        return MadeBatches(joined, drawing.close, self._finish, False, epoch)

    def _check_resumable(self) -> None:
        if self._in_processes and not getattr(self, "in_order", True):
            raise ValueError(
                "in_order=False delivers batches in any order, so that their number does not tell "
                "which they were: leave it out to save or load a loader's state"
            )

    @cached_property
    def _digests(self) -> tuple[str, str | None]:
        """Digests of the seeds, and of what khop's sampler draws for them (None for others)."""
        inputs, sampler = self.input_data, self._sampler
        ends = [inputs.node] if hasattr(inputs, "node") else [inputs.row, inputs.col]
        seeds = digest([inputs.input_type, *ends, inputs.time])
        if type(sampler) is not NeighborSampler:
            return seeds, None
        graph = sampler.graph
        num_edges = {t: topology.num_edges for t, topology in graph.topologies.items()}
        spec, link = sampler.spec, self._link_spec()
        return seeds, describe_sampling(
            spec, graph.num_nodes, num_edges, *link, by_time=graph.is_temporal
        )

    def _get_iterator(self) -> Any:
        """Return torch's iterator, whose workers end with the loader."""
        self._begun = self._begun or self._cursor.begin()
        return torch_iterator(self, super()._get_iterator, self._begun)  # type: ignore[misc]

    @property
    def _index_sampler(self) -> Any:
        """Keyed batches of the epoch, over which torch's own iterators run."""
        return LazyEpoch(self)

    def _batches(self, progress: EpochProgress) -> PlannedBatches | UserBatchSampler:
        """Return the batches of an epoch that have not been delivered."""
        if self._given:
            return UserBatchSampler(self.batch_sampler, progress, self._num_seeds)
        plan = EpochPlan(self._num_seeds, self.batch_size, self.drop_last)
        return PlannedBatches(plan, progress.run_key, self._shuffle, progress.delivered)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.batch_sampler)

    def _make(self, positions: KeyedBatch) -> Timed:
        """Sample and join a batch. Runs in threads."""
        return self._join_drawn(self._draw_timed(positions))

    def _draw_timed(self, positions: KeyedBatch) -> DrawnBatch:
        """Sample a batch and take its times. Runs in threads."""
        began, metadata = monotonic_ns(), None
        if self._is_native():
            drawn, metadata = self._draw_planned(positions)
            size = size_of_drawn(drawn)
        else:
            otherwise = self.collates_otherwise
            drawn = self._collated(positions) if otherwise else self._sample(positions)
            size = size_of_output(drawn)
        number, num_seeds = positions.key.batch, len(positions.positions)
        ended = monotonic_ns()
        return DrawnBatch(drawn, metadata, number, num_seeds, size, get_native_id(), began, ended)

    def _join_drawn(self, drawn: DrawnBatch) -> Timed:
        """Join a sampled subgraph with its attributes. Runs in threads."""
        began, subgraph, filtered = monotonic_ns(), drawn.subgraph, False
        if not isinstance(subgraph, SampledSubgraph):
            batch, filtered = self._joined(subgraph)
        elif self._device_joiner is not None:
            device_joiner = self._device_joiner
            batch = device_joiner.join(
                lambda found: self._collate(device_joiner, found, drawn.metadata), subgraph
            )
        else:
            batch = self._collate(self._joiner, subgraph, drawn.metadata)
        return Timed(batch, drawn, get_native_id(), began, monotonic_ns(), filtered)

    @property
    def _joins_here(self) -> bool:
        """True if the iterating thread joins what other threads have drawn.

        A user's store may be bound to it. PyG infers `filter_per_worker=False` for data on a GPU,
        which other threads may read.
        """
        if self.filter_per_worker:
            return False
        replaced = self.collates_otherwise or self.filters_otherwise
        return replaced or not getattr(self.data, "is_cuda", False)

    def _joined(self, drawn: Any) -> tuple[Any, bool]:
        """Join what was drawn in PyG's form; return whether PyG's steps have finished it, too."""
        if self.collates_otherwise and self.filter_per_worker:
            return drawn, True
        if self.collates_otherwise or self.filters_otherwise:
            with batch_scope():
                return self.filter_fn(drawn), True
        return self._join(drawn), False

    def _is_native(self) -> bool:
        """Return True if no hook, store or sampler needs PyG's form between drawing and joining."""
        sampler, data = self._sampler, self.data
        if self.transform_sampler_output is not None or type(sampler) is not NeighborSampler:
            return False
        if self.collates_otherwise or self.filters_otherwise:
            return False
        graph = sampler.graph
        if isinstance(data, Data):
            return not graph.is_heterogeneous
        return (
            isinstance(data, HeteroData)
            and graph.is_heterogeneous
            and list(data._node_store_dict) == graph.node_types
            and list(data._edge_store_dict) == graph.edge_types
        )

    def _finish(self, timed: Timed) -> Any:
        """Finish a batch in the iterating thread: device, transform, pinned memory."""
        batch = timed.batch
        if isinstance(batch, OnDevice):
            batch = batch.taken()
        elif self._device_joiner is not None:
            batch = batch.to(self._device_joiner.device.torch_device)
        if self.transform is not None and not timed.filtered:
            batch = self.transform(batch)
        if self.pin_memory and torch.cuda.is_available():
            batch = batch.pin_memory()
        return batch

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return 0
