"""Edge lists to compressed rows: against NumPy and SciPy, in bounded memory."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, strategies as st

from khop import _native
from support.reference import oracle


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=40),
    st.sampled_from([np.int32, np.int64]),
)
def test_equals_a_stable_sort(edges, dtype):
    """Rows of keys, neighbours in the order of the list, each entry's place in the list."""
    keys, neighbors = np.array(edges, dtype).reshape(-1, 2).T
    keys, neighbors = np.ascontiguousarray(keys), np.ascontiguousarray(neighbors)
    got = _native.coo_to_csr(keys, neighbors, 9, 6)
    for array, expected in zip(got, oracle.csr(keys, neighbors, 9), strict=True):
        assert array.dtype == np.int32
        assert np.array_equal(array, expected)
    assert _native.coo_to_csr(keys, neighbors, 9, 6, with_edge_ids=False)[2] is None


def test_equals_scipy(power_law):
    """Row sets and multiplicities, on a skewed graph."""
    src, dst = power_law(500, 20_000)
    indptr, indices, edge_ids = _native.coo_to_csr(dst, src, 500, 500)
    expected = scipy.sparse.coo_matrix((np.ones(len(src)), (dst, src)), (500, 500)).tocsr()
    got = scipy.sparse.csr_matrix((np.ones(len(src)), indices, indptr), (500, 500))
    assert (got != expected).nnz == 0
    assert np.array_equal(src[edge_ids], indices)


def test_maps_renumber_on_the_fly():
    rng = np.random.default_rng(0)
    keys, neighbors = rng.integers(0, 7, (2, 50))
    a, b = rng.permutation(7), rng.permutation(7)
    got = _native.coo_to_csr(keys, neighbors, 7, 7, a, b)
    for array, expected in zip(got, oracle.csr(a[keys], b[neighbors], 7), strict=True):
        assert np.array_equal(array, expected)


@pytest.mark.parametrize(
    ("edge", "named"),
    [((0, 3), "node 3 (of 3)"), ((-1, 0), "node -1 (of 2)"), ((2, 0), "node 2 (of 2)")],
)
def test_ids_out_of_range(edge, named):
    """The first edge with such an end is named, with both numbers of nodes."""
    keys, neighbors = np.array([0, 1, edge[0], 9]), np.array([0, 1, edge[1], 9])
    with pytest.raises(IndexError, match="edge 2 joins") as caught:
        _native.coo_to_csr(keys, neighbors, 2, 3)
    assert named in str(caught.value)


def test_bad_arguments():
    two, three = np.zeros(2, np.int64), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="same length"):
        _native.coo_to_csr(two, three, 1, 1)
    with pytest.raises(TypeError, match="same dtype"):
        _native.coo_to_csr(two, np.zeros(2, np.int32), 1, 1)
    with pytest.raises(TypeError, match="int32 or int64"):
        _native.coo_to_csr(np.zeros(2), np.zeros(2), 1, 1)
    with pytest.raises(ValueError, match="negative"):
        _native.coo_to_csr(two, two, -5, 1)
    for bad in (-1, 1):
        with pytest.raises(IndexError, match=f"key_map maps id 0 to {bad}"):
            _native.coo_to_csr(two, two, 1, 1, np.array([bad]), None)
        with pytest.raises(IndexError, match=f"neighbor_map maps id 0 to {bad}"):
            _native.coo_to_csr(two, two, 1, 1, None, np.array([bad]))


_MEASURE = r"""
import pathlib, re
import numpy as np
from khop import _native
edges = 8_000_000
keys, neighbors = np.random.default_rng(0).integers(0, 100_000, (2, edges), dtype=np.{dtype})
def peak():  # unlike getrusage's, this process's alone, without what its parent had before exec
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
before = peak()
result = _native.coo_to_csr(keys, neighbors, 100_000, 100_000)
print((peak() - before) / (keys.nbytes + neighbors.nbytes))
"""


@pytest.mark.process
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_memory(dtype):
    """Input, output and all in between take at most 2.5 times the edge list."""
    program = [sys.executable, "-c", _MEASURE.format(dtype=dtype)]
    done = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60)
    assert 0 < float(done.stdout) <= 1.5
