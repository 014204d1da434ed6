"""Which neighbours a row contributes: how many, which, and how likely each and each pair is.

The draws are a function of fixed keys, so these tests always give the same p-values. Thresholds:
each p above 1e-4, and all of a group together spread as p-values of true hypotheses are.
"""

import functools

import numpy as np
import pytest
from scipy import stats

from khop import _native
from support.kernels import hop_calls
from support.reference import oracle

_RUN = _native.run_key(2024, 0, 0)
_GRID = [
    (degree, k)
    for degree in (2, 3, 5, 8, 17, 30, 100, 1000, 10_000)
    for k in (1, 2, 3, 5, 10, 15, 25)
    if k < degree
]


@functools.cache
def _row(degree):
    return _native.Csr(np.array([0, degree]), np.arange(degree, dtype=np.int32))


def by_key(degree, k, replace, trials, run=_RUN):
    """[trials, k] positions drawn by one row in as many batches."""
    row, node = _row(degree), np.zeros(1, np.int64)
    return np.stack(
        [
            hop_calls.sample_rows(row, node, k, replace, _native.step_key(run, b, 0, 0), False)[1]
            for b in range(trials)
        ]
    )


def by_row(degree, k, replace, trials, key, first=0):
    """[trials, k] positions drawn by as many rows (of consecutive ids) in one batch.

    Rows share one stretch of edges: every other row pointer is 0. The rows between them, which run
    backwards, are never asked for; `row_ids` makes the ids of the others consecutive.
    """
    indptr = np.zeros(2 * trials, np.int64)
    indptr[1::2] = degree
    ids = first + np.arange(2 * trials - 1) // 2
    graph = _native.Csr(indptr, np.arange(degree, dtype=np.int32), ids)
    counts, drawn, _ = hop_calls.sample_rows(
        graph, np.arange(0, 2 * trials, 2), k, replace, key, False
    )
    assert (counts == k).all()
    return drawn.reshape(trials, k)


