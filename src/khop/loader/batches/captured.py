"""Training steps that are one CUDA graph each, from the draw to the optimiser. Run in the trainer.

Padded batches have one shape, so all batches of a loader need the same kernels, at the same
addresses. The seeds and the random key are uploaded before each launch of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from threading import get_native_id
from time import monotonic_ns
from typing import Any

import torch

from khop.loader.batches.collate import put
from khop.loader.batches.device import DeviceJoiner
from khop.loader.batches.ways import NativeWay, way_of
from khop.loader.iteration.epochs import KeyedBatch
from khop.loader.iteration.iterator import EpochIterator
from khop.loader.iteration.profile import DrawnBatch, MadeBatches, Timed
from khop.sampler.pyg.device import TorchDevice


def record_by_torch(device: TorchDevice, work: Callable[[], Any]) -> Callable[[], None]:
    """Record work as a `torch.cuda.CUDAGraph` on the device's stream."""
    graph = torch.cuda.CUDAGraph()
    # Threads of other loaders allocate memory meanwhile.
    with torch.cuda.graph(graph, stream=device.stream, capture_error_mode="thread_local"):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


class CapturedSteps:
    """Training steps of a loader as CUDA graphs. Made by `NeighborLoader.capture`.

    Each iteration is an epoch of the loader. For each batch it yields what the user's function
    returned, the same tensors every time, with the values of this batch.

    Args:
        loader: the loader, a `NeighborLoader`.
        function: the step: takes a batch, and returns tensors. Everything that it does on the GPU
            is recorded once, see `torch.cuda.graph`.
        warm_up: number of steps that run before one is recorded.
        record: takes a `TorchDevice` and a function, records what the function launches, and
            returns a function that launches it. If None, nothing is recorded.

    Raises:
        ValueError: the loader's batches have no fixed shape, or another argument contradicts.

    Example:
        >>> from khop.loader import CapturedSteps, DeviceOptions, NeighborLoader
        >>> options = {"device": "emulated", "device_options": DeviceOptions(cuda_graph="step")}
        >>> pad = {"nodes": [8, 8], "edges": [8]}
        >>> loader = NeighborLoader(data, [2], batch_size=3, pad=pad, **options)
        >>> len([*CapturedSteps(loader, lambda batch: None)])
        2
    """

    def __init__(
        self,
        loader: Any,
        function: Callable[[Any], Any],
        warm_up: int = 3,
        record: Callable[[Any, Callable[[], Any]], Callable[[], None]] | None = None,
    ) -> None:
        _check(loader, warm_up)
        self._loader, self._function, self._warm_up = loader, function, warm_up
        sampler: Any = loader._sampler
        self._device: TorchDevice = sampler.device
        self._record = record
        self._joiner = DeviceJoiner(self._device, sampler.device_options, loader._seed_hotness)
        drawer = sampler.device_drawer
        layout = drawer.padded(loader._sizes_on_device())
        if layout is None:
            raise ValueError(
                "cuda_graph='step' needs batches of drawn edges over at least one hop: leave "
                "subgraph_type and sample_direction out"
            )
        self._layout = layout
        self._subgraph = drawer.new_subgraph()
        with self._device.lock, self._device.scope():
            self._block = self._device.empty([layout.plan.block_words])
        self._launch: Callable[[], None] | None = None
        self._result: Any = None

    def __iter__(self) -> EpochIterator:
        """Begin an epoch of the loader, as `iter(loader)` does. Its progress is the loader's."""
        loader = self._loader
        progress = loader._cursor.begin()
        self._joiner.forget()
        steps = self._steps(loader._batches(progress))
        source = MadeBatches(steps, steps.close, lambda timed: timed.batch, False, 0)
        return EpochIterator(loader, source, progress, loader._tally)

    def _steps(self, batches: Any) -> Generator[Timed, None, None]:
        sizes = self._layout.num_rows
        thread = get_native_id()
        for batch in batches:
            began = monotonic_ns()
            self._step(batch)
            index, count, ended = batch.key.batch, len(batch.positions), monotonic_ns()
            drawn = DrawnBatch(None, None, index, count, sizes, thread, began, ended)
            yield Timed(self._result, drawn, thread, ended, ended)
        self._subgraph.check_all()

    def _step(self, batch: KeyedBatch) -> None:
        device, plan = self._device, self._layout.plan
        seeds, _ = self._loader._inputs.take(batch.positions)
        device.wait_for_user()
        with device.lock, device.scope():
            block = self._block.data_ptr(), plan.block_words
            self._subgraph.draw(plan, [seeds], *batch.key, (), self._block, *block, staged=True)
            if self._launch is not None:
                self._launch()
            elif self._record is None or self._warm_up > 0:
                self._warm_up -= 1
                self._work()
            else:
                self._launch = self._record(device, self._work)
                self._launch()
            self._subgraph.collect()
            if not self._subgraph.leave_unchecked():
                raise ValueError(
                    "cuda_graph='step' needs fan-outs that bound a batch to 4 M nodes and edges"
                )
        device.let_user_wait()

    def _work(self) -> None:
        """Launch a step whose seeds are on the device."""
        loader = self._loader
        self._subgraph.launch()
        drawn = self._layout.parts_of(self._block, None)
        seeds = torch.empty(loader.batch_size)
        batch = loader._collate(self._joiner, drawn, (seeds, None))
        seed_type = loader.input_data.input_type
        # Other seeds in each batch: `n_id` begins with them.
        put(batch._store if seed_type is None else batch[seed_type], "input_id", None)
        if loader.transform is not None:
            batch = loader.transform(batch)
        self._result = self._function(batch)


def _check(loader: Any, warm_up: int) -> None:
    """Raise ValueError unless all batches of a loader have one shape, on a device."""
    sampler = loader._sampler
    device = getattr(sampler, "device", None)
    if device is None or sampler.device_options.cuda_graph != "step":
        raise ValueError(
            "steps are captured by a loader with device='cuda' and "
            "device_options=DeviceOptions(cuda_graph='step')"
        )
    if loader._sizes_on_device() is None or loader._padder.shapes.is_auto:
        raise ValueError(
            "cuda_graph='step' needs pad={'nodes': ..., 'edges': ...} with a size for each hop: "
            "`pad_sizes` of a loader with pad='auto' has them"
        )
    num_seeds, batch_size = loader._num_seeds, loader.batch_size
    if batch_size is None or loader._has_user_sampler or not isinstance(way_of(loader), NativeWay):
        raise ValueError(
            "cuda_graph='step' is for loaders without a sampler of seeds, hooks and stores"
        )
    if not loader.drop_last and num_seeds % batch_size:
        raise ValueError(
            f"the last batch would have {num_seeds % batch_size} seeds, not {batch_size}: pass "
            "drop_last=True"
        )
    if sampler.device_options.feature_mode == "CPU":
        raise ValueError("cuda_graph='step' needs attributes that a GPU gathers, not 'CPU'")
    if warm_up < 1:
        raise ValueError(f"warm_up must be at least 1 (got {warm_up})")
