#!/usr/bin/env python3
"""Features in fewer bits: time to gather a batch, bytes between partitions, and accuracy.

    python benchmarks/precision.py               # all of it: about ten minutes
    python benchmarks/precision.py gather bytes  # without training

All figures of time and bytes are ratios to float32, measured in turns in one run:

- *as stored*: rows of a batch are copied as they are stored.
- *by the sampler*: rows are widened to float32 by the copy (`widen='sampler'`).
- *by the trainer*: as stored, then widened by another pass (`widen='trainer'`, on a CPU).
- *network*: bytes that come from another partition, in an epoch of `DistNeighborLoader` over two
  parts. Neighbours and ids are in them, too.
- *batches*: bytes of batches up to the trainer, with `widen='trainer'`.
- *error*: root mean square of the error, divided by that of the values less their column's mean.
- *accuracy*: GraphSAGE on Debian's packages, trained and tested with the numbers as they are
  stored, on the model of `examples/methods.py`: mean over `--runs` seeds, in %, and the difference
  to float32.

Times are processor time, of one thread, medians over turns. Rows are random, of a table that is
larger than the caches. The batches' memory is used again, as in a loader.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import khop
import methods as example
from khop.data import Feature, RowFormat
from khop.data.encoding import Encoding
from khop.data.feature import DecodedFeature
from khop.datasets import DebianPackages, PowerLaw
from khop.distributed import DistDataset, DistNeighborLoader

DTYPES = ("float32", "bfloat16", "float16", "float8", "int8")
_ROUNDS = 3  # memories of batches that take turns


def encoded(values: Any, dtype: str) -> DecodedFeature:
    """Return rows that are stored with a dtype."""
    encoding = Encoding("float8_e4m3fn" if dtype == "float8" else dtype)
    if dtype == "int8":
        encoding = Encoding.of_range(values.min(0), values.max(0))
    stored, _ = encoding.encode(values)
    return DecodedFeature(Feature(stored, encoding.dtype), encoding)


def gather_times(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the ratios of time to gather a batch, by dtype."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(args.nodes, args.features)).astype(np.float32)
    wide = Feature(values)
    rows = {dtype: encoded(values, dtype) for dtype in DTYPES[1:]}
    row = RowFormat("float32", (args.features,))
    outs = [row.empty(args.batch) for _ in range(_ROUNDS)]
    stored = {d: [r.as_stored.stored.empty(args.batch) for _ in outs] for d, r in rows.items()}

    def then_widen(dtype: str, ids: Any, turn: int) -> None:
        rows[dtype].as_stored.gather(ids, stored[dtype][turn])
        rows[dtype].as_stored.encoding.gather(stored[dtype][turn], None, outs[turn])

    works: dict[tuple[str, str], Callable[[Any, int], object]] = {
        ("float32", ""): lambda ids, turn: wide.gather(ids, outs[turn])
    }
    for d, r in rows.items():
        works[d, "stored"] = lambda i, turn, d=d, r=r: r.as_stored.gather(i, stored[d][turn])
        works[d, "sampler"] = lambda i, turn, r=r: r.gather(i, outs[turn])
        works[d, "trainer"] = lambda i, turn, d=d: then_widen(d, i, turn)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    for turn in range(args.turns):
        ids = rng.integers(0, args.nodes, args.batch)
        for key, work in works.items():
            begun = time.process_time()
            work(ids, turn % _ROUNDS)
            times[key].append(time.process_time() - begun)
    base = times["float32", ""]

    def ratio(key: tuple[str, str]) -> str:
        return f"{median(a / b for a, b in zip(times[key], base, strict=True)):.2f}"

    error = {d: (rows[d].gather(np.arange(10_000)) - values[:10_000]).std() for d in rows}
    print(f"float32: {1000 * median(base):.2f} ms for {args.batch:,} rows", file=sys.stderr)
    return {
        "float32": ["1", "1", "1", "0"],
        **{
            d: [*(ratio((d, way)) for way in ("stored", "sampler", "trainer")), f"{error[d]:.2%}"]
            for d in rows
        },
    }


def network_bytes(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the ratios of bytes from another partition, and of batches, by dtype."""
    data = PowerLaw(50_000, 600_000, num_features=args.features).data()
    remote, delivered = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            root = f"{folder}/{dtype}"
            dtypes = None if dtype == "float32" else {"x": dtype}
            khop.partition_graph(data, root, 2, feature_dtype=dtypes)
            dataset = DistDataset().load(root, 0, also_serve=[1])
            loader = DistNeighborLoader(
                dataset, [10, 5], torch.arange(10_000), batch_size=512, widen="trainer", seed=1
            )
            for _ in loader:
                pass
            stats = loader.stats()
            remote[dtype], delivered[dtype] = stats.remote_bytes, stats.delivered_bytes
            loader.shutdown()
    return {
        d: [f"{remote[d] / remote['float32']:.2f}", f"{delivered[d] / delivered['float32']:.2f}"]
        for d in DTYPES
    }


def accuracies(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the test accuracy on Debian's packages, by dtype."""
    data = DebianPackages(undirected=True)[0]
    found: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            root = f"{folder}/{dtype}"
            dtypes = None if dtype == "float32" else {"x": dtype}
            khop.partition_graph(data, root, 1, feature_dtype=dtypes)
            dataset = DistDataset().load(root, 0)
            numbers = dataset.get_tensor(None, "x", index=None)
            for seed in range(args.runs):
                found[dtype].append(_train(data, numbers, dataset, seed, args.epochs))
                print(f"{dtype}, seed {seed}: {found[dtype][-1]:.4f}", file=sys.stderr, flush=True)
    means = {dtype: 100 * mean(values) for dtype, values in found.items()}
    return {
        d: [
            f"{means[d]:.2f}",
            f"{means[d] - means['float32']:+.2f}",
            f"{100 * stdev(found[d]):.2f}",
        ]
        for d in DTYPES
    }


def _train(data: Any, numbers: Any, dataset: DistDataset, seed: int, epochs: int) -> float:
    """Train a model with the rows of a dataset, and return its test accuracy."""
    options = example.parse_arguments(["--method", "uniform", "--seed", str(seed)])
    model, optimizer = example.make_model(data, options)
    loader = DistNeighborLoader(
        dataset,
        example.FANOUTS,
        data.train_mask,
        batch_size=options.batch_size,
        shuffle=True,
        seed=seed,
        transform=example.LAYERS,
    )
    for _ in range(epochs):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            example.batch_loss(model, batch).backward()
            optimizer.step()
    tested = data.clone()
    tested.x = numbers
    return float(example.accuracy(model, tested, data.test_mask, "uniform"))


PARTS = {
    "gather": (gather_times, ["as stored", "by the sampler", "by the trainer", "error"]),
    "bytes": (network_bytes, ["network", "batches"]),
    "accuracy": (accuracies, ["accuracy, %", "difference", "deviation"]),
}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--batch", type=int, default=100_000, help="rows per batch")
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--runs", type=int, default=3, help="seeds")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    chosen = args.parts or [*PARTS]
    if unknown := {*chosen} - {*PARTS}:
        parser.error(f"unknown parts {sorted(unknown)}. The parts are {', '.join(PARTS)}")
    torch.set_num_threads(1)
    columns = [name for part in chosen for name in PARTS[part][1]]
    measured = [PARTS[part][0](args) for part in chosen]
    print("| stored as |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for dtype in DTYPES:
        print(f"| {dtype} |", " | ".join(cell for part in measured for cell in part[dtype]), "|")


if __name__ == "__main__":
    main()
