"""Edge lists to compressed rows on devices: against the CPU's kernel, NumPy and SciPy."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, strategies as st

from khop import _native
from support.devices import KINDS, empty, get, open_device, put
from support.reference import oracle

ints = st.sampled_from([np.int32, np.int64])


def convert(device, keys, neighbors, num_rows, num_neighbors, maps=(None, None), **dtypes):
    """(indptr, indices, edge_ids or None) as the device makes them."""
    outs = [
        empty(device, length, dtypes.get(name, np.int32))
        for name, length in (
            ("indptr", num_rows + 1),
            ("indices", len(keys)),
            ("edge_ids", len(keys)),
        )
    ]
    if dtypes.get("edge_ids", 0) is None:
        outs[2] = None
    maps = [None if to is None else put(device, to) for to in maps]
    keys, neighbors = put(device, keys), put(device, neighbors)
    device.coo_to_csr(keys, neighbors, num_rows, num_neighbors, *outs, *maps)
    device.synchronize()
    return [None if out is None else get(out) for out in outs]


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**32),
    edges=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=150),
    dtype=ints,
    dtypes=st.tuples(ints, ints, st.one_of(st.none(), ints)),
    mapped=st.tuples(st.booleans(), st.booleans()),
)
def test_equals_the_cpu_and_a_stable_sort(kind, seed, edges, dtype, dtypes, mapped):
    """Parallel edges in the order of the list, empty rows, maps, integers of either width."""
    keys, neighbors = np.array(edges, dtype).reshape(-1, 2).T.copy()
    rng = np.random.default_rng(seed)
    maps = [
        rng.permutation(n) if wanted else None for n, wanted in zip((9, 6), mapped, strict=True)
    ]
    device = open_device(kind, seed)
    names = ("indptr", "indices", "edge_ids")
    got = convert(device, keys, neighbors, 9, 6, maps, **dict(zip(names, dtypes, strict=True)))
    ends = [ids if to is None else to[ids] for ids, to in zip((keys, neighbors), maps, strict=True)]
    cpu = _native.coo_to_csr(keys, neighbors, 9, 6, *maps, dtypes[2] is not None)
    for array, expected, brute, wanted in zip(got, cpu, oracle.csr(*ends, 9), dtypes, strict=True):
        if wanted is None:
            assert array is expected is None
            continue
        assert array.dtype == wanted
        assert np.array_equal(array, expected)
        assert np.array_equal(array, brute)


def test_equals_scipy(device, power_law):
    """Row sets and multiplicities, on a skewed graph."""
    src, dst = power_law(500, 20_000)
    indptr, indices, edge_ids = convert(device, dst, src, 500, 500)
    expected = scipy.sparse.coo_matrix((np.ones(len(src)), (dst, src)), (500, 500)).tocsr()
    got = scipy.sparse.csr_matrix((np.ones(len(src)), indices, indptr), (500, 500))
    assert (got != expected).nnz == 0
    assert np.array_equal(src[edge_ids], indices)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 5, 100_000])
def test_few_edges(device, num_rows):
    """No rows, no edges, and an edge among many empty rows."""
    none = np.zeros(0, np.int64)
    indptr, indices, edge_ids = convert(device, none, none, num_rows, 0)
    assert indptr.tolist() == [0] * (num_rows + 1)
    assert len(indices) == len(edge_ids) == 0
    if num_rows:
        last = np.array([num_rows - 1])
        indptr, indices, _ = convert(device, last, last, num_rows, num_rows)
        assert indptr.tolist() == [0] * num_rows + [1]
        assert indices.tolist() == [num_rows - 1]


def test_a_long_row(device):
    """100,000 edges in one row of 3,000; numbers of rows beyond 16 bits in another list."""
    rng = np.random.default_rng(0)
    for num_rows, keys in ((3000, np.full(100_000, 1234)), (200_000, rng.integers(0, 2e5, 50_000))):
        neighbors = rng.integers(0, num_rows, len(keys))
        got = convert(device, keys, neighbors, num_rows, num_rows)
        for array, expected in zip(got, oracle.csr(keys, neighbors, num_rows), strict=True):
            assert np.array_equal(array, expected)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("edge", "named"),
    [((0, 3), "node 3 (of 3)"), ((-1, 0), "node -1 (of 2)"), ((2, 0), "node 2 (of 2)")],
)
def test_ids_out_of_range(device, dtype, edge, named):
    """The first edge with such an end is named, in the CPU's words; nothing is written."""
    keys, neighbors = np.zeros((2, 500), dtype)
    keys[70], neighbors[70] = edge
    keys[71:], neighbors[71:] = 9, -9
    with pytest.raises(IndexError, match="edge 70 joins") as caught:
        _native.coo_to_csr(keys, neighbors, 2, 3)
    outs = [empty(device, n, np.int32) for n in (3, 500, 500)]
    with pytest.raises(IndexError) as on_device:
        device.coo_to_csr(put(device, keys), put(device, neighbors), 2, 3, *outs)
    assert named in str(on_device.value)
    assert str(on_device.value) == str(caught.value)
    assert all((get(out) == 77).all() for out in outs)


def test_maps_out_of_range(device):
    """The first such entry is named, in the CPU's words, also if no edge uses it."""
    zeros = np.zeros(4, np.int64)
    for bad in (-1, 3):
        to = np.array([0, 1, bad, bad, 2])
        for maps in ((to, None), (None, to), (to, to)):
            with pytest.raises(IndexError, match=f"_map maps id 2 to {bad}") as caught:
                _native.coo_to_csr(zeros, zeros, 3, 3, *maps)
            with pytest.raises(IndexError) as on_device:
                convert(device, zeros, zeros, 3, 3, maps)
            assert str(on_device.value) == str(caught.value)


def test_bad_arguments(device):
    two, three = np.zeros(2, np.int64), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="same length"):
        convert(device, two, three, 1, 1)
    with pytest.raises(TypeError, match="same dtype"):
        convert(device, two, np.zeros(2, np.int32), 1, 1)
    with pytest.raises(TypeError, match="int32 or int64"):
        convert(device, np.zeros(2), np.zeros(2), 1, 1)
    with pytest.raises(TypeError, match="indices must be int64"):
        convert(device, two, two, 1, 2**31 + 1)
    convert(device, two, two, 1, 2**31 + 1, indices=np.int64)
    arrays = [put(device, two) for _ in range(3)]
    with pytest.raises(ValueError, match="negative"):
        device.coo_to_csr(*arrays[:2], -5, 1, *arrays)
    with pytest.raises(ValueError, match="indptr must hold 4 entries, but holds 2"):
        device.coo_to_csr(*arrays[:2], 3, 1, *arrays)
    strided = put(device, np.zeros(4, np.int64))[::2]  # a converted copy would be lost
    with pytest.raises(TypeError):
        device.coo_to_csr(*arrays[:2], 1, 1, strided, *arrays[:2])
