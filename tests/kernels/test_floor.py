"""The floors of benchmarks: they read what they say, and refuse what is not there."""

import numpy as np
import pytest

from khop_bench.floor import MissingToolsError, load_floor

pytestmark = pytest.mark.timeout(400)  # it may have to be built first, beside other tests

INDPTR = np.array([0, 2, 2, 5])
GRAPH = INDPTR, np.array([1, 2, 0, 1, 2], np.int32)


@pytest.fixture(scope="module")
def floor():
    """The native module; `scripts/test` installs what builds it."""
    try:
        return load_floor()
    except MissingToolsError as error:
        pytest.skip(str(error))


def touch(floor, rows, counts, edges, num_nodes=3):
    graph = floor.SampleFloor(*GRAPH)
    return graph.touch(np.array(rows), np.array(counts, np.int32), np.array(edges), num_nodes)


def test_row_pointers_are_read(floor):
    """Slots of a fresh table may hold anything, so the sum is known of a batch without edges."""
    assert touch(floor, [0, 2], [0, 0], np.zeros(0, np.int64)) == 0 + 2 + 2 + 5


def test_slots_are_read_and_written(floor):
    """The second time a batch's slots hold what the first wrote there: the places of its edges."""
    graph = floor.SampleFloor(*GRAPH)
    batch = np.array([2, 0, 1]), np.array([2, 1, 0], np.int32), np.array([4, 2, 0])
    graph.touch(*batch, 3)
    row_pointers = (2 + 5) + (0 + 2) + (2 + 2)
    assert graph.touch(*batch, 3) == row_pointers + 0 + 1 + 2


@pytest.mark.parametrize(
    ("rows", "counts", "edges"),
    [([3], [0], []), ([-1], [0], []), ([0], [1], [5]), ([0], [1], [-1]), ([0], [2], [1])],
)
def test_missing_edges_or_types_are_refused(floor, rows, counts, edges):
    with pytest.raises(IndexError, match=r"graph has not|do not add up"):
        touch(floor, rows, counts, np.array(edges, np.int64))


@pytest.mark.parametrize("count", [2**50, 2**61, 2**62 - 1, 2**62, 2**63 - 1])
def test_batches_that_no_memory_holds(floor, count):
    graph = floor.SampleFloor(np.array([0, 1, 2]), np.array([0, 1]))
    batch = np.array([0, 1]), np.ones(2, np.int32), np.array([0, 1])
    with pytest.raises(MemoryError, match=f"no room for {count} entries of 8 bytes"):
        graph.touch(*batch, count)


@pytest.mark.parametrize(
    ("indptr", "indices", "error"),
    [
        (np.zeros(0, np.int64), np.zeros(0, np.int64), ValueError),
        (np.array([0.0, 1]), np.zeros(1, np.int64), TypeError),
        (np.array([0, 1]), np.zeros((1, 1), np.int64), ValueError),
    ],
)
def test_what_is_no_graph(floor, indptr, indices, error):
    with pytest.raises(error, match=r"indptr|indices"):
        floor.SampleFloor(indptr, indices)


@pytest.mark.parametrize("width", [1, 63, 64, 65, 400])
def test_rows_of_a_table(floor, width):
    """One byte of each line is read."""
    table = np.random.default_rng(0).integers(0, 256, (50, width), np.uint8)
    rows = np.array([3, 49, 0, 3])
    out = np.zeros((4, width), np.uint8)
    assert floor.gather_floor(table, rows, out) == table[rows][:, ::64].sum()
    with pytest.raises(IndexError, match="no such row"):
        floor.gather_floor(table, np.array([50]), out[:1])
    with pytest.raises(ValueError, match="a row of the table for each"):
        floor.gather_floor(table, rows, out[:3])
