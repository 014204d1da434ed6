"""Calls of the CUDA runtime per batch that a device draws, and time of the host per batch.

    scripts/sanitize benchmarks/device_calls.py     # with an extension built for the fake runtime

The runtime of `tests/fake_cuda` counts calls, launches, copies, waits and allocations. A sort
of CUB's is one launch here, as on a GPU for few keys. The runtime also measures the time within it,
kernels included. The rest of a batch's time is the time of khop's own code on the host.

`NeighborSampler(device=...)` draws batches of three hops, from seeds to tensors, as in a loader.
The next batch is launched before the wait for one. `waits_alone` counts waits with nothing launched
behind. One graph has one edge type, the other has twenty. Then there are methods that draw for all
rows together, with their numbers of hops. Links have as many binary negatives, drawn on the device,
or by the host for comparison ("by host": seeds from `LinkSampler`, as the CPU makes them). Torch's
tensors are on the CPU here. The times do not include torch's allocator of GPU memory.

Kernels run on the host's own core and leave its caches cold. "Alone" is the host's time with
kernels that do nothing, as beside a GPU. Of the batches' times the lowest tenth and the median are
printed: others may use the machine. In this mode a stream works when somebody waits for it, so
padded batches wait for the slot of the fourth batch before. With a GPU it is free by then.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput

os.environ["KHOP_EMULATED"] = "cuda"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fake_cuda import control
from khop.data.steps import run
from khop.sampler import (
    FastGcn,
    Ladies,
    NeighborSampler,
    PinSage,
    PoissonLadies,
    SamplingMethod,
)
from khop.sampler.drawing.link import Links, LinkSampler
from khop.sampler.pyg.device import DeviceOptions
from khop.sampler.pyg.device_drawer import Begun
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.links import LinkOptions
from khop.sampler.pyg.output import SampledSubgraph
from khop.sampler.pyg.padded import PadSizes
from khop.sampler.requests import SeedSet

_FANOUTS = [15, 10, 5]
_LAYERS = PoissonLadies([256, 256]), Ladies([256, 256]), FastGcn([256, 256])
_COUNTERS = ("launches", "waits", "waits_alone", "allocations")
_COPIES = ("uploads_pinned", "uploads_pageable", "downloads_pinned", "downloads_pageable")


def homogeneous(num_nodes: int, degree: int) -> Data:
    """Return a random graph of one edge type, unsorted, so that edges need a table of ids."""
    edges = torch.randint(0, num_nodes, (2, num_nodes * degree))
    return Data(edge_index=edges, num_nodes=num_nodes)


def heterogeneous(num_nodes: int, degree: int, num_types: int, num_relations: int) -> HeteroData:
    """Return a random graph of several node and edge types, unsorted."""
    data = HeteroData()
    for t in range(num_types):
        data[f"t{t}"].num_nodes = num_nodes
    for r in range(num_relations):
        ends = f"t{r % num_types}", f"r{r}", f"t{(r + r // num_types) % num_types}"
        data[ends].edge_index = torch.randint(0, num_nodes, (2, num_nodes * degree))
    return data


_WAYS = ((False, False), (True, False), (False, True), (True, True))


def measure(
    name: str,
    data: Data | HeteroData,
    seeds: torch.Tensor,
    args: argparse.Namespace,
    method: SamplingMethod | list[int],
    ways: Sequence[tuple[bool, bool]] = _WAYS,
) -> None:
    """Print a row for each way to draw: launched or recorded, without padding or with it."""
    for recorded, padded in ways:
        torch.manual_seed(0)
        device_options = DeviceOptions(cuda_graph=recorded)
        sampler = NeighborSampler(data, method, device="emulated", device_options=device_options)
        node_type = None if isinstance(data, Data) else "t0"
        sampler_input = NodeSamplerInput(input_id=None, node=seeds, input_type=node_type)
        seed_set = sampler.seed_set(sampler_input)
        pad = sizes_of(sampler.draw_nodes([seed_set], BatchKey(1, 0))) if padded else None
        ways = "recorded" if recorded else "launched", *["padded"] * padded
        begin = partial(begin_nodes, sampler, seed_set, pad)
        print_row(", ".join([name, *ways]), begin, args)


def begin_nodes(
    sampler: NeighborSampler, seed_set: SeedSet, pad: PadSizes | None, index: int
) -> Begun:
    """Launch a batch of seeds, as a loader does."""
    return sampler.begin_nodes([seed_set], BatchKey(1, index), pad)


def measure_links(data: Data, args: argparse.Namespace) -> None:
    """Print a row for each kind of link batches."""
    kinds: dict[str, LinkOptions] = {
        "binary": LinkOptions(NegativeSampling("binary")),
        "strict": LinkOptions(NegativeSampling("binary"), strict=True),
        "without links' edges": LinkOptions(NegativeSampling("binary"), exclude=True),
    }
    for kind, options in kinds.items():
        for way in ("by host", "launched", "recorded", "padded"):
            torch.manual_seed(0)
            where = DeviceOptions(cuda_graph=way == "recorded")
            sampler = NeighborSampler(data, _FANOUTS, device="emulated", device_options=where)
            links = Links(*(end[: args.seeds].numpy().copy() for end in data.edge_index))
            of_links = sampler.link_sampler(None, options)
            first = sampler.draw_links(of_links, links, BatchKey(1, 0))[0]
            pad = sizes_of(first) if way == "padded" else None
            begin: Callable[[int], Begun] = partial(begin_links, sampler, of_links, links, pad)
            if way == "by host":
                begin = partial(begin_by_host, sampler, of_links, links)
            print_row(f"{args.seeds} links, {kind}, {way}", begin, args)


def begin_links(
    sampler: NeighborSampler, of_links: LinkSampler, links: Links, pad: PadSizes | None, index: int
) -> Begun:
    """Launch a batch of links, as a loader does."""
    return sampler.begin_links(of_links, links, BatchKey(1, index), pad)


def begin_by_host(
    sampler: NeighborSampler, of_links: LinkSampler, links: Links, index: int
) -> Begun:
    """Launch a batch of links whose negatives and seeds the host makes."""
    drawer = sampler.device_drawer
    subgraph, seeds = run(of_links.sample(drawer._engine, links, 1, index))
    for array in seeds.index.values():
        torch.from_numpy(array).clone()  # to the device
    return Begun(drawer, subgraph, None, seeds)


def print_row(name: str, begin: Callable[[int], Begun], args: argparse.Namespace) -> None:
    """Draw batches twice, with kernels and with kernels that do nothing, and print a row."""
    times, counts = draw(begin, args)
    control.set_options(runs_kernels=0)
    alone, _ = draw(begin, args)
    control.set_options(runs_kernels=1)
    cells = [f"{value:.1f}" for value in counts.values()]
    for of in (times, alone):
        cells += [f"{sorted(of)[len(of) // 10]:.0f}", f"{statistics.median(of):.0f}"]
    print(" | ".join([name.ljust(44), *cells]))


def sizes_of(drawn: SampledSubgraph) -> PadSizes:
    """Return sizes to which batches like a drawn one can be padded."""
    nodes, edges = drawn.nodes_per_hop or [], drawn.edges_per_hop or []
    of_nodes, of_edges = ([[2 * n + 64 for n in hops] for hops in of] for of in (nodes, edges))
    return PadSizes(of_nodes, of_edges, True)


def draw(
    begin: Callable[[int], Begun], args: argparse.Namespace
) -> tuple[list[float], dict[str, float]]:
    """Draw batches. Return the host's microseconds of each, and counts of the runtime per batch."""
    before: dict[str, int] = {}
    times = []
    gc.collect()  # an earlier sampler waits when it goes
    begun = begin(0)
    for index in range(args.warm_up + args.batches):
        if index == args.warm_up:
            before = counted()
        in_calls = control.count("nanoseconds_in_calls")
        began = time.perf_counter_ns()
        following = begin(index + 1)
        drawn = begun.finish()
        elapsed = time.perf_counter_ns() - began
        in_calls = control.count("nanoseconds_in_calls") - in_calls
        begun = following
        del drawn
        if index >= args.warm_up:
            times.append((elapsed - in_calls) / 1000)
    counts = {key: (counted()[key] - n) / args.batches for key, n in before.items()}
    begun.finish()
    return times, counts


def counted() -> dict[str, int]:
    """Return the counts of the runtime so far."""
    counters = {name: control.count(name) for name in _COUNTERS}
    return {
        **counters,
        "copies": sum(map(control.count, _COPIES)),
        "calls": sum(control.all_calls().values()),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--of", choices=("nodes", "links", "all"), default="all")
    args = parser.parse_args()
    control.set_mode("lazy")
    columns = [
        *_COUNTERS,
        "copies",
        "calls",
        "host, us: tenth",
        "median",
        "alone: tenth",
        "median",
    ]
    print(" | ".join(["per batch", *columns]))
    seeds, data = torch.arange(args.seeds), homogeneous(2000, 8)
    if args.of != "links":
        measure("1 edge type", data, seeds, args, _FANOUTS)
        measure("20 edge types", heterogeneous(500, 4, 5, 20), seeds, args, [4, 3, 2])
        for method in (PinSage(10), PinSage(10, num_layers=2), *_LAYERS):
            hops = f"{type(method).__name__}, {len(method.num_neighbors)}"
            measure(hops, data, seeds, args, method, _WAYS[:1])
    if args.of != "nodes":
        measure_links(data, args)


if __name__ == "__main__":
    main()
