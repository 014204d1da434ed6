"""Reads of rows past the page cache: equal to NumPy's, few, with errors of one job alone."""

import os
import select
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop import _native
from support.reference.eviction import sieve_misses

ENGINES = [True, False]


def write(path, num_rows, row_bytes, begin=128):
    """Write rows of random bytes after `begin` others, and return them."""
    rows = np.random.default_rng(num_rows).integers(256, size=(num_rows, row_bytes), dtype=np.uint8)
    path.write_bytes(b"\0" * begin + rows.tobytes())
    return rows


def opened(path, num_rows, row_bytes, begin=128, **options):
    with path.open("rb") as file:
        return _native.DirectReads(file.fileno(), begin, row_bytes, num_rows, **options)


def wait(reads, jobs):
    """Wait for jobs, and return {job: error}."""
    found, poller = {}, select.poll()
    poller.register(reads.event, select.POLLIN)
    while not found.keys() >= set(jobs):
        assert poller.poll(20_000), "no read has ended in 20 s"
        found.update(reads.finished())
    return found


@pytest.mark.parametrize("use_ring", ENGINES)
@pytest.mark.parametrize("row_bytes", [1, 4, 36, 512, 4096, 5000, 40_000, 600_000])
@pytest.mark.parametrize("gap", [0, 20_000])
def test_rows_are_those_of_the_file(tmp_path, use_ring, row_bytes, gap):
    """Rows of any width, the last of a file of odd length among them, to any places."""
    num_rows = max(7, min(3001, 2_000_000 // row_bytes))
    rows = write(tmp_path / "rows", num_rows, row_bytes)
    reads = opened(tmp_path / "rows", num_rows, row_bytes, use_ring=use_ring)
    reads.set_gap(gap)
    rng = np.random.default_rng(0)
    jobs = {}
    for count in (1, 2, 50, 3):
        ids = np.append(rng.integers(num_rows, size=count), num_rows - 1)
        places = rng.permutation(len(ids) + 2)[: len(ids)]
        out = np.zeros((len(ids) + 2, row_bytes), np.uint8)
        jobs[reads.submit(ids, out, places)] = ids, places, out
    assert set(wait(reads, jobs).values()) == {0}
    for ids, places, out in jobs.values():
        assert (out[places] == rows[ids]).all()
    assert reads.counts()[0] == sum(len(ids) for ids, _, _ in jobs.values())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 499), max_size=40), min_size=1, max_size=6),
    st.sampled_from([0, 4096, 100_000]),
    st.sampled_from([4096, 9000, 65_536]),
    st.booleans(),
)
def test_any_jobs_together(tmp_path_factory, jobs, gap, max_bytes, use_ring):
    path = tmp_path_factory.getbasetemp() / "any-rows"
    rows = write(path, 500, 100, begin=77)
    reads = opened(path, 500, 100, 77, depth=3, max_bytes=max_bytes, use_ring=use_ring)
    reads.set_gap(gap)
    outs = {}
    for ids in jobs:
        out = np.zeros((len(ids), 100), np.uint8)
        outs[reads.submit(np.array(ids, np.int64), out)] = ids, out
    assert set(wait(reads, outs).values()) == {0}
    assert all((out == rows[ids]).all() for ids, out in outs.values())


@pytest.mark.parametrize("use_ring", ENGINES)
def test_neighbours_are_one_read(tmp_path, use_ring):
    """Rows in one block are one read, and with a gap rows of other blocks, too."""
    write(tmp_path / "rows", 1000, 512, begin=0)
    counts = []
    for gap in (0, 4096, 1 << 20):
        reads = opened(tmp_path / "rows", 1000, 512, 0, use_ring=use_ring, max_bytes=1 << 20)
        reads.set_gap(gap)
        ids = np.array([0, 7, 8, 24, 999])  # blocks 0, 1, 3 and 124
        wait(reads, [reads.submit(ids, np.zeros((5, 512), np.uint8))])
        counts.append(reads.counts()[1:3])
    assert counts == [(3, 4 * 4096), (2, 5 * 4096), (1, 125 * 4096)]


def test_a_job_joins_the_sweep_of_others(tmp_path):
    """Rows that two jobs need are read once, if neither has them yet."""
    write(tmp_path / "rows", 200_000, 64)
    reads = opened(tmp_path / "rows", 200_000, 64, depth=1)
    ids = np.arange(0, 200_000, 200)
    outs = [np.zeros((len(ids), 64), np.uint8) for _ in range(4)]
    wait(reads, [reads.submit(ids, out) for out in outs])
    assert reads.counts()[0] == 4 * len(ids)
    assert reads.counts()[1] < 2 * len(ids)


