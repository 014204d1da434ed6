"""Random loaders on a device, compared with the same loaders on the CPU bit for bit.

    python -m khop_bench.gpu.random_loaders --device cuda --seconds 300 --output FILE
    python -m khop_bench.gpu.random_loaders --device cuda --first 4711 --seconds 1

On a GPU, batches are taken on torch's current stream or on another one, while large kernels run
there. From time to time nearly all of the GPU's memory is taken, so that torch's allocator gives
back and reuses its memory. The number of a loader determines all of its options. Every third one is
a loader of links. The program writes FILE whenever a loader has differed, and every few seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import FastGcn, Ladies, NeighborSampling, PinSage, PoissonLadies, SamplingMethod
from khop.sampler.methods import ProgramMethod
from khop.sampler.pyg.device import DeviceOptions

_ENOUGH = 20  # failures: after a fault of a GPU all further ones fail, too
_EVERY = 5.0  # seconds between two writes
_LEFT = 1 << 30  # bytes of a GPU that are left where its memory is taken: loaders need .4 GB
_FANOUTS = (-1, 0, 1, 2, 3, 5, 15)
_FEATURES = ("float32", "float64", "float16", "int64", "int8")


def random_data(rng: np.random.Generator) -> Data:
    """Return a graph with hubs, weights and attributes of some type and width.

    Args:
        rng: generator that determines it.
    """
    count = int(rng.choice([3, 50, 2000, 20_000]))
    num_edges = int(count * rng.integers(1, 20))
    rows = rng.integers(0, count, num_edges)
    hubs = (count * rng.random(num_edges) ** 4).astype(np.int64)
    width = int(rng.choice([1, 3, 16, 100]))
    values = rng.integers(-100, 100, (count, width)).astype(rng.choice(_FEATURES))
    return Data(
        x=torch.from_numpy(values),
        y=torch.arange(count),
        edge_index=torch.from_numpy(np.stack([hubs, rows])),
        edge_weight=torch.from_numpy(rng.random(num_edges).astype(np.float32)),
        edge_attr=torch.arange(num_edges),
        num_nodes=count,
    )


def random_options(rng: np.random.Generator, data: Data) -> dict[str, Any]:
    """Return arguments of a loader: seeds, fan-outs or a method, and how it draws.

    Args:
        rng: generator that determines them.
        data: the graph.
    """
    count = int(data.num_nodes or 0)
    seeds = rng.permutation(count)[: int(rng.integers(1, 600))]
    is_weighted = bool(rng.random() < 0.3)
    if rng.random() < 0.3:
        return {
            "num_neighbors": random_method(rng),
            "input_nodes": torch.from_numpy(seeds),
            "batch_size": int(rng.choice([1, 7, 64, 512])),
            "seed": int(rng.integers(0, 1 << 30)),
        }
    return {
        "num_neighbors": [int(k) for k in rng.choice(_FANOUTS, int(rng.integers(1, 4)))],
        "input_nodes": torch.from_numpy(seeds),
        "batch_size": int(rng.choice([1, 7, 64, 512])),
        "shuffle": bool(rng.random() < 0.5),
        "replace": bool(rng.random() < 0.3),
        "disjoint": bool(rng.random() < 0.3),
        "subgraph_type": str(rng.choice(["directional", "induced", "bidirectional"])),
        "weight_attr": "edge_weight" if is_weighted else None,
        "seed": int(rng.integers(0, 1 << 30)),
    }


def random_method(rng: np.random.Generator) -> SamplingMethod:
    """Return a method that draws for all rows of a hop together.

    Args:
        rng: generator that determines it.
    """
    counts = [int(n) for n in rng.choice([1, 20, 500, 5000], int(rng.integers(1, 4)))]
    chosen = int(rng.integers(0, 5))
    if chosen == 0:
        walks = int(rng.choice([1, 10, 100])), int(rng.choice([1, 2, 5]))
        return PinSage(int(rng.choice([1, 5, 50])), *walks, float(rng.random()), len(counts))
    if chosen == 1:
        return FastGcn(counts)
    if chosen == 2:
        return NeighborSampling([int(k) for k in rng.choice(_FANOUTS, 2)], layer_wise=True)
    return (PoissonLadies if chosen == 3 else Ladies)(counts, skip=bool(rng.random() < 0.5))


def random_links(rng: np.random.Generator, data: Data, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a link loader, from the arguments of a node loader.

    Args:
        rng: generator that determines links and negatives.
        data: the graph.
        options: arguments of a loader of nodes.
    """
    count, mode = len(data.y), rng.choice(["none", "binary", "triplet"])
    negatives: NegativeSampling | None = None
    if mode != "none":
        weight = torch.from_numpy(rng.random(count)) if rng.random() < 0.3 else None
        amount = int(rng.integers(1, 4)) if mode == "triplet" else float(rng.random() * 3 + 0.1)
        negatives = NegativeSampling(str(mode), amount, dst_weight=weight)
    links = data.edge_index[:, rng.integers(0, data.num_edges, len(options["input_nodes"]))]
    return {
        **{name: value for name, value in options.items() if name != "input_nodes"},
        "edge_label_index": links,
        "neg_sampling": negatives,
        # A source that is linked to all nodes of a small graph has no strict triplets.
        "strict_negatives": mode == "binary" and count > 3 and bool(rng.random() < 0.5),
        "exclude_seed_edges": bool(rng.random() < 0.3),
    }


