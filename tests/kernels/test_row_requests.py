"""What pieces of one request share, the flag that ends them, and the memory that they take."""

import threading
from pathlib import Path

import numpy as np
import pytest

from khop import _native
from support.kernels.hop_calls import options

ROWS = np.zeros(4, np.int64)


def star(degree, weighted=False):
    """One row, node 0, whose neighbours are nodes 0 .. degree - 1."""
    indptr, indices = np.array([0, degree]), np.arange(degree, dtype=np.int32)
    sums = _native.weight_table(indptr, np.ones(degree)) if weighted else ()
    return _native.Csr(indptr, indices, None, 0, 0, None, *sums)


def test_pieces_give_what_arrays_give():
    """Excluded pairs and members that were made before, and in pieces."""
    graph, keys = star(30), np.arange(0, 40, 3)
    pairs = np.zeros(3, np.int64), np.array([3, 6, 3])
    excluded, members = _native.ExcludedPairs(*pairs), _native.Members(50, False)
    for piece in np.split(keys, [4, 5]):
        members.add(piece)
    assert excluded.counts(np.array([0, 1, 0])).tolist() == [3, 0, 3]
    hop = options(-1)
    ours = _native.sample_rows(graph, ROWS, hop, None, None, excluded, None)
    theirs = _native.sample_rows(graph, ROWS, hop, None, None, pairs)
    assert all(map(np.array_equal, ours, theirs)) and len(ours[1]) == 4 * 28
    ours = _native.induce_rows(graph, ROWS, members, True, None, None, excluded, None)
    theirs = _native.induce_rows(graph, ROWS, keys, 50, True, False, None, None, pairs)
    assert all(map(np.array_equal, ours, theirs)) and len(ours[1]) == 4 * (10 - 2)


def test_a_flag_that_is_set_ends_kernels_to_come():
    stop, graph = _native.StopFlag(), star(30)
    members = _native.Members(30, False)
    hop = options(3, method="labor")
    assert _native.sample_rows(graph, ROWS, hop, None, None, None, stop)[0].tolist() == [3] * 4
    stop.set()
    with pytest.raises(RuntimeError, match="stopped"):
        _native.sample_rows(graph, ROWS, hop, None, None, None, stop)
    with pytest.raises(RuntimeError, match="stopped"):
        _native.induce_rows(graph, ROWS, members, False, None, None, None, stop)


@pytest.mark.parametrize("method", ["labor", "excluded", "induce"])
def test_a_kernel_ends_within_a_row(method):
    """Rows of a million, a million times: hours, but for the flag."""
    stop, graph, rows = _native.StopFlag(), star(1_000_000), np.zeros(1_000_000, np.int64)
    excluded, members = _native.ExcludedPairs(rows[:9], np.arange(9)), _native.Members(9, False)
    running, ended = threading.Event(), []

    def work():
        running.set()
        try:
            if method == "induce":
                _native.induce_rows(graph, rows, members, False, None, None, None, stop)
            else:
                hop = options(3, method="labor") if method == "labor" else options(3)
                _native.sample_rows(graph, rows, hop, None, None, excluded, stop)
        except RuntimeError as error:
            ended.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    assert running.wait(10)
    stop.set()
    thread.join(20)
    assert ended == ["a kernel was stopped"]


def peak_kib():
    """The largest resident memory since the last call, and starts anew."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def test_weighted_draws_around_many_exclusions_take_little_memory():
    """64 rows of which 50,000 edges each are excluded: what one of them needs, not what all do."""
    graph, rows = star(100_000, weighted=True), np.zeros(64, np.int64)
    excluded = _native.ExcludedPairs(np.zeros(50_000, np.int64), np.arange(50_000))
    _native.sample_rows(graph, rows[:1], options(3, weighted=True), None, None, excluded, None)
    peak_kib()
    before = peak_kib()
    counts, drawn, _ = _native.sample_rows(
        graph, rows, options(3, weighted=True), None, None, excluded, None
    )
    assert peak_kib() - before < 20_000
    assert counts.tolist() == [3] * 64 and drawn.min() >= 50_000


@pytest.mark.parametrize(
    "fanout,replace", [(-1, False), (0, False), (3, False), (7, True), (50, False)]
)
@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_positions_are_those_of_drawn_edges(fanout, replace, width):
    """Rows of all lengths, with trees, and a graph whose neighbours must not be read."""
    rng = np.random.default_rng(fanout + 1)
    degrees = rng.integers(0, 40, size=300)
    degrees[7] = 100_000
    indptr = np.append(0, np.cumsum(degrees)).astype(width)
    neighbors = np.zeros(indptr[-1], np.int32)
    row_ids = rng.permutation(300) + (1 << 33)
    graph = _native.Csr(indptr, neighbors, row_ids, first_row=1000, first_edge=50)
    ids = rng.integers(1000, 1300, size=400)
    trees = rng.integers(0, 9, size=400).astype(np.int32)
    hop = options(fanout, replace, key=5)
    for some in (None, trees):
        counts, positions = _native.pick_positions(graph, ids, hop, some)
        expected, _, edges = _native.sample_rows(graph, ids, hop, some)
        assert np.array_equal(counts, expected)
        assert np.array_equal(positions + 50, edges)


def test_positions_need_row_pointers_alone():
    neighbors, ids = np.arange(4), np.zeros(2, np.int64)
    timed = _native.Csr(np.array([0, 4]), neighbors, times=np.arange(4))
    assert _native.pick_positions(timed, ids, options(-1))[1].tolist() == [0, 1, 2, 3] * 2
    for hop in (options(2, last=True), options(2, method="labor")):
        with pytest.raises(ValueError, match="row pointers"):
            _native.pick_positions(timed, ids, hop)
    with pytest.raises(ValueError, match="row pointers"):
        _native.pick_positions(star(4, weighted=True), ids, options(2, weighted=True))
    with pytest.raises(IndexError):
        _native.pick_positions(timed, np.array([1]), options(2))
    damaged = _native.Csr(np.array([0, 9, 4]), neighbors)
    with pytest.raises(RuntimeError, match="corrupt"):
        _native.pick_positions(damaged, ids, options(2))
