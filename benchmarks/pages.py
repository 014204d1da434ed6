"""Cost of pages: random rows of a file that memory cannot hold, and fresh memory for batches.

    python benchmarks/pages.py --folder /scratch

The first table reads random rows of a mapped file within a control group (version 1, as root) with
less memory than the file has, with the kernel's read-ahead and with `MADV_RANDOM`. The second table
gathers batches from a file in the page cache: the first 40 of a process against later ones. Pages
are as the file was written, as reads in random order leave them, and as reads in sequence do.
`populate` maps all pages first (MADV_POPULATE_READ). The last table has the processor time of the
first write to shared memory, as batches of sampler processes are written, and of later writes.
"""

from __future__ import annotations

import argparse
import mmap
import os
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from khop.channel.arena import create_memory, map_memory

ROW = 512
_MADV_POPULATE_READ = 22  # Linux 5.14
GROUPS = Path("/sys/fs/cgroup/memory")


def read_rows(path: Path, memory: int, num_rows: int, random: bool, result: Any) -> None:
    """Read random rows with limited memory. Send seconds and bytes read from the disk."""
    group = GROUPS / f"khop-pages-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(memory))
    (group / "tasks").write_text(str(os.getpid()))
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    if random:
        mapping.madvise(mmap.MADV_RANDOM)
    rows = np.frombuffer(mapping, np.uint8).reshape(-1, ROW)
    ids = np.random.default_rng(0).integers(len(rows), size=num_rows)
    began, before = time.perf_counter(), bytes_read()
    rows[ids]
    result.send((time.perf_counter() - began, bytes_read() - before))
    (GROUPS / "tasks").write_text(str(os.getpid()))
    group.rmdir()


def bytes_read() -> int:
    """Return the bytes that this process has had read from disks."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["read_bytes"])


def writes(nbytes: int) -> list[float]:
    """Return processor seconds of three writes of all bytes of new shared memory."""
    descriptor = create_memory(nbytes)
    content = np.frombuffer(memoryview(map_memory(descriptor)), np.uint8)
    seconds = []
    for value in range(3):
        began = time.process_time()
        content[:] = value
        seconds.append(time.process_time() - began)
    os.close(descriptor)
    return seconds


def batches(path: Path, populates: bool, result: Any) -> None:
    """Gather batches of rows. Send milliseconds of populating, of first and of later batches."""
    descriptor = os.open(path, os.O_RDONLY)
    mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    rows = np.frombuffer(mapping, np.uint8).reshape(-1, ROW)
    out = np.ones((15_000, ROW), np.uint8)
    began = time.process_time()
    if populates:
        mapping.madvise(_MADV_POPULATE_READ)
    spent = [time.process_time() - began]
    for seed in range(120):
        ids = np.random.default_rng(seed).integers(len(rows), size=len(out))
        began = time.process_time()
        np.take(rows, ids, 0, out)
        spent.append(time.process_time() - began)
    times = spent[0], np.mean(spent[1:41]), np.median(spent[61:])
    result.send([1e3 * float(seconds) for seconds in times])


def first_batches(path: Path) -> None:
    """Print the cost of the first batches of a process, by the order in which pages were read."""
    for order in ("as written", "random", "in sequence"):
        with path.open("rb") as file:
            if order != "as written":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if order == "random":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                pages = np.random.default_rng(0).permutation(path.stat().st_size // mmap.PAGESIZE)
                for page in pages.tolist():
                    os.pread(file.fileno(), 1, page * mmap.PAGESIZE)
            while order == "in sequence" and file.read(8 << 20):
                pass
        for populates in (False, True):
            receiver, sender = get_context("fork").Pipe(duplex=False)
            process = get_context("fork").Process(target=batches, args=(path, populates, sender))
            process.start()
            populating, first, later = receiver.recv()
            process.join()
            name = f"{order}, populate" if populates else order
            print(
                f"{name:24s}populate {populating:6.1f} ms, first 40 {first:.2f} ms per batch, "
                f"later {later:.2f}, ratio {first / later:.2f}"
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="folder of the file")
    parser.add_argument("--mib", type=int, default=1024, help="size of the file")
    parser.add_argument("--memory", type=int, default=300, help="memory of the group in MiB")
    parser.add_argument("--rows", type=int, default=1000)
    args = parser.parse_args()
    path = args.folder / f"khop-pages-{os.getpid()}.bin"
    try:
        with path.open("wb") as file:
            for _ in range(args.mib >> 4):
                file.write(os.urandom(1 << 24))
            os.fsync(file.fileno())
        measured = {}
        for random in (False, True):
            receiver, sender = get_context("fork").Pipe(duplex=False)
            case = path, args.memory << 20, args.rows, random, sender
            process = get_context("fork").Process(target=read_rows, args=case)
            process.start()
            measured[random] = receiver.recv()
            process.join()
        for name, (seconds, read) in zip(
            ("read-ahead", "MADV_RANDOM"), measured.values(), strict=True
        ):
            ratio = seconds / measured[False][0]
            print(f"{name:12s}{seconds * 1e6 / args.rows:10.0f} us per row{ratio:8.3f}"
                  f"{read / args.rows / 1024:10.0f} KiB read per row")  # fmt: skip
        first_batches(path)
    finally:
        path.unlink(missing_ok=True)
    first, *_, last = writes(256 << 20)
    print(
        f"first write {first * 4e3:6.0f} ms/GiB, later {last * 4e3:.0f}, ratio {first / last:.1f}"
    )


if __name__ == "__main__":
    main()
