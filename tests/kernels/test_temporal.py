"""Draws before a time: the row is a prefix of itself, drawn uniformly or from its end.

     time 1    1    2    4       of the edges into v, in row order;
v <------ a    b    c    d       a seed at time 2 sees a, b and c
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop import _native
from support.kernels import hop_calls
from support.kernels.shared_rows import draw, shared_rows
from support.reference.statistics import assert_true_hypotheses, p_of_outcomes

RUN = _native.run_key(8, 0, 0)
INT64 = np.iinfo(np.int64)
TIMES = [1, 1, 2, 4]


@pytest.mark.parametrize(
    ("time", "seen"),
    [(INT64.min, 0), (0, 0), (1, 2), (2, 3), (3, 3), (4, 4), (INT64.max, 4), (None, 4)],
)
@pytest.mark.parametrize("replace", [False, True])
def test_seed_sees_only_times_not_after_its_own(time, seen, replace):
    """Times not after its own; everything without a time. Ties are all in or all out."""
    graph, ids = shared_rows(500, 4, times=TIMES)
    assert draw(graph, ids, -1, replace, 1, times=time).tolist() == [list(range(seen))] * 500
    for count in (1, 2, 3, 9):
        drawn = draw(graph, ids, count, replace, 1, times=time)
        assert set(drawn.ravel().tolist()) == set(range(seen))
        size = count if replace else min(count, seen)
        assert drawn.shape == (500, size if seen else 0)


@pytest.mark.parametrize("time", [INT64.min, INT64.max])
def test_the_ends_of_time(time):
    """The first and the last time that there are: equal times see each other."""
    graph, ids = shared_rows(1, 3, times=[INT64.min, 0, INT64.max])
    seen = [0] if time == INT64.min else [0, 1, 2]
    assert draw(graph, ids, -1, False, 1, times=time).tolist() == [seen]


@pytest.mark.parametrize(
    ("time", "count", "latest"),
    [
        (4, 1, [3]),
        (4, 3, [1, 2, 3]),
        (3, 2, [1, 2]),
        (1, 1, [1]),  # of equal times the one that comes last in the row
        (1, 3, [0, 1]),
        (0, 2, []),
        (4, -1, [0, 1, 2, 3]),
        (4, 0, []),
        (None, 2, [2, 3]),
    ],
)
def test_the_latest(time, count, latest):
    """The last of what is seen, in row order, without a draw."""
    graph, ids = shared_rows(2, 4, times=TIMES)
    for key in (1, 2):
        drawn = draw(graph, ids, count, False, key, times=time, last=True)
        assert drawn.tolist() == [latest] * 2


def test_the_latest_with_replacement():
    """Draws from the last two: each of the four sequences as likely."""
    graph, ids = shared_rows(8000, 4, times=TIMES)
    drawn = draw(graph, ids, 2, True, 5, times=4, last=True)
    chances = dict.fromkeys(itertools.product((2, 3), repeat=2), 0.25)
    assert p_of_outcomes(list(map(tuple, drawn.tolist())), chances) > 1e-4


@pytest.mark.parametrize("replace", [False, True])
def test_uniform_over_the_visible_prefix(replace):
    """Every subset of what is seen is as likely; with replacement every sequence."""
    times = [0, 1, 1, 1, 2, 3, 5, 5]
    graph, ids = shared_rows(8000, 8, times=times)
    ps = []
    for time, seen in ((1, 4), (2, 5), (4, 6), (5, 8)):
        for count in (1, 2, 3):
            key = _native.step_key(RUN, time, count, 0)
            drawn = draw(graph, ids, count, replace, key, times=time)
            if replace:
                outcomes = list(itertools.product(range(seen), repeat=min(count, 2)))
                drawn = drawn[:, :2]
            else:
                outcomes = list(itertools.combinations(range(seen), count))
                drawn = np.sort(drawn, axis=1)
            chances = dict.fromkeys(outcomes, 1 / len(outcomes))
            ps.append(p_of_outcomes(list(map(tuple, drawn.tolist())), chances))
    assert_true_hypotheses(ps)


@settings(max_examples=150)
@given(st.lists(st.integers(0, 4), max_size=12), st.integers(-1, 5), st.data())
def test_a_row_in_the_past_is_the_row_as_it_was(times, now, data):
    """Bit for bit what a graph gives that ends at that time, and of it the last ones."""
    times = np.array(sorted(times), np.int64)
    indices = np.arange(len(times)) * 3
    seen = int((times <= now).sum())
    count, replace = data.draw(st.integers(-1, 6)), data.draw(st.booleans())
    key, node = data.draw(st.integers(0, 2**64 - 1)), np.zeros(1, np.int64)
    graph = _native.Csr(np.array([0, len(times)]), indices, times=times)

    def earlier(first):
        graph = _native.Csr(np.array([0, seen - first]), indices[first:seen], first_edge=first)
        return [a.tolist() for a in hop_calls.sample_rows(graph, node, count, replace, key, True)]

    for last in (False, True):
        got = hop_calls.sample_rows(
            graph, node, count, replace, key, True, last=last, times=np.array([now])
        )
        first = max(0, seen - count) if last and count >= 0 else 0
        assert [a.tolist() for a in got] == earlier(first)


def test_each_tree_has_its_own_time():
    """One node is the seed of five trees; at each hop the time is that of the tree's seed.

     time 3       time 1
    0 <------ 1 <------ 2
      <------ 3
     time 5
    """
    graph = _native.Csr(np.array([0, 2, 3, 3, 3]), np.array([1, 3, 2]), times=np.array([3, 5, 1]))
    batch = _native.Subgraph([4], [(0, 0)], True, True)
    batch.begin()
    batch.add_seeds(0, np.zeros(3, np.int64), np.array([2, 5, 4]))
    batch.add_seeds(0, np.array([1, 1]), np.array([0, 1]))
    hop_calls.sample(batch, [graph], [[-1, -1]], False, [False], False, 1, 1)
    ids, trees, times = (a.tolist() for a in batch.members(0))
    assert list(zip(ids, trees, strict=True)) == [
        *((0, 0), (0, 1), (0, 2), (1, 3), (1, 4)),
        *((1, 1), (3, 1), (1, 2), (2, 4)),
        *((2, 1), (2, 2)),
    ]
    assert times == [[2, 5, 4, 0, 1][t] for t in trees]


def test_times_of_one_edge_type_alone():
    """An edge type without times is drawn as ever beside one with times, also by the latest."""
    plain = _native.Csr(np.array([0, 3]), np.array([0, 1, 2]))
    timed = _native.Csr(np.array([0, 3]), np.array([3, 4, 5]), times=np.array([1, 2, 3]))
    batch = _native.Subgraph([6, 1], [(0, 1), (0, 1)], True, True)
    firsts = set()
    for number in range(20):
        batch.begin()
        batch.add_seeds(1, np.zeros(1, np.int64), np.array([2]))
        hop_calls.sample(batch, [plain, timed], [[1], [1]], False, [False] * 2, True, 1, number)
        first, second = batch.members(0)[0].tolist()
        assert second == 4
        firsts.add(first)
    assert firsts == {0, 1, 2}
