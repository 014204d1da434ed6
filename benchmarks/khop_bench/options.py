"""Suite `options`: cost of each sampling option, by khop's sampler and by PyG's.

Samplers are called as loaders call them, and return PyG's output. Disjoint and temporal batches
have 128 seeds, since each seed has a separate subgraph. Costs are compared per edge.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch_geometric.sampler
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from khop.sampler import NeighborSampler
from khop_bench.bench import Bench
from khop_bench.goals import KHOP, PYG_LIB, TORCH_SPARSE
from khop_bench.graphs import SeedOrder, edge_weights, node_times
from khop_bench.measure import Case, Row, Turn
from khop_bench.peers import pyg_kernel
from khop_bench.settings import BATCH_SIZE, FANOUTS

_SMALL_BATCH_SIZE = 128
_OPTIONS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "with replacement": {"replace": True},
    "by weight": {"weight_attr": "weight"},
    "by weight, with replacement": {"weight_attr": "weight", "replace": True},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "disjoint": {"disjoint": True},
    "by time": {"time_attr": "time"},
    "latest": {"time_attr": "time", "temporal_strategy": "last"},
    "by weight and time": {"time_attr": "time", "weight_attr": "weight"},
}
_TREES = ("disjoint", "by time", "latest", "by weight and time")


def run(bench: Bench) -> list[Row]:
    """Measure the suite `options`."""
    data = bench.graphs.products(with_features=False)
    seeds = data.train_mask.nonzero().view(-1)
    data = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    data.weight, data.time = edge_weights(data.num_edges), node_times(data.num_nodes)
    rows = []
    for option in _OPTIONS:
        order = SeedOrder(seeds, _SMALL_BATCH_SIZE if option in _TREES else BATCH_SIZE)
        rows += _measured(bench, data, option, order)
    return rows


def _measured(bench: Bench, data: Data, option: str, order: SeedOrder) -> list[Row]:
    """Measure one option. Its samplers are freed on return."""
    cases = _cases(bench, data, option, _OPTIONS[option], order)
    return bench.take_turns(option, cases, work_unit="edge")


def _cases(
    bench: Bench, data: Data, option: str, arguments: Mapping[str, Any], order: SeedOrder
) -> list[Case]:
    batches = bench.settings.batches
    sampler = NeighborSampler(data, FANOUTS, seed=0, **arguments)
    cases = [Case(KHOP, lambda turn: _timed(sampler, order.of_turn(turn, batches)))]
    for kernel in bench.peers.pyg_kernels:
        if reason := _why_not(kernel, arguments):
            bench.leave_out(f"options: PyG with {kernel}, {option}, is left out: {reason}")
            continue
        with pyg_kernel(kernel), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                peer = torch_geometric.sampler.NeighborSampler(data, list(FANOUTS), **arguments)
                _draw(peer, torch.arange(2))
            except (ImportError, ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0][:100]
                bench.leave_out(f"options: PyG with {kernel}, {option}, is left out: {reason}")
                continue
        cases.append(_peer_case(kernel, peer, order, batches))
    return cases


def _why_not(kernel: str, arguments: Mapping[str, Any]) -> str | None:
    """Return the reason if PyG with this kernel ignores an option without an error."""
    if kernel == TORCH_SPARSE and "weight_attr" in arguments:
        return "it ignores weights"
    if kernel == PYG_LIB and arguments.get("subgraph_type") == "induced":
        return "PyG uses torch-sparse for it"
    return None


def _peer_case(kernel: str, sampler: Any, order: SeedOrder, batches: int) -> Case:
    def turn(turn_number: int) -> Turn:
        with pyg_kernel(kernel):
            return _timed(sampler, order.of_turn(turn_number, batches))

    return Case(f"PyG, {kernel}", turn)


def _timed(sampler: Any, batches: Sequence[tuple[int, Tensor]]) -> Turn:
    _draw(sampler, batches[0][1])
    begin = time.perf_counter()
    edges = sum(_draw(sampler, seeds) for _, seeds in batches)
    return Turn((time.perf_counter() - begin) / len(batches), edges / len(batches))


def _draw(sampler: Any, seeds: Tensor) -> int:
    """Sample a batch, and return its number of edges."""
    return int(sampler.sample_from_nodes(NodeSamplerInput(None, seeds)).row.numel())
