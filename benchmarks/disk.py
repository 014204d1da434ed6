"""Graphs larger than memory: loading from mapped files, and by direct reads, in a memory cgroup.

    python benchmarks/disk.py                     # papers100M's shape x 0.02, some minutes, as root
    python benchmarks/disk.py --scale 0.1 --share 0.2 --batches 100
    python benchmarks/disk.py --structure --scale 0.1   # neighbours and edge ids, not features
    python benchmarks/disk.py --pack --cases 'in memory;pack;direct'

Rows get `--share` of the features' bytes. What structure and process need is measured first, in a
cgroup without a limit and with batches without features, and is added to the limit. Each case is a
process of its own that joins the cgroup (version 1, controller 'memory') before it opens a file,
with the folder's pages dropped from the page cache. Cases take turns. Floors: the same batches with
all rows in memory, and the rows that Belady's cache of the same bytes would have to read, at the
disk's rate of single rows, which is measured in the same run. Peer: PyG's `NodeLoader` with
features in a `np.memmap`, and khop's sampler.

With `--structure` batches have no features. Neighbours and ids of edges get `--share` of theirs.
The floor has the blocks of 4 kB that Belady's cache would have to read.

With `--pack` the case 'pack' reads rows of a pack, nine tenths of whose memory is for hot rows. Its
floor is their other bytes at the disk's rate in sequence.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import FeatureStore, TensorAttr
from torch_geometric.loader import NodeLoader

import khop.storage.part
from khop import _native
from khop.datasets import PowerLaw
from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    PartitionSampler,
    init_worker_group,
)
from khop.partition import RandomPartitioner
from khop.trace.clock import DISK

CGROUPS = Path("/sys/fs/cgroup/memory")
WIDTH = 128
CASES = ("in memory", "direct", "MADV_RANDOM", "mapped", "PyG")


@contextmanager
def cgroup(name: str) -> Iterator[Path]:
    """A memory cgroup, which is removed afterwards."""
    path = CGROUPS / f"khop-disk-{os.getpid()}-{name}"
    path.mkdir()
    try:
        yield path
    finally:
        (path / "memory.force_empty").write_text("0")
        path.rmdir()


def make_folder(root: Path, options: argparse.Namespace) -> None:
    """Partition a graph of the shape of papers100M into one part."""
    nodes, edges = (int(count * options.scale) for count in (111_059_956, 1_615_685_872))
    width = 1 if options.structure else WIDTH
    graph = PowerLaw(nodes, edges, num_features=width, num_classes=172, train_fraction=0.0109)
    RandomPartitioner.from_data(graph.data(), root, 1, order=options.order).partition()


def drop_pages(root: Path) -> None:
    """Drop the folder's pages from the page cache."""
    os.sync()
    for path in root.rglob("*.npy"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def run_case(options: argparse.Namespace, case: str, limit: int | None) -> dict[str, Any]:
    """Run a case in a process within a cgroup, and return its times and its peak of memory."""
    root = Path(options.folder)
    drop_pages(root)
    with cgroup("case") as path:
        if limit is not None:
            (path / "memory.limit_in_bytes").write_text(str(limit))
        command = [sys.executable, __file__, "--case", case, "--cgroup", str(path)]
        for name in ("folder", "batch_size", "fanouts", "batches", "seconds", "skip", "cache"):
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        command += ["--structure"] * options.structure
        if case == "pack":
            drop_pages(pack_of(options))
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            return {"case": case, "error": ended.stderr.strip()[-300:]}
        found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        found["peak"] = int((path / "memory.max_usage_in_bytes").read_text())
        return found


def pack_of(options: argparse.Namespace) -> Path:
    """Return the path of the pack of the folder."""
    return Path(f"{options.folder}.pack")


def make_pack(options: argparse.Namespace) -> float:
    """Pack an epoch. Print its size and time, and return its bytes per batch without hot rows."""
    root, hot = str(options.folder), str(int(0.9 * options.cache))
    command = [sys.executable, "-m", "khop", "pack", root, str(pack_of(options)), "--seed", "1"]
    command += ["--fanout", options.fanouts, "--batch-size", str(options.batch_size)]
    command += ["--attr", "x", "--hot-memory", hot, "--overwrite", "--json"]
    began = time.perf_counter()
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, found = time.perf_counter() - began, json.loads(ended.stdout)
    per_batch: float = found["packed_rows"] * 4 * WIDTH / found["batches"]
    share, mebibytes = found["packed_rows"] / found["rows"], found["nbytes"] / 2**20
    print(
        f"pack: {found['batches']:,} batches, {mebibytes:,.0f} MiB in {seconds:.0f} s, "
        f"{share:.1%} of the rows in sequence"
    )
    return per_batch


def loader_of(options: argparse.Namespace, case: str) -> DistNeighborLoader:
    init_worker_group(1, 0, "disk-bench")
    load: dict[str, Any] = {}
    if options.structure and case in ("bare", "direct"):
        load = {"structure_on_disk": True, "disk_memory": options.cache if case == "direct" else 0}
    elif case == "direct":
        load = {"features_on_disk": ["x"], "disk_memory": options.cache}
    dataset = DistDataset().load(options.folder, **load)
    return DistNeighborLoader(
        dataset,
        fanouts_of(options),
        "train_mask",
        batch_size=options.batch_size,
        shuffle=True,
        seed=1,
        collect_features=case != "bare" and not options.structure,
        packed=pack_of(options) if case == "pack" else None,
    )


class MappedFeatures(FeatureStore):
    """PyG's feature store over a mapped file of rows by new id."""

    def __init__(self, rows: np.ndarray[Any, Any], new_ids: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.rows, self.new_ids = rows, new_ids

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr("node", "x")]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        return self.rows.shape

    def _get_tensor(self, attr: TensorAttr) -> np.ndarray[Any, Any]:
        return self.rows[self.new_ids[attr.index]]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError


def pyg_loader(options: argparse.Namespace) -> NodeLoader:
    """Return PyG's loader of the same graph."""
    init_worker_group(1, 0, "disk-bench")
    dataset = DistDataset().load(options.folder)
    rows = np.load(next(Path(options.folder).rglob("*/x.npy")), mmap_mode="r")
    features = MappedFeatures(rows, dataset.opened.id_map("node"))
    seeds = dataset.to_original_ids(dataset.split("node", "train_mask"), "node")
    return NodeLoader(
        (features, dataset),
        PartitionSampler(dataset, fanouts_of(options), with_edge=False, seed=1),
        input_nodes=torch.from_numpy(seeds),
        batch_size=options.batch_size,
        shuffle=True,
    )


def fanouts_of(options: argparse.Namespace) -> list[int]:
    return [int(k) for k in options.fanouts.split(",")]


def child(options: argparse.Namespace) -> None:
    """Iterate a loader, and print seconds per batch after the first ones."""
    if options.cgroup:
        (Path(options.cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    case = options.case
    if case == "MADV_RANDOM":
        advise_random()
    if case == "in memory":
        for path in (Path(options.folder) / "part-0").rglob("*.npy"):
            with path.open("rb") as file:
                while file.read(8 << 20):
                    pass
    loader = pyg_loader(options) if case == "PyG" else loader_of(options, case)
    ids, ends, rows = [], [time.perf_counter()], 0
    if options.structure and case == "bare":
        record_blocks(ids)
    late = ends[0] + options.seconds
    cpu = time.process_time()
    for batch in loader:
        ends.append(time.perf_counter())
        rows += batch.num_nodes
        if case == "bare" and not options.structure:
            ids.append(batch.n_id.numpy())
        if len(ends) > options.batches or (ends[-1] > late and len(ends) > 3):
            break
    cpu = time.process_time() - cpu
    skip = min(options.skip, (len(ends) - 1) // 2)
    seconds = (ends[-1] - ends[skip]) / (len(ends) - 1 - skip)
    found = {
        "case": case,
        "seconds": seconds,
        "rows": rows / (len(ends) - 1),
        "cpu": cpu / len(ends),
    }
    found["disk"] = dict.fromkeys(DISK, 0) if case == "PyG" else loader.stats().disk
    found["faults"] = resource.getrusage(resource.RUSAGE_SELF).ru_majflt / len(ends)
    if case != "PyG":
        loader.shutdown()
    if ids:
        found["misses"] = belady(ids, len(ends) - 1, options)
    print(json.dumps(found))


def advise_random() -> None:
    """Give MADV_RANDOM for all attributes and neighbours that are mapped from now on."""

    def advise(array: Any, total: int) -> None:
        del total
        base: Any = array
        while not isinstance(base, mmap.mmap):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        base.madvise(mmap.MADV_RANDOM)

    khop.storage.part.advise_reads = advise


def record_blocks(blocks: list[np.ndarray[Any, Any]]) -> None:
    """Append the blocks of 4 kB that each hop needs to a list."""
    pick = _native.pick_positions

    def picked(*arguments: Any) -> Any:
        found = pick(*arguments)
        blocks.append(np.unique(4 * found[1] + 128 >> 12))  # neighbours are int32
        return found

    _native.pick_positions = picked


def belady(ids: list[np.ndarray[Any, Any]], num_batches: int, options: argparse.Namespace) -> float:
    """Rows or blocks per batch, after the first ones, that Belady's cache must read."""
    row_bytes = 2 * 4096 if options.structure else 4 * WIDTH  # neighbours, and ids of edges
    cache = _native.LookaheadCache(options.cache // row_bytes)
    # All batches are announced: the cache is Belady's.
    numbers = [cache.announce(np.ascontiguousarray(batch, np.int64)) for batch in ids]
    misses = [len(cache.take(number)[2]) for number in numbers]
    per_batch = np.array_split(misses, num_batches)
    needed = float(np.mean([np.sum(some) for some in per_batch[options.skip :]]))
    return 2 * needed if options.structure else needed


def rates(file: Path) -> dict[str, float]:
    """Reads per second of single rows and of blocks of 64 kB, and bytes per second in sequence."""
    rows = (file.stat().st_size - 128) // (4 * WIDTH)  # of neighbours: pieces of 512 bytes
    rng, found = np.random.default_rng(), {}
    descriptor = os.open(file, os.O_RDONLY)
    blocks = rng.integers(rows - 128, size=4000)[:, None] + np.arange(128)
    first = int(rng.integers(rows // 2))
    wanted = {
        "single rows": rng.integers(rows, size=40_000),
        "64 kB": blocks.ravel(),
        "sequence": np.arange(first, first + rows // 2),
    }
    for name, ids in wanted.items():
        reads = _native.DirectReads(descriptor, 128, 4 * WIDTH, rows, depth=128)
        out = np.empty((len(ids), 4 * WIDTH), np.uint8)
        out[:] = 0
        began = time.perf_counter()
        reads.submit(np.ascontiguousarray(ids), out)
        while not reads.finished():
            select.select([reads.event], [], [], 1)
        seconds = time.perf_counter() - began
        _, count, nbytes, _ = reads.counts()
        found[name] = nbytes / seconds if name == "sequence" else count / seconds
    os.close(descriptor)
    return found


def main(options: argparse.Namespace) -> None:
    root = Path(options.folder)
    if not root.exists():
        make_folder(root, options)
    files = [next(root.rglob("*/x.npy"))]
    if options.structure:
        files = [next(root.rglob(name)) for name in ("indices.npy", "edge_id.npy")]
    file, nbytes = files[0], sum(file.stat().st_size for file in files)
    options.cache = int(options.share * nbytes)
    bare = run_case(options, "bare", None)
    if "error" in bare:
        raise SystemExit(bare["error"])
    # Batches with rows are larger than the ones that were measured: four in work at a time.
    limit = bare["peak"] + options.cache
    if not options.structure:
        limit += int(4 * bare["rows"] * 4 * WIDTH)
    rest = (limit - options.cache) / 2**20
    print(
        f"files {nbytes / 2**20:,.0f} MiB, their cache gets {options.cache / 2**20:,.0f} MiB, "
        f"structure, process and batches {rest:,.0f} MiB; {bare['rows']:,.0f} rows per batch"
    )
    packed_bytes = make_pack(options) if options.pack else 0.0
    times: dict[str, list[float]] = {}
    for turn in range(options.turns):
        rate = rates(file)
        floor = bare["misses"] / rate["single rows"]
        print(
            f"turn {turn}: {rate['single rows']:,.0f} single rows/s, {rate['64 kB']:,.0f} reads/s "
            f"of 64 kB, {rate['sequence'] / 1e9:.2f} GB/s; Belady's {bare['misses']:,.0f} misses "
            f"per batch take {1e3 * floor:.1f} ms"
        )
        times.setdefault("floor", []).append(floor)
        if options.pack:
            sequence = packed_bytes / rate["sequence"]
            print(
                f"{packed_bytes / 2**20:.2f} MiB of a pack per batch take {1e3 * sequence:.1f} ms"
            )
            times.setdefault("floor of the pack", []).append(sequence)
        cases = [c for c in options.cases.split(";") if c != "PyG" or not options.structure]
        for case in cases:
            found = run_case(options, case, None if case == "in memory" else limit)
            if "error" in found:
                print(f"  {case}: {found['error']}")
                continue
            times.setdefault(case, []).append(found["seconds"])
            disk = found["disk"]
            asked, missed = ("edge_values", "edge_values_missed") if options.structure else DISK[:2]
            missed = disk[missed] / max(disk[asked], 1)
            print(
                f"  {case:<16}{1e3 * found['seconds']:8.1f} ms per batch, processor "
                f"{1e3 * found['cpu']:.1f} ms, peak {found['peak'] / 2**20:,.0f} MiB, "
                f"{found['faults']:.0f} major faults, misses {missed:.1%}, "
                f"{disk['reads']:,} reads, {disk['bytes'] / 2**20:,.0f} MiB",
                flush=True,
            )
    medians = {case: statistics.median(values) for case, values in times.items()}
    compared = [medians[c] for c in medians if c.startswith("mapped") or c == "MADV_RANDOM"]
    mapped, in_memory = min(compared, default=0.0), medians.get("in memory", 0)
    bound = max(in_memory, medians["floor"])
    if "pack" in medians:
        sequence = max(in_memory, medians["floor of the pack"])
        print(
            f"pack / max(in memory, bytes at the sequential rate): {medians['pack'] / sequence:.2f}"
        )
    print("| case | ms per batch | the better of mapped / this | this / max(in memory, floor) |")
    print("|---|---|---|---|")
    for case, value in medians.items():
        print(f"| {case} | {1e3 * value:.1f} | {mapped / value:.2f} | {value / bound:.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="/tmp/khop-disk-bench")
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--structure", action="store_true", help="of neighbours, not features")
    parser.add_argument("--pack", action="store_true", help="also pack an epoch and read it")
    parser.add_argument("--order", default="original", help="of nodes: see `khop partition`")
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--fanouts", default="10,10")
    parser.add_argument("--batches", type=int, default=90)
    parser.add_argument("--skip", type=int, default=30, help="batches that are not timed")
    parser.add_argument("--seconds", type=float, default=30.0, help="after which a case ends")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cases", default=";".join(CASES), help="separated by ';'")
    parser.add_argument("--cache", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    parser.add_argument("--cgroup", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    child(arguments) if arguments.case else main(arguments)
