"""Time per batch of khop's loaders, and of PyG's where its kernels are installed, in one run.

    python benchmarks/neighbor_loader.py [--scale 0.1] [--batches 20] [--repeat 5]

The graph has the shape of ogbn-products (`PowerLaw.products`), 100 float32 features, batches of
1024 seeds, fan-outs 15, 10, 5. Loaders take turns, `--repeat` times; a turn iterates `--batches`
batches after the first, and the consumer touches every tensor. Figures are medians over turns and
ratios to the first row. Each row's bytes are what a batch holds. The result is printed and written
to benchmarks/results/.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch_geometric.loader
import torch_geometric.typing

import khop
from khop.datasets import PowerLaw
from khop.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions
from khop.loader import NeighborLoader
from khop.partition import RandomPartitioner

FANOUTS = [15, 10, 5]
BATCH_SIZE = 1024


def touch(batch) -> int:
    """Reads every tensor of a batch, as a model would; returns their bytes."""
    total = 0
    for value in batch.to_dict().values():
        if isinstance(value, torch.Tensor) and value.numel():
            value.view(-1).view(torch.uint8)[::64].sum()
            total += value.numel() * value.element_size()
    return total


def time_turn(loader, batches: int) -> tuple[float, int]:
    """Seconds a batch, and bytes a batch, of one turn."""
    iterator = iter(loader)
    touch(next(iterator))
    begin = time.perf_counter()
    total = sum(touch(next(iterator)) for _ in range(batches))
    return (time.perf_counter() - begin) / batches, total // batches


def make_loaders(data, folder: Path) -> dict:
    """Name -> loader, those that can run here."""
    seeds = data.train_mask.nonzero().view(-1)
    common = {"batch_size": BATCH_SIZE, "shuffle": True}
    loaders = {
        "khop, in process": NeighborLoader(data, FANOUTS, seeds, **common),
        "khop, 2 threads": NeighborLoader(data, FANOUTS, seeds, num_workers=2, **common),
    }
    for num_parts in (1, 2):
        root = folder / str(num_parts)
        RandomPartitioner.from_data(data, root, num_parts).partition()
        dataset = DistDataset().load(root, 0, also_serve=range(1, num_parts))
        loaders[f"khop, 2 sampler processes, {num_parts} partition(s)"] = DistNeighborLoader(
            dataset,
            FANOUTS,
            seeds,
            with_edge=True,
            collect_features=True,
            worker_options=MpDistSamplingWorkerOptions(num_workers=2),
            **common,
        )
    kernels = {
        "pyg-lib": torch_geometric.typing.WITH_PYG_LIB,
        "torch-sparse": torch_geometric.typing.WITH_TORCH_SPARSE,
    }
    kernel = next((name for name, installed in kernels.items() if installed), None)
    if kernel is None:
        print("PyG's own loader is left out: neither pyg-lib nor torch-sparse is installed")
        return loaders
    for workers in (0, 2):
        loaders[f"PyG with {kernel}, {workers} workers"] = torch_geometric.loader.NeighborLoader(
            data, FANOUTS, seeds, num_workers=workers, **common
        )
    return loaders


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()

    data = PowerLaw.products(args.scale).data()
    print(data)
    with tempfile.TemporaryDirectory() as folder:
        loaders = make_loaders(data, Path(folder))
        turns: dict[str, list[float]] = {name: [] for name in loaders}
        held = {}
        for _ in range(args.repeat):
            for name, loader in loaders.items():
                seconds, held[name] = time_turn(loader, args.batches)
                turns[name].append(seconds)
        del loaders, loader

    first = statistics.median(next(iter(turns.values())))
    rows = []
    for name, seconds in turns.items():
        median = statistics.median(seconds)
        rows.append(
            {
                "loader": name,
                "ms": median * 1e3,
                "min": min(seconds) * 1e3,
                "max": max(seconds) * 1e3,
                "ratio": median / first,
                "bytes": held[name],
            }
        )
        print(
            f"{name:45s} {median * 1e3:8.1f} ms  ({min(seconds) * 1e3:.1f} to "
            f"{max(seconds) * 1e3:.1f})  x {median / first:.2f}  {held[name] / 1e6:.0f} MB"
        )
    report = {
        "khop": khop.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "arguments": vars(args),
        "rows": rows,
    }
    file = Path(__file__).parent / "results" / "neighbor_loader.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