@pytest.mark.parametrize("use_ring", ENGINES)
def test_a_file_that_is_cut_off(tmp_path, use_ring):
    """Only jobs with rows behind the end fail, although their reads are merged with others'."""
    rows = write(tmp_path / "rows", 1000, 100)
    reads = opened(tmp_path / "rows", 1000, 100, use_ring=use_ring)
    reads.set_gap(1 << 20)
    os.truncate(tmp_path / "rows", 128 + 500 * 100 + 50)
    whole = np.array([3, 499])
    outs = [np.zeros((2, 100), np.uint8) for _ in range(3)]
    wanted = [whole, np.array([4, 500]), np.array([999, 5])]
    jobs = [reads.submit(ids, out) for ids, out in zip(wanted, outs, strict=True)]
    assert [error for _, error in sorted(wait(reads, jobs).items())] == [0, -1, -1]
    assert (outs[0] == rows[whole]).all()


@pytest.mark.parametrize("use_ring", ENGINES)
def test_an_error_of_the_file(tmp_path, use_ring):
    """The error's number is passed on: a folder can be opened, but not read."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    reads = _native.DirectReads(descriptor, 0, 8, 10, use_ring)
    os.close(descriptor)
    job = reads.submit(np.arange(3), np.zeros((3, 8), np.uint8))
    assert os.strerror(wait(reads, [job])[job]) == "Is a directory"


@pytest.mark.parametrize("use_ring", ENGINES)
def test_close_with_reads_in_flight(tmp_path, use_ring):
    rows = write(tmp_path / "rows", 100_000, 100)
    for pause in (0, 0, 0.001, 0.003):
        reads = opened(tmp_path / "rows", 100_000, 100, use_ring=use_ring)
        out = np.zeros((100_000, 100), np.uint8)
        reads.submit(np.arange(100_000), out)
        time.sleep(pause)
        reads.close()
        before = out.copy()
        time.sleep(0.002)
        assert (out == before).all()
        read = out.any(axis=1)
        assert (out[read] == rows[read]).all()
        reads.close()


def test_memory_file_system():
    """Where the page cache is the file, reads go through it or not, but are right."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        rows = np.arange(6000, dtype=np.int64).reshape(1000, 6)
        file.write(rows.tobytes())
        file.flush()
        reads = _native.DirectReads(file.fileno(), 0, 48, 1000)
        out = np.zeros((1000, 6), np.int64)
        ids = np.random.default_rng(0).permutation(1000)
        assert set(wait(reads, [reads.submit(ids, out)]).values()) == {0}
        assert (out == rows[ids]).all()


FORBIDDEN = """
import ctypes, struct, sys, platform
import numpy as np
from khop import _native

# A filter of system calls as in containers: io_uring_setup (425) fails with EPERM.
program = struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, 425, 6, 0, 0, 0x00050001,
                      6, 0, 0, 0x7FFF0000)
memory = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
pointed = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(memory)))
assert libc.prctl(22, 2, pointed, 0, 0) == 0
with open(sys.argv[1], "rb") as file:
    reads = _native.DirectReads(file.fileno(), 128, 100, 1000)
out = np.zeros((1000, 100), np.uint8)
job = reads.submit(np.arange(1000), out)
while not (done := reads.finished()):
    pass
print(reads.uses_ring, done, int(out.sum()))
"""


