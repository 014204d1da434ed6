"""Effect of NUMA placement: epochs of trainers that `khop run` binds, beside others.

    python benchmarks/placement.py --trainers 2 --rounds 5

Jobs with `--placement auto` and `none` alternate. The median ratio of their
times per batch is printed. On a machine with one node, `auto` binds nothing, so the ratio is noise.
`--placements none,node:0` compares others. The cost of binding a sampler is printed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch_geometric.data import Data

import khop
from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
)

PROGRAM = "from khop.placement import bind; bind({0}, 0); "


def train(folder: str, num_workers: int) -> None:
    """Iterate over an epoch, read all of its rows, and print seconds per batch as JSON."""
    context = init_worker_group()
    dataset = DistDataset().load(folder, partition_idx=context.rank)
    options = MpDistSamplingWorkerOptions(num_workers=num_workers)
    seeds = torch.arange(context.rank, dataset.meta.node_types[0].count, 20)
    loader = DistNeighborLoader(
        dataset, [10, 10], seeds, batch_size=512, shuffle=True, seed=1, worker_options=options
    )
    for epoch in range(2):  # the first reads the folder into memory
        begin = time.perf_counter()
        for batch in loader:
            batch.x.sum()
        seconds = (time.perf_counter() - begin) / len(loader)
        if epoch:
            print(json.dumps({"seconds": seconds, "placement": loader.stats().placement}))


def run_job(folder: Path, placement: str, args: argparse.Namespace) -> float:
    """Return the mean seconds per batch of a job's trainers."""
    job = [sys.executable, "-m", "khop", "run", "--local", str(args.trainers)]
    words = ["python", __file__, "--train", str(folder), "--workers", str(args.workers)]
    done = subprocess.run(
        [*job, "--placement", placement, "--", *words], check=True, capture_output=True, text=True
    )
    found = [json.loads(line.partition(": ")[2]) for line in done.stdout.splitlines()]
    for name, text in found[-1]["placement"].items():
        print(f"  {placement}, {name}: {text}")
    return statistics.mean(entry["seconds"] for entry in found)


def binding_seconds(program: str) -> float:
    """Return the processor time of a Python process that runs `program` and imports a sampler."""
    before = os.times()
    code = f"{program}import khop.distributed.sampling.worker"
    subprocess.run([sys.executable, "-c", code], check=True)
    after = os.times()
    return (
        after.children_user - before.children_user + after.children_system - before.children_system
    )


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="samplers of each trainer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=200_000, help="nodes of a random graph")
    parser.add_argument("--placements", default="none,auto", help="two placements to compare")
    parser.add_argument("--train", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train, args.workers)
        return
    program = PROGRAM.format(sorted(os.sched_getaffinity(0)))
    pairs = [(binding_seconds(""), binding_seconds(program)) for _ in range(4 * args.rounds)]
    plain, bound = map(statistics.median, zip(*pairs, strict=True))
    print(f"start of a sampler: {1000 * plain:.0f} ms, bound: {bound / plain:.2f} of it")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "parts"
        edges = torch.randint(args.nodes, (2, 15 * args.nodes))
        graph = Data(torch.randn(args.nodes, 64), edges)
        khop.partition_graph(graph, folder, args.trainers)
        first, second = args.placements.split(",")
        pairs = [
            (run_job(folder, first, args), run_job(folder, second, args))
            for _ in range(args.rounds)
        ]
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{second} / {first}: {ratio:.2f} of the time per batch ({args.trainers} trainers)")


if __name__ == "__main__":
    main()