def p_of_singles(drawn, degree, replace):
    """Chi-square test of how often each position (or stretch of positions) is drawn."""
    trials, k = drawn.shape
    groups = next(g for g in (degree, 200, 100) if (degree % g == 0 and g <= 200) or g == 100)
    seen = np.bincount(drawn.ravel() * groups // degree, minlength=groups)
    expected = trials * k / groups
    # Without replacement counts vary less, by the hypergeometric distribution's factor.
    shrink = 1.0 if replace else (degree - k) / (degree - 1)
    return stats.chi2.sf(((seen - expected) ** 2).sum() / (expected * shrink), groups - 1)


def p_of_pairs(drawn, degree):
    """Chi-square test of how often each pair of positions is drawn together, singles set aside.

    Pair indicators of a random k-subset have a covariance that depends on the overlap alone (the
    Johnson scheme): after the additive part is taken out, d (d - 3) / 2 directions of equal
    variance p2 - 2 p3 + p4 remain, where p_m is the chance that m given positions are drawn.
    """
    trials, k = drawn.shape
    inside = np.zeros((trials, degree))
    np.put_along_axis(inside, drawn, 1, axis=1)
    together = inside.T @ inside
    np.fill_diagonal(together, 0)
    of_one, total = together.sum(1), together.sum() / 2
    part = (of_one - 2 * total / degree) / (degree - 2)
    rest = together - total / (degree * (degree - 1) / 2) - part[:, None] - part[None, :]
    np.fill_diagonal(rest, 0)
    p2, p3, p4 = (np.prod([(k - i) / (degree - i) for i in range(m)]) for m in (2, 3, 4))
    variance = trials * (p2 - 2 * p3 + p4)
    return stats.chi2.sf((rest**2).sum() / 2 / variance, degree * (degree - 3) / 2)


def ps_of_contacts(drawn, degree):
    """For long rows: do pairs of picks meet in one stretch or residue class as often as chance?"""
    trials, k = drawn.shape
    stretches, classes = drawn * 16 // degree, drawn % 8
    for groups, number in ((stretches, 16), (classes, 8)):
        sizes = np.bincount(
            np.arange(degree) * 16 // degree if number == 16 else np.arange(degree) % 8
        )
        expected = (sizes * (sizes - 1)).sum() / (degree * (degree - 1)) * k * (k - 1) / 2
        met = (groups[:, :, None] == groups[:, None, :]).sum((1, 2)) / 2 - k / 2
        z = (met.mean() - expected) / (met.std() / np.sqrt(trials))
        yield 2 * stats.norm.sf(abs(z))


def assert_true_hypotheses(ps):
    assert min(ps) > 1e-4
    assert stats.kstest(ps, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("replace", [False, True])
def test_each_neighbor_is_equally_likely(replace):
    """Single inclusion, degrees 2 to 10,000, k 1 to 25: over batches and over rows."""
    ps = []
    for i, (degree, k) in enumerate(_GRID):
        run = _native.run_key(i, 0, int(replace))
        key = _native.step_key(run, 0, 1, 0)
        ps.append(p_of_singles(by_key(degree, k, replace, 2500, run), degree, replace))
        ps.append(p_of_singles(by_row(degree, k, replace, 30_000, key), degree, replace))
    assert_true_hypotheses(ps)


def test_each_pair_of_neighbors_is_equally_likely():
    """Pairwise inclusion without replacement."""
    ps = []
    for i, (degree, k) in enumerate(_GRID):
        if k < 2 or degree < 4:
            continue
        run = _native.run_key(i, 1, 0)
        over_batches = by_key(degree, k, False, 2500, run)
        over_rows = by_row(degree, k, False, 30_000, _native.step_key(run, 0, 1, 0))
        if degree <= 100:
            ps.append(p_of_pairs(over_rows, degree))
            if degree <= 30:
                ps.append(p_of_pairs(over_batches, degree))
        else:
            ps.extend(ps_of_contacts(over_batches, degree))
            ps.extend(ps_of_contacts(over_rows, degree))
    assert_true_hypotheses(ps)


@pytest.mark.parametrize(("degree", "k"), [(4, 2), (5, 2), (5, 3), (6, 5), (8, 4)])
def test_each_subset_is_equally_likely(degree, k):
    """On small rows the whole distribution: all subsets without, all sequences with replacement."""
    for replace in (False, True):
        drawn = by_row(degree, k, replace, 40_000, _native.step_key(_RUN, degree, k, 0))
        if replace:
            code = (drawn[:, :2] * [degree, 1]).sum(1)  # the first two draws
            outcomes = degree**2
        else:
            code = (1 << drawn).sum(1)
            outcomes = len(np.unique(code))
            assert outcomes == len(set(code.tolist()))
        seen = np.bincount(code)
        seen = seen if replace else seen[seen > 0]
        assert len(seen) == outcomes
        assert stats.chisquare(seen).pvalue > 1e-4


@pytest.mark.parametrize("k", [48, 49, 100, 700])
def test_many_picks_are_uniform(k):
    """Beyond 48 picks a hash set remembers what was picked: the same algorithm, as likely."""
    degree = 1000
    drawn = by_row(degree, k, False, 4000, _native.step_key(_RUN, 0, 0, k))
    assert (np.diff(np.sort(drawn, axis=1)) > 0).all()
    assert p_of_singles(drawn, degree, False) > 1e-4
    assert min(ps_of_contacts(drawn[: 40_000_000 // k**2], degree)) > 1e-4
    key = _native.step_key(_RUN, 0, 0, k)
    for node in (0, 1, 17):
        assert drawn[node].tolist() == oracle.picks(key, node, degree, k, False)


@pytest.mark.parametrize("degree", [65_536, 65_537, 10**6])
@pytest.mark.parametrize("replace", [False, True])
def test_long_rows(degree, replace):
    """Beyond 65,536 neighbours draws take 64 bits: uniform up to the last neighbour."""
    key = _native.step_key(_RUN, 3, 0, degree)
    for k in (1, 25, 60):
        drawn = by_row(degree, k, replace, 3000, key)
        assert drawn.min() >= 0
        assert drawn.max() < degree
        assert p_of_singles(drawn, degree, replace) > 1e-4
        for node in (0, 2999):
            assert drawn[node].tolist() == oracle.picks(key, node, degree, k, replace)


def test_a_million_neighbors_at_once():
    """A row of degree 10^6: whole, and half of it without a duplicate."""
    degree = 10**6
    row, node = _row(degree), np.zeros(1, np.int64)
    _, everything, _ = hop_calls.sample_rows(row, node, -1, False, 1, False)
    assert np.array_equal(everything, np.arange(degree))
    _, half, _ = hop_calls.sample_rows(row, node, degree // 2, False, 1, False)
    assert len(np.unique(half)) == degree // 2
    assert p_of_singles(half[None, :], degree, False) > 1e-4


@pytest.mark.parametrize("degree", [1, 2, 7, 48, 49, 200])
@pytest.mark.parametrize("k", [1, 2, 7, 47, 48, 49, 199, 200, 201])
def test_counts_and_duplicates(degree, k):
    """min(k, degree) distinct neighbours; a row of at most k is taken whole and in order."""
    counts, drawn, edges = hop_calls.sample_rows(
        _row(degree), np.zeros(3, np.int64), k, False, 11, True
    )
    assert counts.tolist() == [min(k, degree)] * 3
    assert np.array_equal(drawn, edges)  # neighbour i is edge i here
    one = drawn[: counts[0]]
    assert len(set(one.tolist())) == len(one)
    if k >= degree:
        assert one.tolist() == list(range(degree))


@pytest.mark.parametrize("k", [1, 5, 300])
def test_counts_with_replacement(k):
    """Exactly k draws, however few the neighbours; none without neighbours; all for -1."""
    node = np.zeros(1, np.int64)
    for degree in (1, 3, 100):
        counts, drawn, _ = hop_calls.sample_rows(_row(degree), node, k, True, 5, False)
        assert counts.tolist() == [k]
        assert set(drawn.tolist()) <= set(range(degree))
        counts, drawn, _ = hop_calls.sample_rows(_row(degree), node, -1, True, 5, False)
        assert drawn.tolist() == list(range(degree))
    counts, drawn, _ = hop_calls.sample_rows(_row(0), node, k, True, 5, False)
    assert counts.tolist() == [0]
    assert len(drawn) == 0


_CONTEXTS = {
    "hops": ({"hop": 0}, {"hop": 1}),
    "batches": ({"batch": 0}, {"batch": 1}),
    "far batches": ({"batch": 1}, {"batch": 1 + 2**32}),
    "hop and batch swapped": ({"hop": 1, "batch": 2}, {"hop": 2, "batch": 1}),
    "edge types": ({"edge_type": 0}, {"edge_type": 1}),
    "streams": ({"stream": 0}, {"stream": 1}),
    "seeds": ({"seed": 0}, {"seed": 1}),
    "epochs": ({"epoch": 0}, {"epoch": 1}),
    "neighbouring ids": ({"first": 0}, {"first": 1}),
    "ids 2^32 apart": ({"first": 0}, {"first": 2**32}),
}


def _in_context(k, replace, seed=9, epoch=0, stream=0, batch=0, hop=0, edge_type=0, first=0):
    run = _native.run_key(seed, epoch, stream)
    key = _native.step_key(run, batch, hop, edge_type)
    return by_row(20, k, replace, 20_000, key, first)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("name", _CONTEXTS)
def test_draws_of_different_contexts_are_independent(name, replace):
    """The same nodes' draws in two contexts: joint distribution of draws, overlap of sets."""
    a, b = (_in_context(5, replace, **context) for context in _CONTEXTS[name])
    for i, j in ((0, 0), (0, 1), (4, 4)):
        table = np.histogram2d(a[:, i], b[:, j], bins=(5, 5), range=((0, 20), (0, 20)))[0]
        table = table[table.any(1)][:, table.any(0)]  # the first pick never is one of the last
        assert stats.chi2_contingency(table).pvalue > 1e-4
    if not replace:
        overlap = (a[:, :, None] == b[:, None, :]).sum((1, 2))
        chance = stats.hypergeom(20, 5, 5)
        seen = np.bincount(np.minimum(overlap, 4), minlength=5)
        expected = np.append(chance.pmf(np.arange(4)), chance.sf(3)) * len(a)
        assert stats.chisquare(seen, expected).pvalue > 1e-4


def test_inclusion_is_uncorrelated_along_batches_and_ids():
    """Autocorrelation of one position's inclusion, lags 1 to 20, over batches and over ids."""
    for drawn in (by_key(20, 5, False, 20_000), by_row(20, 5, False, 20_000, 77)):
        inside = (drawn == 3).any(1) - 0.25
        n = len(inside)
        q = sum((inside[lag:] @ inside[:-lag] / (inside @ inside)) ** 2 for lag in range(1, 21)) * n
        assert stats.chi2.sf(q, 20) > 1e-4
