"""Base of the loaders of graphs in memory: epochs, workers, and joining of batches.

Runs in the trainer and, with `worker_type='process'`, in torch's worker processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import cached_property
from threading import get_native_id
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.cores import available_cores
from khop.loader.arguments import WorkerType, wants_processes
from khop.loader.background import BackgroundIterator
from khop.loader.collator import Collator, drawn_of_data, drawn_of_hetero_data
from khop.loader.device import DeviceJoiner, OnDevice
from khop.loader.epochs import EpochKeys, KeyedBatch, PlannedBatches, SeedPositions
from khop.loader.fingerprint import describe_sampling, digest
from khop.loader.profile import (
    DrawnBatch,
    LoaderProfile,
    Timed,
    size_of_drawn,
    size_of_output,
)
from khop.loader.resume import EpochCursor, EpochProgress, LoaderFingerprint, Stateful
from khop.loader.stores import StoreJoiner, is_pair_of_stores
from khop.loader.torch_workers import LazyEpoch, TorchEpoch, torch_iterator
from khop.loader.user_sampler import UserBatchSampler
from khop.metrics.loader_stats import LoaderStats
from khop.sampler.device import TorchDevice
from khop.sampler.link_spec import LinkSpec
from khop.sampler.neighbor import NeighborSampler
from khop.sampler.plan import EpochPlan
from khop.sampler.pyg_output import SampledSubgraph, output_on_host
from khop.sampler.pyg_sampler import BatchKey

# Drawing time in nanoseconds above which a thread draws the next batches, and the number of these
# batches until the time is checked again.
_WORTH_A_THREAD = 2_000_000
_BATCHES_BESIDE = 64


class EpochLoader(Stateful):
    """Mixin that overrides the iteration of a PyG loader: khop's kernels sample and gather.

    Epochs are planned by index. Batches are made in the iterating thread, in other threads or in
    torch's worker processes. PyG's methods join the batches that khop's do not handle.
    """

    # Of PyG's loader:
    data: Any
    custom_cls: Any
    input_data: Any
    transform: Any
    transform_sampler_output: Any
    filter_per_worker: bool
    # Of torch's:
    batch_sampler: Any
    batch_size: int
    drop_last: bool
    generator: Any
    num_workers: int
    persistent_workers: bool
    pin_memory: bool
    prefetch_factor: int | None
    timeout: float

    pyg_loader: ClassVar[Any]
    """PyG loader whose `filter_fn` joins batches."""

    read_by_pyg: ClassVar[tuple[str, ...]]
    """Attributes that `filter_fn` reads from a loader, without the hooks."""

    # Defined by the loaders of nodes and of links.

    @property
    def _sampler(self) -> Any:
        """Sampler of the batches."""
        raise NotImplementedError

    def _draw(self, inputs: Any, key: BatchKey | None) -> Any:
        """Sample a batch of the loader's input."""
        raise NotImplementedError

    def _draw_planned(self, positions: KeyedBatch) -> tuple[SampledSubgraph, Any]:
        """Sample a batch with khop's sampler; return the subgraph and the sampler's metadata."""
        raise NotImplementedError

    def _annotate(self, batch: Any, metadata: Any) -> None:
        """Add the attributes about its seeds to a batch."""
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
        rank = _rank()
        self._keys = EpochKeys(seed, rank if stream is None else stream, self.generator)
        self._cursor = EpochCursor(self._keys, rank)
        self._begun: EpochProgress | None = None
        # Background threads share the cores; worker processes have one each.
        self._joiner = Collator(max(1, _threads() // max(1, self.num_workers)))
        self._device_joiner: DeviceJoiner | None = None
        self._device_joiner = self._make_device_joiner()
        self._profile = LoaderProfile(self.num_workers)
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

    def __iter__(self) -> Iterator[Any]:
        """Begin a new epoch."""
        self._joiner.forget()
        if self._device_joiner is not None:
            self._device_joiner.forget()
        progress = self._cursor.begin()
        if self._in_processes:
            self._begun = progress
            epoch: Any = super().__iter__()  # type: ignore[misc]
            return TorchEpoch(self, epoch, progress)
        return self._iterate_here(progress)

    def _check_resumable(self) -> None:
        if self._in_processes and not getattr(self, "in_order", True):
            raise ValueError(
                "in_order=False delivers batches in any order, so that their number does not tell "
                "which they were: leave it out to save or load a loader's state"
            )

    def _identity(self) -> LoaderFingerprint:
        """Return the properties that a state's loader must share with this one."""
        seeds, sampling = self._digests
        return LoaderFingerprint(
            seeds=seeds,
            sampling=sampling,
            batch_size=self.batch_size,
            drop_last=bool(self.drop_last),
            shuffle=self._shuffle,
            seed=self._keys.seed,
            stream=self._keys.stream,
            num_batches=None if self._given else len(self),
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

    def stats(self) -> LoaderStats:
        """Return statistics of the loader, over all its epochs or since `reset_stats()`.

        For batches made in torch's worker processes (`worker_type='process'`), only their number
        and the trainer's time are known.
        """
        return self._profile.tally.snapshot()

    def reset_stats(self) -> None:
        """Reset the statistics to zero."""
        self._profile.tally.clear()

    def _get_iterator(self) -> Any:
        """Return torch's iterator, whose workers end with the loader."""
        self._begun = self._begun or self._cursor.begin()
        return torch_iterator(self, super()._get_iterator, self._begun)  # type: ignore[misc]

    def _iterate_here(self, progress: EpochProgress) -> Iterator[Any]:
        batches = self._batches(progress)
        made: Iterator[Timed]
        if self.num_workers == 0:
            made = map(self._join_drawn, self._drawn_beside(batches))
        else:
            ahead = self.num_workers * (self.prefetch_factor or 2)
            made = BackgroundIterator(self._make, batches, self.num_workers, ahead, self.timeout)
        return self._profile.watch(made, self._finish, progress)

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

    def _drawn_beside(self, batches: Iterable[KeyedBatch]) -> Iterator[DrawnBatch]:
        """Draw batches; a thread may draw the next one while the current one is joined and used.

        Results do not change: the draws of a khop sampler do not depend on time. No batch is drawn
        ahead if drawing is fast (two batches in a row must be slow, since a first one always is),
        if torch may use only one core, or if a user's own sampler names the seeds, which may depend
        on the time of the request.
        """
        may = not self._given and _threads() > 1 and self._is_all_ours()
        tasks, last = iter(batches), 0
        for task in tasks:
            drawn = self._draw_timed(task)
            took = drawn.ended - drawn.began
            if may and min(last, took) > _WORTH_A_THREAD:
                next_ones = itertools.islice(tasks, _BATCHES_BESIDE)
                beside = BackgroundIterator(self._draw_timed, next_ones, 1, num_ahead=1)
                yield drawn
                yield from beside
            else:
                yield drawn
            last = took

    def _make(self, positions: KeyedBatch) -> Timed:
        """Sample and join a batch. Runs in threads."""
        return self._join_drawn(self._draw_timed(positions))

    def _draw_timed(self, positions: KeyedBatch) -> DrawnBatch:
        """Sample a batch and take its times. Runs in threads."""
        began, metadata = monotonic_ns(), None
        if self._is_all_ours():
            drawn, metadata = self._draw_planned(positions)
            size = size_of_drawn(drawn)
        else:
            drawn = self._sample(positions)
            size = size_of_output(drawn)
        number, num_seeds = positions.key.batch, len(positions.positions)
        ended = monotonic_ns()
        return DrawnBatch(drawn, metadata, number, num_seeds, size, get_native_id(), began, ended)

    def _join_drawn(self, drawn: DrawnBatch) -> Timed:
        """Join a sampled subgraph with its attributes. Runs in threads."""
        began, subgraph = monotonic_ns(), drawn.subgraph
        if not isinstance(subgraph, SampledSubgraph):
            batch = self._join(subgraph)
        elif self._device_joiner is not None:
            device_joiner = self._device_joiner
            batch = device_joiner.join(
                lambda found: self._joined_with(device_joiner, found, drawn.metadata), subgraph
            )
        else:
            batch = self._joined_with(self._joiner, subgraph, drawn.metadata)
        return Timed(batch, drawn, get_native_id(), began, monotonic_ns())

    def _joined_with(self, joiner: Collator, drawn: SampledSubgraph, metadata: Any) -> Any:
        batch = self._joined(drawn, joiner)
        self._annotate(batch, metadata)
        return batch

    def _is_all_ours(self) -> bool:
        """Return True if no hook, store or sampler needs PyG's form between drawing and joining."""
        sampler, data = self._sampler, self.data
        if self.transform_sampler_output is not None or type(sampler) is not NeighborSampler:
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

    def _finish(self, batch: Any) -> Any:
        """Finish a batch in the iterating thread: device, transform, pinned memory."""
        if isinstance(batch, OnDevice):
            batch = batch.taken()
        elif self._device_joiner is not None:
            batch = batch.to(self._device_joiner.device.torch_device)
        if self.transform is not None:
            batch = self.transform(batch)
        if self.pin_memory and torch.cuda.is_available():
            batch = batch.pin_memory()
        return batch

    def _sample(self, positions: Any) -> Any:
        """Sample a batch in PyG's form, on the host, where hooks and stores expect it."""
        key = None
        if isinstance(positions, KeyedBatch):
            positions, key = torch.from_numpy(positions.positions), positions.key
        out = self._draw(self.input_data[positions], key)
        return out if self._device_joiner is None else output_on_host(out)

    def collate_fn(self, index: Any) -> Any:
        """Sample a batch of seeds, given by their positions in the input."""
        out = self._sample(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Join a sampled subgraph with its attributes and apply the transform."""
        batch = self._join(out)
        return batch if self.transform is None else self.transform(batch)

    def _join(self, out: Any) -> Any:
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        if not isinstance(out, SamplerOutput | HeteroSamplerOutput):
            hook = self.transform_sampler_output is not None
            raise TypeError(
                f"found invalid type '{type(out)}': "
                f"{'transform_sampler_output' if hook else type(self._sampler).__name__} must "
                "return a SamplerOutput or a HeteroSamplerOutput"
            )
        batch = self._joined_here(out)
        if batch is None:
            return self._joined_by_pyg(out)
        self._annotate(batch, out.metadata)
        return batch

    def _joined_here(self, out: Any) -> Any:
        """Join a batch of stores, or of a khop sampler with all types present; else return None."""
        as_drawn = getattr(out, "orig_row", None) is None
        if self._stores is not None and as_drawn:
            return self._stores.join(out, self._sampler.edge_permutation)
        if not as_drawn or not isinstance(self._sampler, NeighborSampler):
            return None
        drawn = None
        if isinstance(out, SamplerOutput) and isinstance(self.data, Data):
            drawn = drawn_of_data(out)
        elif isinstance(out, HeteroSamplerOutput) and isinstance(self.data, HeteroData):
            drawn = drawn_of_hetero_data(out, self.data)
        return None if drawn is None else self._joined(drawn, self._joiner)

    def _joined(self, drawn: SampledSubgraph, joiner: Collator) -> Any:
        if isinstance(self.data, Data):
            return joiner.join_data(self.data, drawn)
        return joiner.join_hetero_data(self.data, drawn)

    def _joined_by_pyg(self, out: Any) -> Any:
        # PyG's method gets the attributes that it reads. The hooks were applied before.
        read = {name: getattr(self, name) for name in self.read_by_pyg}
        plain = SimpleNamespace(**read, transform=None, transform_sampler_output=None)
        return self.pyg_loader.filter_fn(plain, out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _threads() -> int:
    """Return the number of threads to use: torch's, but at most the cores of this process."""
    return min(torch.get_num_threads(), available_cores())


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return 0
