"""Padded batches and captured steps on a device: equality with the CPU, and times.

    python -m khop_bench.gpu.steps --device cuda --scale 1 --output FILE

Compares padded batches with the CPU's bit for bit, drawn for a loader and in a captured step. Then
it measures draws, and a training step: on the same batch, with a loader, with padding, and as one
CUDA graph. With KHOP_DEPENDENT_LAUNCH=0 in the environment kernels do not overlap.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from khop.loader import DeviceOptions, NeighborLoader
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.padded import PadSizes
from khop_bench.device_training import Sage
from khop_bench.graphs import Graphs
from khop_bench.settings import BATCH_SIZE, FANOUTS, default_cache

_COMPARED = 20  # batches
_TURNS = 5
_WIDTH = 256


class Check:
    """Loaders of one graph on the CPU and on a device, with the same padding.

    Args:
        data: the graph, with `x`, `y` and `train_mask`.
        device: the device's name.
        batch_size: seeds per batch.
    """

    def __init__(self, data: Data, device: str, batch_size: int) -> None:
        self.data, self.device = data, device
        self.is_cuda = device.startswith("cuda")
        seeds = data.train_mask.nonzero().view(-1)
        self._common: dict[str, Any] = {
            "input_nodes": seeds[: len(seeds) // batch_size * batch_size],
            "batch_size": batch_size,
            "seed": 0,
        }
        trial = NeighborLoader(data, FANOUTS, pad="auto", **self._common)
        next(iter(trial))
        # A margin: with sizes that are chosen, a batch that does not fit is an error.
        sizes = trial.pad_sizes or {}
        self.pad = {unit: [n + n // 8 // 8 * 8 + 8 for n in of] for unit, of in sizes.items()}

    def loader(self, device: str | None, pad: bool = True, step: bool = False) -> NeighborLoader:
        """Return a loader, with a thread on a device, for a captured step with `step`."""
        options = DeviceOptions(feature_mode="CUDA", cuda_graph="step" if step else False)
        workers = int(device is not None and not step)
        more: dict[str, Any] = {"pad": self.pad} if pad else {}
        if device is not None:
            more |= {"device": device, "device_options": options}
        return NeighborLoader(self.data, FANOUTS, num_workers=workers, **self._common, **more)

    def equality(self, count: int) -> dict[str, int]:
        """Compare batches. Return how many there were and how many differ, of each way."""
        results = {}
        steps = self.loader(self.device, step=True).capture(lambda batch: batch, warm_up=2)
        ways: dict[str, Any] = {"padded": self.loader(self.device), "captured": steps}
        for name, batches in ways.items():
            pairs = zip(batches, self.loader(None), strict=False)
            differing = [self._differ(*pair) for pair in itertools.islice(pairs, count)]
            results[name] = sum(differing)
            results[f"{name}, compared"] = len(differing)
        return results

    @staticmethod
    def _differ(batch: Any, expected: Any) -> bool:
        names = "n_id", "edge_index", "e_id", "x", "y", "pad_node_mask", "pad_edge_mask"
        return not all(torch.equal(batch[name].cpu(), expected[name]) for name in names)

    def step_times(self, steps: int) -> dict[str, float]:
        """Return milliseconds per training step: medians of turns that take turns."""
        batch = next(iter(self.loader(self.device)))
        plain, padded = (self.loader(self.device, pad) for pad in (False, True))
        train = self._step_function()
        captured = self.loader(self.device, step=True).capture(train)
        ways: dict[str, Iterator[Any]] = {
            "the same batch": map(train, itertools.repeat(batch)),
            "loader": map(train, _endlessly(plain)),
            "padded loader": map(train, _endlessly(padded)),
            "captured step": _endlessly(captured),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for losses in ways.values():
            for _ in range(5 if self.is_cuda else 1):  # until one is recorded
                next(losses)
        for _ in range(_TURNS if self.is_cuda else 1):
            for name, losses in ways.items():
                seconds = self._seconds(partial(_take, losses, steps))
                times[name].append(1000 * seconds / steps)
        return {name: round(statistics.median(of), 4) for name, of in times.items()}

    def draw_times(self, count: int) -> dict[str, float]:
        """Return microseconds of the device and the host per padded draw, launched and recorded."""
        results = {}
        pad = PadSizes([self.pad["nodes"]], [self.pad["edges"]], True)
        for name, recorded in (("launched", False), ("recorded", True)):
            sampler = self.loader(self.device).node_sampler
            sampler = type(sampler)(
                self.data,
                FANOUTS,
                device=self.device,
                device_options=DeviceOptions(cuda_graph=recorded),
            )
            nodes = self._common["input_nodes"][: self._common["batch_size"]]
            seeds = sampler.seed_set(NodeSamplerInput(input_id=None, node=nodes))

            def draw(first: int, of: Any = sampler, seeds: Any = seeds) -> None:
                for batch in range(first, first + count):
                    of.begin_nodes([seeds], BatchKey(1, batch), pad).finish()

            draw(0)
            turns = [self._seconds(partial(draw, i * count)) for i in range(1, _TURNS)]
            results[name] = round(1e6 * statistics.median(turns) / count, 2)
        return results

    def _seconds(self, work: Callable[[], Any]) -> float:
        if self.is_cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        if self.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def _step_function(self) -> Callable[[Any], Any]:
        torch.manual_seed(0)
        memory = "cuda" if self.is_cuda else "cpu"
        classes = int(self.data.y.max()) + 1
        model = Sage(self.data.num_features, _WIDTH if self.is_cuda else 4, classes).to(memory)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=self.is_cuda)

        def train(batch: Any) -> Any:
            optimizer.zero_grad(set_to_none=False)
            size = batch.batch_size
            scores = model(batch.x, batch.edge_index)[:size]
            loss = nn.functional.cross_entropy(scores, batch.y[:size].view(-1).long())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        return train


def _take(results: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(results)


def _endlessly(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def main() -> int:
    """Compare and measure. Return 1 if a batch differs from the CPU's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    is_cuda = arguments.device.startswith("cuda")
    data = Graphs(arguments.cache, arguments.scale).products()
    check = Check(data, arguments.device, BATCH_SIZE if is_cuda else 8)
    results: dict[str, Any] = {"dependent launch": os.environ.get("KHOP_DEPENDENT_LAUNCH", "1")}
    parts: dict[str, Callable[[], Any]] = {
        "batches that differ": lambda: check.equality(_COMPARED if is_cuda else 3),
        "draw, us": lambda: check.draw_times(200 if is_cuda else 2),
        "step, ms": lambda: check.step_times(40 if is_cuda else 1),
    }
    for name, part in parts.items():
        results[name] = part()
        print(name, results[name], flush=True)
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    differing = results["batches that differ"]
    return int(differing["padded"] > 0 or differing["captured"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
