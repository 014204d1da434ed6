"""Draws from rows with damaged tables, between pages without access.

python -m support.kernels.damaged_tables SEED ROUNDS      run as a child: a read out of bounds kills
the process
"""

import ctypes
import mmap
import sys

import numpy as np

from khop import _native
from support.kernels import hop_calls

PAGE = mmap.PAGESIZE
_KEPT = []  # memory under arrays


def guarded(array, at_end):
    """Return a copy that ends (or begins) where a page without access begins (or ends)."""
    size = max(1, -(-array.nbytes // PAGE)) * PAGE
    memory = mmap.mmap(-1, size + 2 * PAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (address, address + PAGE + size):
        if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), mmap_none()) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")
    offset = PAGE + (size - array.nbytes if at_end else 0)
    copy = np.frombuffer(memory, array.dtype, len(array), offset)
    copy[:] = array
    _KEPT.append((memory, address, size))
    return copy


def mmap_none():
    """Return PROT_NONE, which the mmap module does not name."""
    return ctypes.c_int(0)


def release():
    """Release all pages. Guards are made accessible first, so that they can be unmapped."""
    libc = ctypes.CDLL(None)
    for _, address, size in _KEPT:
        libc.mprotect(
            ctypes.c_void_p(address),
            ctypes.c_size_t(size + 2 * PAGE),
            ctypes.c_int(mmap.PROT_READ | mmap.PROT_WRITE),
        )
    _KEPT.clear()


def damage(rng, array):
    """Replace some or all entries of an array by random bytes, extremes or copies of others."""
    array = array.copy()
    hit = rng.random(len(array)) < rng.choice([0.0, 0.02, 0.5, 1.0])
    info = np.iinfo(array.dtype)
    noise = np.frombuffer(rng.bytes(array.nbytes), array.dtype)
    extremes = np.array([info.min, info.max, 0, 1, len(array), info.max // 2], array.dtype)
    extremes = rng.choice(extremes, len(array))
    others = rng.permutation(array)
    array[hit] = [noise, extremes, others][rng.integers(3)][hit]
    return array


def graph_of(rng, num_rows):
    """Return a graph with valid rows and damaged times, sums and guide, and its row pointers."""
    degrees = rng.choice([0, 1, 2, 7, 100, 513], num_rows)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    sums, guide = _native.weight_table(indptr, rng.pareto(0.5, indptr[-1]))
    at_end = bool(rng.integers(2))
    graph = _native.Csr(
        guarded(indptr.astype(rng.choice([np.int32, np.int64])), at_end),
        guarded(rng.integers(0, num_rows, indptr[-1]).astype(np.int32), at_end),
        guarded(rng.permutation(num_rows), at_end),
        times=guarded(damage(rng, rng.integers(0, 9, indptr[-1])), at_end),
        weight_sums=guarded(damage(rng, sums), at_end),
        weight_guide=guarded(damage(rng, guide), at_end),
    )
    return graph, indptr


def check_round(rng):
    """Draw in every way. All results must be of the rows that were requested."""
    num_rows = int(rng.integers(1, 9))
    graph, indptr = graph_of(rng, num_rows)
    ids = rng.integers(0, num_rows, 20)
    for fanout in (-1, 1, 3, 60, 600):
        replace, weighted, last = rng.integers(0, 2, 3).astype(bool).tolist()
        excluded = None
        if rng.integers(2):
            excluded = rng.integers(0, num_rows, 5), rng.integers(0, num_rows, 5)
        times = rng.choice([-(2**63), 0, 4, 2**63 - 1], 20) if rng.integers(2) else None
        key = int(rng.integers(2**63))
        counts, neighbors, edges = hop_calls.sample_rows(
            graph, ids, fanout, replace, key, True, weighted, last, None, times, excluded
        )
        rows = np.repeat(ids, counts)
        assert ((indptr[rows] <= edges) & (edges < indptr[rows + 1])).all()
        assert ((neighbors >= 0) & (neighbors < num_rows)).all()
        batch = _native.Subgraph([num_rows], [(0, 0)], True, times is not None)
        batch.begin()
        batch.add_seeds(0, ids, times)
        options = [[min(fanout, 9)] * 2], replace, [weighted], last, key, 0
        hop_calls.sample(batch, [graph], *options)
        row, col = np.empty((2, batch.num_edges(0)), np.int64)
        batch.write_edge_index(0, row, col)
        assert max(row.max(initial=0), col.max(initial=0)) < batch.num_nodes(0)
        batch.induce([graph])


def main():
    for number in range(int(sys.argv[2])):
        check_round(np.random.default_rng([int(sys.argv[1]), number]))
        release()
    print("nothing was read out of bounds")


if __name__ == "__main__":
    main()
