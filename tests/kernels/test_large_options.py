"""Options at size: rows of a million, a frontier of 10^5, wide ids."""

import numpy as np
import pytest

from khop import _native
from support.kernels import hop_calls
from support.kernels.shared_rows import draw, shared_rows
from support.reference import oracle, sampler
from support.reference.sampler import Entry, Options, Row

RUN = _native.run_key(11, 0, 0)


@pytest.mark.parametrize("window", [2**16, 2**16 + 1, 10**6 - 7])
@pytest.mark.parametrize("replace", [False, True])
def test_words_are_wide_by_what_is_left_of_a_row(window, replace):
    """Of a million, what is seen and not excluded decides: 64 bits beyond 65,536 neighbours."""
    degree, hidden = 10**6, np.array([0, 1, 500, 40_000, 65_000])
    graph, ids = shared_rows(1, degree, times=np.arange(degree))
    left = np.delete(np.arange(window + len(hidden)), hidden)
    for count in (5, 60):
        drawn = draw(graph, ids, count, replace, 5, hidden, times=window + len(hidden) - 1)
        assert drawn[0].tolist() == left[oracle.picks(5, 0, window, count, replace)].tolist()


def test_the_latest_of_a_million():
    degree = 10**6
    graph, ids = shared_rows(3, degree, times=np.arange(degree) // 10)
    hidden = np.arange(0, degree, 3)
    for count in (7, 200_000):
        drawn = draw(graph, ids[:1], count, False, 5, hidden, times=70_000, last=True)
        left = np.setdiff1d(np.arange(700_010), hidden)[-count:]
        assert np.array_equal(drawn[0], left)


def test_thousands_by_weight():
    """3,000 of 100,000 without replacement: none twice, none of weight zero, heavy ones first."""
    degree = 10**5
    weights = np.random.default_rng(0).pareto(1.0, degree)
    weights[::7] = 0
    graph, ids = shared_rows(2, degree, weights)
    drawn = draw(graph, ids, 3000, False, 5, weighted=True)
    for row in drawn:
        assert len(set(row.tolist())) == 3000
        assert (weights[row] > 0).all()
        assert np.median(weights[row[:300]]) > 2 * np.median(weights[weights > 0])
    assert drawn[0].tolist() != drawn[1].tolist()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_frontier_of_a_hundred_thousand(last, replace):
    """Every option at once, in an id space of 2^40: some rows by the oracle, all by what holds.

    Row v's neighbours are the 12 after it, at times 0 to 5, twice each; weights repeat 0, 1, 2, 3.
    """
    n, degree, count, key = 10**5, 12, 4, 99
    base, num_nodes = 2**40 - 10**5, 2**40
    local = (np.arange(n)[:, None] + 1 + np.arange(degree)) % n
    indptr = np.arange(n + 1) * degree
    weights = np.arange(n * degree) % 4 * 1.0
    sums, guide = _native.weight_table(indptr, weights)
    times = np.tile(np.arange(degree) // 2, n)
    graph = _native.Csr(
        indptr,
        local.ravel() + base,
        first_row=base,
        times=times,
        weight_sums=sums,
        weight_guide=guide,
    )
    rng = np.random.default_rng(1)
    seeds, seed_times = rng.permutation(n) + base, rng.integers(-1, 7, n)
    hidden = (
        seeds[::5].copy(),
        base + (seeds[::5] - base + 6) % n,
    )  # the sixth neighbour of each fifth
    batch = _native.Subgraph([num_nodes], [(0, 0)], True, True)
    batch.begin()
    batch.add_seeds(0, seeds, seed_times)
    batch.exclude(0, *hidden)
    hop_calls.hop(batch, 0, graph, count, replace, key, True, last)
    row, col, edge = np.empty((3, batch.num_edges(0)), np.int64)
    batch.write_edge_index(0, row, col)
    batch.write_edges(0, edge)
    nodes, trees, _ = batch.members(0)

    assert np.array_equal(trees[row], trees[col])
    assert np.array_equal(nodes[row], base + local.ravel()[edge])
    assert np.array_equal(nodes[col], base + edge // degree)
    assert (times[edge] <= seed_times[col]).all()
    assert (weights[edge] > 0).all()
    assert not np.isin(edge, (hidden[0] - base) * degree + 5).any()
    assert batch.edges_per_hop(0) == [len(row)]
    if not replace:
        assert len(np.unique(col * (n * degree) + edge)) == len(edge)

    options = Options([[count]], [True], replace, last)
    bounds = np.searchsorted(col, [np.arange(n), np.arange(1, n + 1)])
    integers = sampler.integer_weights([0.0, 1.0, 2.0, 3.0] * 3)
    excluded = dict(zip(*(side.tolist() for side in hidden), strict=True))
    for i in range(0, n, 97):
        v = int(seeds[i])
        first = (v - base) * degree
        neighbors = (base + local[v - base]).tolist()
        entries = map(Entry, neighbors, range(first, first + degree), [*range(6)] * 2, integers)
        entries = [e._replace(time=t // 2) for t, e in enumerate(entries)]
        picked = sampler.contribution(
            *(Row(v, entries), count, options, True, key, i, int(seed_times[i])),
            {excluded[v]} if v in excluded else (),
        )
        assert edge[bounds[0, i] : bounds[1, i]].tolist() == [first + p for p in picked]


def test_a_second_hop_from_wide_trees():
    """10^5 trees in 2^40 ids: each tree walks along a ring of its own, and none meets another."""
    n = 10**5
    base = 2**40 - n
    graph = _native.Csr(np.arange(n + 1), base + (np.arange(n) + 1) % n, first_row=base)
    batch = _native.Subgraph([2**40], [(0, 0)], False, True)
    batch.begin()
    batch.add_seeds(0, np.arange(n) + base)
    hop_calls.sample(batch, [graph], [[2, 2, 2]], False, [False], False, RUN, 0)
    nodes, trees, _ = batch.members(0)
    assert np.array_equal(nodes - base, (np.tile(np.arange(n), 4) + np.repeat(range(4), n)) % n)
    assert np.array_equal(trees, np.tile(np.arange(n), 4))
    row, col = np.empty((2, 3 * n), np.int64)
    batch.write_edge_index(0, row, col)
    assert np.array_equal(row, col + n)
    keys = batch.keys(0)
    assert np.array_equal(keys >> 40, trees)
    assert np.array_equal(keys & (2**40 - 1), nodes)
