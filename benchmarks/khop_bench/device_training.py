"""Part of suite `device`: training GraphSAGE with features on the device, with and without loading.

A step takes a batch, runs the model forwards and backwards, and updates it. With the loader, each
step trains on the next batch. Without it all steps train on the same one. The difference of their
times is the cost of loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from khop.loader import NeighborLoader
from khop.sampler.pyg.device import DeviceOptions
from khop_bench.bench import Bench
from khop_bench.goals import REPEATED
from khop_bench.graphs import SeedOrder
from khop_bench.measure import Case, Row, Turn
from khop_bench.on_device import Drawn, Place
from khop_bench.settings import BATCH_SIZE, FANOUTS

WITH_LOADER = "with the loader"
# On a GPU (True), and not (False): then the amount of work does not matter.
_WIDTHS = {True: 256, False: 16}  # of hidden layers
_WARM_STEPS = {True: 5, False: 1}
_STEPS = {True: 5, False: 1}  # for each batch that a turn of other suites has


def measure_training(bench: Bench, test_device: Place, _: Drawn) -> list[Row]:
    """Measure milliseconds per step, on one batch again and again, and with the loader."""
    data = bench.graphs.products()
    order = SeedOrder(data.train_mask.nonzero().view(-1), BATCH_SIZE)
    steps = _STEPS[test_device.is_cuda] * bench.settings.batches
    seeds = order.epoch(_WARM_STEPS[test_device.is_cuda] + steps)
    loader = NeighborLoader(
        data,
        FANOUTS,
        seeds,
        batch_size=order.batch_size,
        seed=0,
        device=bench.settings.device,
        device_options=DeviceOptions(feature_mode="CUDA"),
    )
    training = Training(data, test_device)
    batch = next(iter(loader))
    cases = [
        Case(REPEATED, lambda _: training.turn(_endlessly(batch), steps)),
        Case(WITH_LOADER, lambda _: training.turn(iter(loader), steps)),
    ]
    rows = bench.take_turns(test_device.group("training"), cases)
    bench.note(
        f"training: GraphSAGE, {len(FANOUTS)} layers, {_WIDTHS[test_device.is_cuda]} wide. The "
        f"repeated batch has {batch.num_nodes:,} nodes and {batch.num_edges:,} edges"
    )
    return rows


def _endlessly(batch: Data) -> Iterator[Data]:
    while True:
        yield batch


class Training:
    """A model and its optimizer.

    Args:
        data: graph with features and classes, whose numbers set the model's sizes.
        test_device: device of the model.
    """

    def __init__(self, data: Data, test_device: Place) -> None:
        self._test_device = test_device
        torch.manual_seed(0)
        widths = (data.num_features, _WIDTHS[test_device.is_cuda], int(data.y.max()) + 1)
        self._model = Sage(*widths).to(test_device.torch_device)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-3)

    def turn(self, batches: Iterator[Any], steps: int) -> Turn:
        """Train on batches, and return the seconds per step. The first steps do not count."""
        for _ in range(_WARM_STEPS[self._test_device.is_cuda]):
            self._step(next(batches))
        seconds = self._test_device.wall_seconds(self._steps(batches, steps))
        del batches
        return Turn(seconds / steps)

    def _steps(self, batches: Iterator[Any], steps: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(steps):
                self._step(next(batches))

        return run

    def _step(self, batch: Any) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        size = batch.batch_size
        logits = self._model(batch.x, batch.edge_index)[:size]
        loss: Any = nn.functional.cross_entropy(logits, batch.y[:size].view(-1).long())
        loss.backward()
        self._optimizer.step()


class Sage(nn.Module):
    """GraphSAGE (Hamilton et al., NeurIPS 2017), a layer for each hop of the batches.

    Args:
        num_features: columns of the input.
        hidden: columns in between.
        num_classes: columns of the output.
    """

    def __init__(self, num_features: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        widths = [num_features, *[hidden] * (len(FANOUTS) - 1), num_classes]
        self.layers = nn.ModuleList(map(SAGEConv, widths[:-1], widths[1:]))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the scores of all nodes of a batch, the seeds' first."""
        for layer in self.layers[:-1]:
            x = layer(x, edge_index).relu()
        out: Tensor = self.layers[-1](x, edge_index)
        return out
