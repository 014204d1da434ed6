"""Methods that draw for all rows together, on a device: equality with the CPU, and times.

    python -m khop_bench.gpu.methods --device cuda --scale 1 --output FILE

Compares batches of each method with the CPU's bit for bit, and measures draws on both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch_geometric.sampler import NodeSamplerInput

from khop.sampler import FastGcn, Ladies, NeighborSampler, NeighborSampling, PinSage, PoissonLadies
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.output import SampledSubgraph
from khop_bench.graphs import Graphs
from khop_bench.settings import BATCH_SIZE, default_cache

_COMPARED, _TURNS = 10, 5


def tensors(drawn: SampledSubgraph) -> list[Any]:
    """Return all that a batch consists of, on the CPU."""
    if drawn.written is not None:
        drawn.written.synchronize()
    values = [value for value in drawn.values.values() if isinstance(value, torch.Tensor)]
    edges = [edge for edge in drawn.edges if edge is not None]
    of = [*drawn.nodes, *drawn.edge_index, *edges, *values]
    return [tensor.cpu() for tensor in of]


def check(on_device: NeighborSampler, on_cpu: NeighborSampler, seeds: Any, count: int) -> Any:
    """Return how many batches differ, and the microseconds of a draw on both."""
    differing = 0
    for batch in range(_COMPARED):
        pair = [sampler.draw_nodes([seeds], BatchKey(1, batch)) for sampler in (on_device, on_cpu)]
        drawn, expected = map(tensors, pair)
        differing += not all(map(torch.equal, drawn, expected))
    results: dict[str, Any] = {"differing": differing, "nodes": len(expected[0])}
    for name, sampler in (("device, us", on_device), ("CPU, us", on_cpu)):
        turns = []
        for turn in range(_TURNS):
            begin = time.perf_counter()
            for batch in range(count):
                last = sampler.draw_nodes([seeds], BatchKey(turn, batch))
            tensors(last)
            turns.append((time.perf_counter() - begin) / count)
        results[name] = round(1e6 * statistics.median(turns), 1)
    return results


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
    size = BATCH_SIZE if is_cuda else 8
    results: dict[str, Any] = {}
    for method in (
        PinSage(10),
        PinSage(10, num_layers=2),
        PoissonLadies([4 * size] * 2),
        Ladies([4 * size] * 2),
        FastGcn([16 * size] * 2),
        NeighborSampling([10, 5], layer_wise=True),
    ):
        on_device, on_cpu = (
            NeighborSampler(data, method, device=device) for device in (arguments.device, "cpu")
        )
        nodes = data.train_mask.nonzero().view(-1)[:size]
        seeds = on_cpu.seed_set(NodeSamplerInput(input_id=None, node=nodes))
        results[str(method)] = check(on_device, on_cpu, seeds, 20 if is_cuda else 1)
        print(method, results[str(method)], flush=True)
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(result["differing"] for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
