"""One hop of hotness: the log-probability that nobody draws a node, against brute force."""

import functools
import operator

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=6, max_size=6),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
    st.integers(-1, 9),
    st.booleans(),
)
def test_equals_brute_force(rows, frontier, fanout, replace):
    """Each row that is reached draws each of its entries with the chance that its fan-out gives."""
    missed = np.ones(6)
    for reached, row in zip(frontier, rows, strict=True):
        for neighbor in row:
            chance = 1.0 if fanout < 0 else min(1.0, fanout / len(row))
            if replace and fanout >= 0:
                chance = 1 - (1 - 1 / len(row)) ** fanout
            missed[neighbor] *= 1 - reached * chance
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    graph = _native.Csr(indptr, np.array(functools.reduce(operator.iadd, rows, []), np.int64))
    log_missed = np.zeros(6)
    _native.accumulate_hotness(graph, np.array(frontier), fanout, replace, log_missed)
    np.testing.assert_allclose(np.exp(log_missed), missed, atol=1e-12)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("degree", [1, 2, 3, 7, 1000, 10**6])
def test_few_units_in_the_last_place(replace, degree):
    """Logarithms and exponentials of our own, against NumPy's in extended precision."""
    graph = _native.Csr(np.array([0, degree]), np.arange(degree, dtype=np.int32))
    rng = np.random.default_rng(degree)
    log_missed = np.zeros(degree)
    for fanout in (1, 2, 5, 30, 999, 10**5):
        drawn = min(np.longdouble(1), fanout / np.longdouble(degree))
        if replace and degree > 1:
            drawn = -np.expm1(fanout * np.log1p(-1 / np.longdouble(degree)))
        for frontier in (*rng.random(9), *10.0 ** -rng.integers(1, 300, 9), 0.5, 1.0):
            missed = 1 - frontier * drawn
            if missed < 1e-9:  # the rounding of what is drawn is all that is left
                continue
            log_missed[0] = 0
            _native.accumulate_hotness(graph, np.array([frontier]), fanout, replace, log_missed)
            error = log_missed[0] / np.log1p(-frontier * drawn) - 1
            assert abs(error) < 1e-15 / missed


def test_bad_arguments():
    graph = _native.Csr(np.array([0, 1, 2]), np.array([1, 5]))
    ones = np.ones(2)
    with pytest.raises(IndexError, match="not below the number of nodes"):
        _native.accumulate_hotness(graph, ones, 1, False, np.zeros(2))
    with pytest.raises(ValueError, match="frontier must hold 2 entries"):
        _native.accumulate_hotness(graph, np.ones(3), 1, False, np.zeros(9))
    for out in (np.zeros(9, np.float32), np.zeros(18)[::2]):  # a converted copy would be lost
        with pytest.raises(TypeError):
            _native.accumulate_hotness(graph, ones, 1, False, out)
