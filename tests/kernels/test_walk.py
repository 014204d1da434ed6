"""Walks by one call of the kernels: those of the oracle, step by step."""

import numpy as np
import pytest

from khop import _native
from support.kernels.walks import ONE, chances_of, rows_of, star, walked
from support.reference import oracle
from support.reference.random_walks import walk


@pytest.mark.parametrize("dtypes", [(np.int32, np.int32), (np.int64, np.int64)])
@pytest.mark.parametrize("repeats", [0, 5])
@pytest.mark.parametrize(("p", "q"), [(1, 1), (0.5, 2), (100, 100), (0.01, 20), (0.02, 1), (30, 1)])
def test_walks_are_those_of_the_oracle(p, q, repeats, dtypes):
    """Hubs have tables of their rows; bad chances end in draws from whole rows."""
    indptr, indices = star(repeats)
    csr = _native.Csr(indptr.astype(dtypes[0]), indices.astype(dtypes[1]))
    starts = [0, 1, 2, 199, 0, 201, *range(2, 40)]
    stops = [0, ONE // 5, 0, 0, 0, 0]
    nodes, edges = walked(csr, starts, 6, chances_of(p, q), stops)
    rows, run_key = rows_of(indptr, indices), oracle.run_key(7, 0, 0)
    for i, start in enumerate(starts):
        of_one = walk([rows] * 6, start, i, run_key, p, q, stops, batch=3, first_step=2)
        assert (nodes[i].tolist(), edges[i].tolist()) == of_one


def test_rows_of_a_part_are_keyed_by_original_ids():
    indptr, indices = star(0)
    original = np.random.default_rng(0).permutation(202).tolist()
    plain = _native.Csr(indptr, indices, row_ids=np.array(original), first_edge=1000)
    nodes, edges = walked(plain, [2, 3, 4], 5)
    rows = rows_of(indptr, indices)
    keyed = {original[v]: [(original[x], e) for x, e in row] for v, row in rows.items()}
    run_key = oracle.run_key(7, 0, 0)
    for i in range(3):
        of_one = walk([keyed] * 5, original[2 + i], i, run_key, batch=3, first_step=2)
        assert ([original[v] for v in nodes[i]], (edges[i] - 1000).tolist()) == of_one


@pytest.mark.parametrize("chances", [(ONE, ONE, ONE), chances_of(4, 0.25)])
def test_threads_change_nothing(chances):
    csr = _native.Csr(*star(3))
    starts = np.random.default_rng(1).integers(0, 202, 9000)
    stops = [0] * 3 + [ONE // 3] * 5
    alone = walked(csr, starts, 8, chances, stops)
    together = walked(csr, starts, 8, chances, stops, num_threads=3)
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_walks_without_a_step():
    csr = _native.Csr(*star(0))
    assert walked(csr, np.arange(150), 0)[0].tolist() == [[v] for v in range(150)]
    nodes, _ = walked(csr, np.arange(150), 3, stops=[ONE, 0, 0])
    assert (nodes[:, 1:] == -1).all()
    assert walked(csr, [], 3)[0].shape == (0, 4)


@pytest.mark.parametrize("chances", [(ONE, ONE, ONE), chances_of(4, 0.25)])
def test_damaged_graphs(chances):
    for neighbor in (-1, 2, 2**40):
        csr = _native.Csr(np.array([0, 1, 2]), np.array([1, neighbor]))
        with pytest.raises(IndexError, match=f"node {neighbor} is not one of the graph's rows"):
            walked(csr, [0], 4, chances)
    with pytest.raises(IndexError, match="node 5 is not"):
        walked(csr, [5], 4, chances)
    csr = _native.Csr(np.array([0, 9, 2]), np.array([1, 0]))
    with pytest.raises(RuntimeError, match="row pointers are corrupt"):
        walked(csr, [0], 4, chances)


def test_bad_arguments():
    csr = _native.Csr(*star(0))
    two = np.zeros(2, np.int64), np.empty((2, 4), np.int64), None
    for given, error, message in (
        (([csr], [0, 0], [0, 0], (ONE, ONE, ONE), 0, 0, 0, *two), ValueError, r"shape \[2, 3\]"),
        (([csr], [0, 1, 0], [0] * 3, (ONE, ONE, ONE), 0, 0, 0, *two), IndexError, "no such edge"),
        (([csr], [0] * 3, [0], (ONE, ONE, ONE), 0, 0, 0, *two), ValueError, "stops must hold 3"),
        (([csr], [0] * 3, [0] * 3, (0, 1, 1), 0, 0, 0, *two), ValueError, "from 1 to"),
        (([csr] * 2, [0, 1, 0], [0] * 3, (2, 1, 1), 0, 0, 0, *two), ValueError, "one edge type"),
        (([None], [0] * 3, [0] * 3, (1, 1, 1), 0, 0, 0, *two), TypeError, "graphs must hold"),
    ):
        with pytest.raises(error, match=message):
            _native.random_walks(*given)
