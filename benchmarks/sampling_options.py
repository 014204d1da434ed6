"""What each sampling option costs, and what PyG's kernels need for the same, in one run.

    python benchmarks/sampling_options.py [--scale 0.1] [--batches 20] [--repeat 5]

First table: one batch of 1024 seeds with fan-outs 15, 10, 5 from a graph of the shape of
ogbn-products (`PowerLaw.products`), sampling alone, no features; weights are log-normal, times
uniform over nodes. Disjoint and temporal batches use 128 seeds, since each has a subgraph of its
own. Samplers take turns, `--repeat` times; figures are medians over turns, per sampled edge, and
ratios to khop's uniform draws. PyG's rows are there where its kernels are installed and take the
option.

Second table: nanoseconds a weighted draw, by degree: rows of one degree each, fan-out 10, with and
without replacement, log-normal weights, in a table too large for the caches.
"""

import argparse
import json
import platform
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
import torch
import torch_geometric.sampler
import torch_geometric.typing
from torch_geometric.sampler import NodeSamplerInput

import khop
from khop import _native
from khop.datasets import PowerLaw
from khop.sampler import NeighborSampler

FANOUTS = [15, 10, 5]
BATCH_SIZE = 1024
SMALL_BATCH_SIZE = 128
OPTIONS = {
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
TREES = ("disjoint", "by time", "latest", "by weight and time")
TABLE_EDGES = 1 << 24


def make_data(scale: float):
    data = PowerLaw.products(scale).data()
    generator = torch.Generator().manual_seed(0)
    data.weight = torch.empty(data.num_edges).log_normal_(0, 2, generator=generator)
    data.time = torch.randint(0, 10_000, (data.num_nodes,), generator=generator)
    return data


def make_samplers(data) -> dict:
    """(whose, option) -> sampler, those that can be made here."""
    samplers = {}
    for name, options in OPTIONS.items():
        samplers["khop", name] = NeighborSampler(data, FANOUTS, seed=0, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                peer = torch_geometric.sampler.NeighborSampler(data, FANOUTS, **options)
                draw(peer, torch.arange(2))
                samplers[peer_name(), name] = peer
            except (ImportError, ValueError, RuntimeError) as error:
                print(f"PyG, {name}: left out ({str(error).splitlines()[0][:90]})")
    return samplers


def peer_name() -> str:
    return "pyg-lib" if torch_geometric.typing.WITH_PYG_LIB else "torch-sparse"


def draw(sampler, seeds: torch.Tensor) -> int:
    """Samples a batch; returns its number of edges."""
    return sampler.sample_from_nodes(NodeSamplerInput(None, seeds)).row.numel()


def time_turn(sampler, seeds: torch.Tensor, size: int, batches: int) -> tuple[float, float]:
    """Seconds a batch, and edges a batch, of one turn."""
    draw(sampler, seeds[:size])
    begin = time.perf_counter()
    edges = sum(draw(sampler, seeds[i * size : (i + 1) * size]) for i in range(batches))
    return (time.perf_counter() - begin) / batches, edges / batches


def compare_options(scale: float, batches: int, repeat: int) -> list[dict]:
    data = make_data(scale)
    samplers = make_samplers(data)
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
    turns: dict = {key: [] for key in samplers}
    for _ in range(repeat):
        for key, sampler in samplers.items():
            size = SMALL_BATCH_SIZE if key[1] in TREES else BATCH_SIZE
            turns[key].append(time_turn(sampler, order, size, batches))
    rows = []
    for (whose, option), timed in turns.items():
        seconds = statistics.median(t for t, _ in timed)
        edges = timed[0][1]
        row = {"whose": whose, "option": option, "ms": seconds * 1e3, "edges": round(edges)}
        rows.append({**row, "ns_per_edge": seconds / max(edges, 1) * 1e9})
    base = rows[0]["ns_per_edge"]
    for row in rows:
        row["ratio"] = row["ns_per_edge"] / base
    return rows


def time_draws(degree: int, repeat: int) -> dict:
    """Nanoseconds a draw from rows of one degree."""
    num_rows = TABLE_EDGES // degree
    num_edges = num_rows * degree
    rng = np.random.default_rng(degree)
    indptr = np.arange(num_rows + 1, dtype=np.int64) * degree
    sums, guide = _native.weight_table(indptr, rng.lognormal(0, 2, num_edges))
    indices = rng.integers(0, num_rows, num_edges).astype(np.int32)
    csr = _native.Csr(indptr, indices, weight_sums=sums, weight_guide=guide)
    ids = rng.integers(0, num_rows, 20_000)
    row: dict = {"degree": degree}
    for name, replace, weighted in (
        ("uniform", False, False),
        ("by weight", False, True),
        ("by weight, with replacement", True, True),
    ):
        timed = []
        for turn in range(repeat):
            begin = time.perf_counter()
            counts, _, _ = _native.sample_rows(csr, ids, 10, replace, turn, False, weighted)
            timed.append((time.perf_counter() - begin) / counts.sum() * 1e9)
        row[name] = statistics.median(timed)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    options = compare_options(args.scale, args.batches, args.repeat)
    print(f"\n{'':14s}{'':30s}{'ms':>8s}{'edges':>10s}{'ns/edge':>9s}{'ratio':>7s}")
    for r in options:
        print(
            f"{r['whose']:14s}{r['option']:30s}{r['ms']:8.2f}{r['edges']:10d}"
            f"{r['ns_per_edge']:9.1f}{r['ratio']:7.2f}"
        )
    draws = [time_draws(10**i * 2, args.repeat) for i in range(1, 7)]
    print(f"\nns a draw, by degree: {'uniform':>8s}{'by weight':>11s}{'with replacement':>18s}")
    for r in draws:
        print(
            f"{r['degree']:21d} {r['uniform']:8.1f}{r['by weight']:11.1f}"
            f"{r['by weight, with replacement']:18.1f}"
        )
    result = {
        "khop": khop.__version__,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "scale": args.scale,
        "options": options,
        "draws": draws,
    }
    path = Path(__file__).parent / "results" / "sampling_options.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