@pytest.mark.process
def test_io_uring_is_forbidden(tmp_path):
    """A container's filter refuses it: threads read in its place."""
    rows = write(tmp_path / "rows", 1000, 100)
    command = [sys.executable, "-c", FORBIDDEN, str(tmp_path / "rows")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["False", "[(0,", "0)]", str(int(rows.sum()))], ended.stderr


@pytest.mark.process
def test_a_fork_ends_without_its_parents_threads(tmp_path):
    rows = write(tmp_path / "rows", 1000, 100)
    reads = opened(tmp_path / "rows", 1000, 100)
    child = os.fork()
    if child == 0:
        reads.close()
        del reads
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    out = np.zeros((1000, 100), np.uint8)
    wait(reads, [reads.submit(np.arange(1000), out)])
    assert (out == rows).all()


def test_many_threads(tmp_path):
    rows = write(tmp_path / "rows", 5000, 100)
    reads = opened(tmp_path / "rows", 5000, 100)
    outs, lock = {}, threading.Lock()

    def submit(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            ids, out = rng.integers(5000, size=30), np.zeros((30, 100), np.uint8)
            with lock:
                outs[reads.submit(ids, out)] = ids, out

    threads = [threading.Thread(target=submit, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(wait(reads, outs).values()) == {0}
    assert all((out == rows[ids]).all() for ids, out in outs.values())


@pytest.mark.parametrize(
    "arguments",
    [(0, -1, 8, 10), (0, 0, 0, 10), (0, 0, 1 << 31, 10), (0, 0, 8, -1), (0, 0, 8, 10, True, 0)],
)
def test_bad_options(arguments):
    with pytest.raises(ValueError):
        _native.DirectReads(*arguments)


def test_bad_rows(tmp_path):
    write(tmp_path / "rows", 10, 8)
    reads = opened(tmp_path / "rows", 10, 8)
    out = np.zeros((2, 8), np.uint8)
    for ids, places in (([0, 10], None), ([-1, 0], None), ([0, 1], [0, 2]), ([0, 1], [-1, 0])):
        with pytest.raises(IndexError):
            reads.submit(np.array(ids), out, None if places is None else np.array(places))
    with pytest.raises(ValueError):
        reads.submit(np.array([0]), out)
    with pytest.raises(ValueError):
        reads.submit(np.array([0, 1]), np.zeros((2, 9), np.uint8))
    with pytest.raises(OSError, match="No such file"):
        _native.DirectReads(9999, 0, 8, 10)


def bytes_of_blocks(count, file_bytes):
    """Memory for some blocks, their entries, and the table of all blocks."""
    return count * (4096 + 24) + -(-file_bytes // 4096) * 4


@pytest.mark.parametrize("use_ring", ENGINES)
@pytest.mark.parametrize("row_bytes", [1, 4, 8, 12, 60])
@pytest.mark.parametrize("num_blocks", [1, 7, 1000])
def test_cached_blocks_have_the_rows_of_the_file(tmp_path, use_ring, row_bytes, num_blocks):
    """Rows that end in the next block, and the last block, which is not full, among them."""
    num_rows = 100_000 // row_bytes
    rows = write(tmp_path / "rows", num_rows, row_bytes)
    memory = bytes_of_blocks(num_blocks, 128 + rows.nbytes)
    reads = opened(tmp_path / "rows", num_rows, row_bytes, use_ring=use_ring, cache_bytes=memory)
    rng = np.random.default_rng(0)
    for count in (3, 500, 2000, 1, 2000):
        ids = np.append(rng.integers(num_rows, size=count), num_rows - 1)
        places = rng.permutation(len(ids))
        out = np.zeros((len(ids), row_bytes), np.uint8)
        assert set(wait(reads, [reads.submit(ids, out, places)]).values()) == {0}
        assert (out[places] == rows[ids]).all()
    asked, num_reads, _, cached = reads.counts()
    assert asked == 4509
    assert 0 < cached < asked
    if num_blocks == 1000:
        before = num_reads
        out = np.zeros((num_rows, row_bytes), np.uint8)
        wait(reads, [reads.submit(np.arange(num_rows), out)])
        wait(reads, [reads.submit(np.arange(num_rows), out)])
        assert reads.counts()[1] <= before + 1
        assert (out == rows).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 9))
def test_blocks_are_kept_by_sieve(tmp_path_factory, blocks, capacity):
    path = tmp_path_factory.getbasetemp() / "ten-blocks"
    if not path.exists():
        write(path, 40_960, 1, begin=0)
    memory = bytes_of_blocks(capacity, 40_960)
    reads = opened(path, 40_960, 1, 0, use_ring=False, cache_bytes=memory)
    for block in blocks:
        row = np.array([4096 * block + 17])
        wait(reads, [reads.submit(row, np.zeros((1, 1), np.uint8))])
    assert reads.counts()[3] == len(blocks) - sieve_misses(blocks, capacity)


def test_failed_reads_are_not_cached(tmp_path):
    path = tmp_path / "rows"
    rows = write(path, 4000, 4, begin=0)
    reads = opened(path, 4000, 4, 0, cache_bytes=1 << 20)
    os.truncate(path, 8192)
    out = np.zeros((1, 4), np.uint8)
    last = np.array([3999])
    for _ in range(2):
        assert set(wait(reads, [reads.submit(last, out)]).values()) == {-1}
    path.write_bytes(rows.tobytes())
    assert set(wait(reads, [reads.submit(last, out)]).values()) == {0}
    assert (out == rows[last]).all()


def test_memory_of_a_cache_must_be_positive(tmp_path):
    write(tmp_path / "rows", 10, 4)
    with pytest.raises(ValueError, match="cache_bytes"):
        opened(tmp_path / "rows", 10, 4, cache_bytes=-1)
