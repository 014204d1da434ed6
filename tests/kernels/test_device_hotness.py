"""One hop of hotness on devices: the CPU's bits, whose sums depend on the order of their terms."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native
from support.devices import KINDS, open_device

ints = st.sampled_from([np.int32, np.int64])


def accumulate(device, indptr, indices, frontier, fanout, replace, log_missed, **how):
    """What becomes of log_missed on the device."""
    out = log_missed.copy()
    graph = _native.DeviceGraph(device, _native.Csr(indptr, indices))
    device.accumulate_hotness(graph, frontier, fanout, replace, out, **how)
    return out


def on_cpu(indptr, indices, frontier, fanout, replace, log_missed):
    out = log_missed.copy()
    _native.accumulate_hotness(_native.Csr(indptr, indices), frontier, fanout, replace, out)
    return out


def same_bits(got, expected):
    """Of numbers; a not-a-number has many."""
    numbers = ~np.isnan(expected)
    return np.array_equal(np.isnan(got), ~numbers) and np.array_equal(
        got[numbers].view(np.uint64), expected[numbers].view(np.uint64)
    )


def rows_of(degrees):
    return np.concatenate([[0], np.cumsum(degrees)])


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**32),
    rows=st.lists(st.lists(st.integers(0, 5), max_size=30), max_size=12),
    fanout=st.integers(-1, 12),
    replace=st.booleans(),
    pointer=ints,
    column=ints,
    at_a_time=st.sampled_from([1, 2, 7, 1 << 24]),
    chances=st.data(),
)
def test_equals_the_cpu(kind, seed, rows, fanout, replace, pointer, column, at_a_time, chances):
    """Bit for bit: parallel edges, empty rows, no rows, rows not in the frontier or certainly.

    So it is over some edges at a time.
    """
    frontier = chances.draw(
        st.lists(
            st.floats(0, 1) | st.sampled_from([0.0, 1.0, -0.1, 1.5, float("nan")]),
            min_size=len(rows),
            max_size=len(rows),
        )
    )
    indptr = rows_of([len(row) for row in rows]).astype(pointer)
    indices = np.array([neighbor for row in rows for neighbor in row], column)
    before = -np.random.default_rng(seed).random(6)
    before[0], before[1] = 0.0, -np.inf
    args = (indptr, indices, np.array(frontier, np.float64), fanout, replace, before)
    got = accumulate(open_device(kind, seed), *args, edges_at_a_time=at_a_time)
    assert same_bits(got, on_cpu(*args))


def test_many_rows(device, power_law):
    """A skewed graph, hop after hop; no terms at all leave their node as it was."""
    src, dst = power_law(600, 30_000)
    indptr, indices, _ = _native.coo_to_csr(dst, src, 600, 600)
    frontier = np.random.default_rng(0).random(600)
    got = expected = np.zeros(600)
    for fanout, replace in ((5, False), (1, True), (40, True), (-1, False)):
        args = (indptr, indices, frontier, fanout, replace)
        got, expected = accumulate(device, *args, got), on_cpu(*args, expected)
        assert same_bits(got, expected)
        frontier = -np.expm1(expected)


def test_a_hub(device):
    """100,000 terms of one node are added in the order of their rows: another gives other bits."""
    rng = np.random.default_rng(1)
    degrees = rng.integers(1, 4, 100_000)
    indptr = rows_of(degrees)
    indices = rng.integers(1, 50, indptr[-1])
    indices[indptr[:-1]] = 0  # each row's first neighbour is the hub
    frontier = rng.random(len(degrees))
    args = (indptr, indices, frontier, 1, False, np.zeros(50))
    expected = on_cpu(*args)
    assert same_bits(accumulate(device, *args), expected)
    assert same_bits(accumulate(device, *args, edges_at_a_time=1000), expected)
    np.testing.assert_allclose(expected[0], np.log1p(-frontier / degrees).sum(), rtol=1e-9)
    backwards = on_cpu(
        rows_of(degrees[::-1]), indices[::-1].copy(), frontier[::-1].copy(), *args[3:]
    )
    assert not same_bits(backwards[:1], expected[:1])


@pytest.mark.parametrize("at_a_time", [1, 9])
def test_bad_graphs(device, at_a_time):
    """Nothing is added where the graph turns out to be damaged."""
    indptr, ones, out = np.array([0, 1, 2]), np.ones(2), np.zeros(2)

    def run(indptr, indices, frontier=ones):
        graph = _native.DeviceGraph(device, _native.Csr(indptr, indices))
        how = {"edges_at_a_time": at_a_time}
        device.accumulate_hotness(graph, frontier, 1, False, out, **how)

    with pytest.raises(IndexError, match="not below the number of nodes"):
        run(indptr, np.array([1, 5]))
    with pytest.raises(IndexError, match="not below the number of nodes"):
        run(indptr, np.array([1, -1]))
    for bad in ([0, 3, 2], [0, -1, 2]):
        with pytest.raises(RuntimeError, match="row pointers are corrupt"):
            run(np.array(bad), np.array([0, 1]))
    with pytest.raises(ValueError, match="frontier must hold 2 entries"):
        run(indptr, np.array([1, 0]), np.ones(3))
    assert out.tolist() == [0, 0]
    run(indptr, np.array([1, 5]), np.array([1.0, 0.0]))  # as on the CPU: nobody draws from row 1
    assert out.tolist() == [0, -np.inf]


def test_bad_arguments(device):
    """A converted copy would be lost. A device reads its own graphs."""
    csr = _native.Csr(np.array([0, 1]), np.array([0]))
    graph, ones = _native.DeviceGraph(device, csr), np.ones(1)
    for out in (np.zeros(9, np.float32), np.zeros(18)[::2]):
        with pytest.raises(TypeError):
            device.accumulate_hotness(graph, ones, 1, False, out)
    with pytest.raises(ValueError, match="edges_at_a_time must be at least 1"):
        device.accumulate_hotness(graph, ones, 1, False, np.zeros(9), edges_at_a_time=0)
    if device.is_cuda:
        with pytest.raises(ValueError, match="the graph belongs to another device"):
            _native.emulated_device(0).accumulate_hotness(graph, ones, 1, False, np.zeros(9))
