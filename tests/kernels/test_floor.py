"""The floors of benchmarks: they read what they say, and refuse what is not there."""

import numpy as np
import pytest

from khop import _native

INDPTR = np.array([0, 2, 2, 5])
GRAPH = _native.Csr(INDPTR, np.array([1, 2, 0, 1, 2], np.int32))


def touch(rows, counts, edges, num_nodes=3):
    floor = _native.SampleFloor(GRAPH)
    return floor.touch(np.array(rows), np.array(counts, np.int32), np.array(edges), num_nodes)


def test_row_pointers_are_read():
    """Slots of a fresh table may hold anything, so the sum is known of a batch without edges."""
    assert touch([0, 2], [0, 0], np.zeros(0, np.int64)) == 0 + 2 + 2 + 5


def test_slots_are_read_and_written():
    """The second time a batch's slots hold what the first wrote there: the places of its edges."""
    floor = _native.SampleFloor(GRAPH)
    batch = np.array([2, 0, 1]), np.array([2, 1, 0], np.int32), np.array([4, 2, 0])
    floor.touch(*batch, 3)
    row_pointers = (2 + 5) + (0 + 2) + (2 + 2)
    assert floor.touch(*batch, 3) == row_pointers + 0 + 1 + 2


@pytest.mark.parametrize(
    ("rows", "counts", "edges"),
    [([3], [0], []), ([-1], [0], []), ([0], [1], [5]), ([0], [1], [-1]), ([0], [2], [1])],
)
def test_what_the_graph_has_not(rows, counts, edges):
    with pytest.raises(IndexError, match=r"graph has not|do not add up"):
        touch(rows, counts, np.array(edges, np.int64))


@pytest.mark.parametrize("width", [1, 63, 64, 65, 400])
def test_rows_of_a_table(width):
    """One byte of each line is read."""
    table = np.random.default_rng(0).integers(0, 256, (50, width), np.uint8)
    rows = np.array([3, 49, 0, 3])
    out = np.zeros((4, width), np.uint8)
    assert _native.gather_floor(table, rows, out) == table[rows][:, ::64].sum()
    with pytest.raises(IndexError, match="no such row"):
        _native.gather_floor(table, np.array([50]), out[:1])
    with pytest.raises(ValueError, match="a row of the table for each"):
        _native.gather_floor(table, rows, out[:3])
