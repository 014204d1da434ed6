"""Base of the loaders of graphs in memory: epochs, workers, and joining of batches.

Runs in the trainer and, with `worker_type='process'`, in torch's worker processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from torch_geometric.data import Data

from khop.data.row_division import Shards
from khop.loader.arguments import TorchOptions, wants_processes
from khop.loader.batches.collate import add_values
from khop.loader.batches.collator import Collator
from khop.loader.batches.device import DeviceJoiner, OnDevice
from khop.loader.batches.padding import TRIALS, Padder
from khop.loader.batches.stores import StoreJoiner
from khop.loader.batches.ways import NativeWay, PygWay, way_of
from khop.loader.iteration.background import BackgroundIterator, drawn_beside
from khop.loader.iteration.epochs import KeyedBatch, PlannedBatches, SeedPositions
from khop.loader.iteration.fingerprint import describe_sampling, digest
from khop.loader.iteration.iterator import BatchSource
from khop.loader.iteration.profile import MadeBatches, Timed
from khop.loader.iteration.replay import Replay, positions_of
from khop.loader.iteration.resume import EpochProgress
from khop.loader.iteration.stateful import StatefulLoader
from khop.loader.iteration.torch_workers import LazyEpoch, TorchBatches, torch_iterator
from khop.metrics.loader_stats import StatsAccumulator
from khop.sampler.link_spec import LinkSpec
from khop.sampler.plan import EpochPlan
from khop.sampler.pyg.device import TorchDevice
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.output import SampledSubgraph
from khop.sampler.pyg.padded import PadSizes
from khop.sampler.pyg.random_walks import torch_threads
from khop.typing import NodeType, Pad, Transform, WorkerType


class EpochLoader(StatefulLoader):
    """Mixin that overrides the iteration of a PyG loader: khop's kernels sample and gather.

    Batches are made in the iterating thread, in other threads or in torch's worker processes. A
    `Way` of `khop.loader.batches.ways` samples a batch and joins it with attributes.
    """

    # Of PyG's loader:
    data: Any
    input_data: Any
    transform: Transform | None
    transform_sampler_output: Transform | None
    filter_per_worker: bool
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

    @property
    def _sampler(self) -> Any:
        raise NotImplementedError

    def _draw(self, inputs: Any, key: BatchKey | None) -> Any:
        """Sample the neighbourhood of some seeds or links, and return PyG's sampler output.

        `inputs` is PyG's `NodeSamplerInput` or `EdgeSamplerInput` of a batch. If its random `key`
        is None, the sampler draws one.
        """
        raise NotImplementedError

    def _annotate(self, batch: Any, metadata: Any) -> None:
        """Add what belongs to seeds or links to a batch: `input_id`, labels, times, ...

        `metadata` is the sampler's, as in PyG's sampler output.
        """
        raise NotImplementedError

    def _draw_planned(self, positions: KeyedBatch) -> tuple[SampledSubgraph, Any]:
        """Sample the batch of these positions with khop's sampler. Return it with its metadata.

        `positions` are the positions of its seeds or links in the loader's input, with the random
        key.
        """
        raise NotImplementedError

    def _seed_nodes(self) -> Any:
        """Return the seed nodes in the form that `NeighborSampler.sample_prob` takes."""
        raise NotImplementedError

    def _link_spec(self) -> tuple[LinkSpec | None, list[Any]]:
        """Return the options of link batches, and the weights by which ends of negatives are drawn.

        A loader of nodes has none: (None, []).
        """
        return None, []

    # Shared by all loaders.

    def _set_up(
        self,
        num_seeds: int,
        seed: int | None,
        stream: int | None,
        worker_type: WorkerType | None,
        options: TorchOptions,
        pad: Pad | None = None,
    ) -> None:
        """Set khop's part of a loader of `num_seeds` seeds or links up, after PyG's `__init__`."""
        self._num_seeds = num_seeds
        self._stores = (
            StoreJoiner(self.data, self.custom_cls) if isinstance(self.data, tuple) else None
        )
        self._worker_type = worker_type
        own = options.get("sampler"), options.get("batch_sampler")
        self._has_user_sampler = any(sampler is not None for sampler in own)
        self._shuffle = bool(options.get("shuffle") or False)
        self._set_up_epochs(seed, stream, self.generator, _rank())
        self._tally = StatsAccumulator(self.num_workers)
        self._num_epochs = 0  # made in this process
        self._begun: EpochProgress | None = None
        # Background threads share the cores. Worker processes have one each.
        self._joiner = Collator(max(1, torch_threads() // max(1, self.num_workers)))
        self._device_joiner: DeviceJoiner | None = None
        device = getattr(self._sampler, "device", None)
        if isinstance(device, TorchDevice):
            if self._in_processes:
                raise ValueError(
                    "a device draws in the trainer's process, not in worker processes: leave "
                    "worker_type='process', worker_init_fn and multiprocessing_context out"
                )
            options_there = self._sampler.device_options
            self._device_joiner = DeviceJoiner(device.name, options_there, self._seed_hotness)
        self._padder = None if pad is None else self._make_padder(pad)
        # Worker processes must get the keys of batches. Torch does not let this attribute be set.
        self.__dict__["dataset"] = SeedPositions(num_seeds)
        # PyG passes the loader's bound method to torch, which keeps it. Only the garbage collector
        # could then free the loader, its graph and its workers. The class has the method, too.
        self.__dict__.pop("collate_fn", None)

    def _make_padder(self, pad: Pad) -> Padder:
        sampler = self._sampler
        if not isinstance(sampler, NeighborSampler):
            raise ValueError(
                f"pad needs a sampler of khop's (got a '{type(sampler).__name__}'): pad batches by "
                "PyG's torch_geometric.transforms.Pad"
            )
        info = sampler.info
        types = list(info.node_types), list(info.edge_types)
        is_hetero, num_seeds = info.heterogeneous, self.batch_size or 1
        padder = Padder(pad, *types, is_hetero, num_seeds, self._padded_seeds)
        if padder.shapes.is_auto and self._in_processes:
            raise ValueError(
                "pad='auto' with worker processes would give each its own shapes: use "
                "worker_type='thread', or pass the sizes that `pad_sizes` of a loader has"
            )
        return padder

    @property
    def _padded_seeds(self) -> NodeType | None:
        """Node type whose first nodes in a batch are its seeds, `batch_size` at most, or None."""
        return None

    @property
    def pad_sizes(self) -> dict[str, Any] | None:
        """Sizes of padded batches, in the form of the argument `pad`.

        None without `pad`, and with 'auto' before the first batch. They grow when a batch is
        larger. Another loader that gets them makes batches of the same shape.
        """
        return None if self._padder is None else self._padder.shapes.sizes

    @property
    def shards(self) -> dict[str, Shards]:
        """Division of each attribute's rows among the memories of devices and of the host.

        By the attribute's name: 'x', 'paper.x'. Empty without a device and before the first batch.
        """
        return {} if self._device_joiner is None else self._device_joiner.shards

    @property
    def _in_processes(self) -> bool:
        """True if the epoch that begins is made in torch's worker processes."""
        if self.num_workers == 0 or self._worker_type == "thread":
            return False
        return self._worker_type == "process" or (
            self._device_joiner is None and wants_processes(self)
        )

    def _seed_hotness(self) -> Any:
        return self._sampler.sample_prob(self._seed_nodes(), batch_size=self.batch_size)

    def _open(self, progress: EpochProgress) -> BatchSource:
        """Return the source of an epoch's batches, from the first undelivered one on."""
        self._joiner.forget()
        if self._device_joiner is not None:
            self._device_joiner.forget()
        if self._in_processes:
            self._begun = progress
            return TorchBatches(super(StatefulLoader, self).__iter__())  # type: ignore[misc]
        # Hooks may be set on a loader between epochs.
        way, batches = way_of(self), self._batches(progress)
        epoch, self._num_epochs = self._num_epochs, self._num_epochs + 1
        if self._padder is not None and isinstance(batches, PlannedBatches):
            self._padder.prepare(way.draw(batch).subgraph for batch in batches.spread(TRIALS))
        if self.num_workers == 0:
            # A user's own sampler may name seeds that depend on the time of the request.
            is_pure = isinstance(way, NativeWay) and not self._has_user_sampler
            drawn = drawn_beside(way.draw, batches, is_pure and torch_threads() > 1)
            made = chain(map(way.join, drawn), self._last_checks())
            return MadeBatches(made, drawn.close, self._finish, False, epoch)
        work = self.num_workers, self.num_workers * (self.prefetch_factor or 2), self.timeout
        # More threads than one take turns: while one waits for a batch, another launches the next.
        begin = way.begin if self.num_workers == 1 and way.begins else None
        if way.joins_here:
            drawing = BackgroundIterator(way.draw, batches, *work, begin)
            made = chain(map(way.join, drawing), self._last_checks())
            return MadeBatches(made, drawing.close, self._finish, False, epoch)
        threads = BackgroundIterator(way.make, batches, *work, begin)
        made = chain(threads, self._last_checks())
        return MadeBatches(made, threads.close, self._finish, True, epoch)

    def _last_checks(self) -> Iterator[Any]:
        """Raise ValueError if a padded batch of the epoch did not fit. Yields nothing."""
        if self._device_joiner is not None and self._padder is not None:
            self._sampler.check_all()
        yield from ()

    def _sizes_on_device(self) -> PadSizes | None:
        """Return sizes to which a device pads batches while it draws them, or None."""
        if self._padder is None:
            return None
        return self._padder.sizes_for(self._sampler.spec.num_hops)

    def _check_resumable(self) -> None:
        if self._in_processes and not getattr(self, "in_order", True):
            raise ValueError(
                "in_order=False delivers batches in any order, so that their number does not tell "
                "which they were: leave it out to save or load a loader's state"
            )

    @cached_property
    def _digests(self) -> tuple[str, str | None]:
        """Digests of the seeds and of the sampling options, to compare with a saved state.

        The second is None if the sampler is not khop's.
        """
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
        """Return torch's iterator over worker processes. They end when the loader is freed."""
        self._begun = self._begun or self._cursor.begin()
        return torch_iterator(self, super()._get_iterator, self._begun)  # type: ignore[misc]

    @property
    def _index_sampler(self) -> Any:
        """Batches of the epoch, each with its random key, over which torch's own iterators run."""
        return LazyEpoch(self)

    def _batches(self, progress: EpochProgress) -> Iterable[KeyedBatch]:
        """Return the seeds and keys of an epoch's undelivered batches."""
        if self._has_user_sampler:
            return _replayed(self.batch_sampler, progress, self._num_seeds)
        plan = EpochPlan(self._num_seeds, self.batch_size, self.drop_last)
        return PlannedBatches(plan, progress.run_key, self._shuffle, progress.delivered)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.batch_sampler)

    def collate_fn(self, index: Any) -> Any:
        """Sample the batch of the seeds at the positions `index` of the loader's input.

        Returns PyG's sampler output, or the joined batch with `filter_per_worker`. Subclasses may
        override this method and `filter_fn`, and users may set both on a loader. They are called as
        PyG calls them, with a list of positions.
        """
        out = PygWay(self).sample(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Join PyG's sampler output with its attributes, and apply `transform`."""
        batch = PygWay(self).joined(out)
        return batch if self.transform is None else self.transform(batch)

    def _is_replaced(self, name: str) -> bool:
        """Return True if a subclass or the user has replaced the method `name`."""
        return name in self.__dict__ or getattr(type(self), name) is not getattr(EpochLoader, name)

    def _collate(self, joiner: Collator, drawn: SampledSubgraph, metadata: Any) -> Any:
        """Join a drawn subgraph with the attributes of its nodes, edges and seeds: PyG's batch.

        `joiner` gathers the attributes, `metadata` is the sampler's.
        """
        join = joiner.join_data if isinstance(self.data, Data) else joiner.join_hetero_data
        if (padder := self._padder) is None:
            batch: Any = join(self.data, drawn)
        else:
            shape: Any = drawn.padding
            if shape is None:
                drawn, shape = padder.pad(drawn)
            batch = join(self.data, drawn, shape)
            padder.add_masks(batch, shape)
        self._annotate(batch, metadata)
        if drawn.values:
            self._add_values(batch, drawn.values)
        return batch

    def _add_values(self, batch: Any, values: Mapping[str, Any]) -> None:
        """Add the sampling method's own values, such as `edge_norm`, to a batch."""
        if values:
            info = self._sampler.info
            add_values(batch, values, info.node_types, list(info.edge_types))

    def _join_by_pyg(self, out: Any) -> Any:
        """Join PyG's sampler output by PyG's `filter_fn`, without `transform` and the other hook.

        The caller applies the hooks.
        """
        plain = SimpleNamespace(**{**vars(self), "transform": None})
        plain.transform_sampler_output = None
        return super().filter_fn.__func__(plain, out)  # type: ignore[misc]

    def _finish(self, timed: Timed) -> Any:
        """Finish a batch in the iterating thread: copy to device, `transform`, pinned memory."""
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
        """Return the class, its fan-outs or method, and numbers of seeds and batches."""
        sampler = self._sampler
        sampling = f"{sampler.spec.summary}, " if isinstance(sampler, NeighborSampler) else ""
        counts = f"{self._num_seeds:,} seeds, {len(self):,} batches"
        return f"{type(self).__name__}({sampling}{counts})"

    def __str__(self) -> str:
        return f"{type(self).__name__}()"  # as PyG's


def _replayed(
    batches: Iterable[Any], progress: EpochProgress, num_inputs: int
) -> Iterator[KeyedBatch]:
    """Yield the undelivered batches of a user's own sampler (`batches`).

    `progress` also keeps the sampler's state. `num_inputs` is the loader's number of seeds or
    links.

    Raises:
        IndexError, TypeError: the sampler does not name positions in the loader's input.
        ValueError: the sampler's first batches differ from the ones that were delivered.
    """
    first, replay = progress.delivered, progress.replay
    if replay is None:
        progress.replay = replay = Replay.at_the_beginning(batches)
        rest = iter(batches)
    else:
        rest = replay.rest(batches, first)
    for index, batch in enumerate(rest, start=first):
        positions = positions_of(batch)
        outside = (positions < -num_inputs) | (positions >= num_inputs)  # -1 is the last, as in PyG
        if outside.any():
            raise IndexError(
                f"a sampler names position {int(positions[outside][0])}, but the loader has "
                f"{num_inputs} seeds or links: samplers name positions among these, not ids"
            )
        replay.add(positions)
        yield KeyedBatch(positions, BatchKey(progress.run_key, index))


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return 0