def random_device_options(
    rng: np.random.Generator, num_nodes: int, may_record: bool
) -> DeviceOptions:
    """Return where graph and attributes lie, and whether batches are recorded.

    Args:
        rng: generator that determines them.
        num_nodes: number of nodes of the graph.
        may_record: True if batches can be recorded.
    """
    mode = str(rng.choice(["CUDA", "ZERO_COPY", "CPU"]))
    return DeviceOptions(
        graph_mode=str(rng.choice(["CUDA", "ZERO_COPY"])),
        feature_mode=mode,
        split_ratio=float(rng.random()) if mode == "CUDA" and rng.random() < 0.5 else None,
        hotness=rng.random(num_nodes),
        cuda_graph=may_record and bool(rng.random() < 0.5),
    )


def difference(device_batch: Data, host_batch: Data) -> str | None:
    """Return the difference of two batches. If they are the same, None.

    Args:
        device_batch: batch that the device made.
        host_batch: batch that the CPU made.
    """
    a, b = device_batch.to_dict(), host_batch.to_dict()
    if list(a) != list(b):
        return f"attributes {list(a)}, not {list(b)}"
    for name, value in a.items():
        other = b[name]
        if isinstance(value, Tensor):
            if value.dtype != other.dtype or not torch.equal(value.cpu(), other):
                return f"'{name}' is not the CPU's"
        elif value != other:
            return f"'{name}' is {value!r}, not {other!r}"
    return None


@contextlib.contextmanager
def surroundings(rng: np.random.Generator, device: str) -> Iterator[None]:
    """Work on some stream beside large kernels, with or without memory to spare.

    Args:
        rng: generator that determines them.
        device: 'cuda', or another, where nothing is done.
    """
    if device != "cuda":
        yield
        return
    make_stream: Any = torch.cuda.Stream
    stream = make_stream() if rng.random() < 0.5 else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        if rng.random() > 0.2:
            yield
            return
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        taken = torch.empty(max(0, free - _LEFT), dtype=torch.uint8, device="cuda")
        try:
            yield
        finally:
            del taken
            torch.cuda.empty_cache()


def large_kernel(rng: np.random.Generator, device: str) -> None:
    """Launch a matrix product on the current stream, half of the times.

    Args:
        rng: generator that decides whether.
        device: 'cuda', or another, where nothing is done.
    """
    if device == "cuda" and rng.random() < 0.5:
        matrix = torch.ones((1024, 1024), device="cuda")
        torch.mm(matrix, matrix)


def compare(loader_number: int, device: str) -> str | None:
    """Load an epoch on the CPU and on a device. Return the difference, or None.

    Args:
        loader_number: number that determines the loader's options.
        device: 'cuda' or 'emulated'.
    """
    rng = np.random.default_rng(loader_number)
    data = random_data(rng)
    options = random_options(rng, data)
    may_record = not isinstance(options["num_neighbors"], ProgramMethod)
    make: Any = NeighborLoader
    if loader_number % 3 == 2:
        make, options = LinkNeighborLoader, random_links(rng, data, options)
    expected = list(make(data, **options))
    placed = random_device_options(rng, len(data.y), may_record)
    with surroundings(rng, device):
        loader = make(data, **options, device=device, device_options=placed)
        batches = []
        for batch in loader:
            large_kernel(rng, device)
            # Some batches are dropped, so that their memory is used again.
            batches.append(batch if rng.random() < 0.7 else None)
            del batch
        for index, (device_batch, host_batch) in enumerate(
            itertools.zip_longest(batches, expected)
        ):
            if device_batch is not None and (why := difference(device_batch, host_batch)):
                return f"batch {index}: {why}"
    return None if len(batches) == len(expected) else f"{len(batches)} batches, not {len(expected)}"


def main() -> int:
    """Compare loaders for the time on the command line, and return 1 if one differed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="'cuda' or 'emulated' (default: cuda)")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument(
        "--first", type=int, default=0, metavar="N", help="number of the first loader"
    )
    parser.add_argument("--output", type=Path, help="JSON file of results")
    arguments = parser.parse_args()
    begin = written = time.monotonic()
    different: dict[int, str] = {}
    for tried, loader_number in enumerate(itertools.count(arguments.first), start=1):
        try:
            why = compare(loader_number, arguments.device)
        except Exception:  # an error such as CUDA's is reported, and the next loader may work
            why = traceback.format_exc(limit=-3)
        if why is not None:
            different[loader_number] = why
            print(f"loader {loader_number}: {why}", flush=True)
        now = time.monotonic()
        is_over = now - begin > arguments.seconds or len(different) >= _ENOUGH
        if arguments.output is not None and (is_over or why is not None or now - written > _EVERY):
            written = now
            batches = {"tried": tried, "seconds": now - begin, "different": different}
            arguments.output.write_text(json.dumps(batches, indent=1) + "\n")
        if is_over:
            break
    print(f"{tried} loaders, {len(different)} of them different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
