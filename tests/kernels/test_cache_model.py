"""Misses of LRU and SIEVE: exact for small caches, and close by a sample for large ones."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop import _native
from support.reference.eviction import lru_misses, sieve_misses


def zipf(count, num_rows, seed=0):
    """Ids of which few are frequent, in no order."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, num_rows + 1)
    return rng.permutation(num_rows)[rng.choice(num_rows, count, p=weights / weights.sum())]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), max_size=30), max_size=6), st.integers(0, 14))
def test_small_caches_are_exact(batches, capacity):
    model = _native.CacheModel(capacity)
    for batch in batches:
        model.ask(np.array(batch, np.int64))
    ids = [row for batch in batches for row in batch]
    assert model.factor == 1
    expected = lru_misses(ids, capacity), sieve_misses(ids, capacity)
    assert model.misses == (expected if capacity else (len(ids), len(ids)))


def test_large_caches_are_sampled():
    ids = zipf(200_000, 40_000)
    exact, model = _native.CacheModel(8000, 8000), _native.CacheModel(8000, 1000)
    assert model.factor == 8
    for some in np.split(ids, 50):
        exact.ask(some)
        model.ask(some)
    for ours, theirs in zip(model.misses, exact.misses, strict=True):
        # Whether one of the most frequent rows is sampled decides the rest.
        assert abs(ours - theirs) < 0.15 * len(ids)
    assert exact.misses[1] < exact.misses[0]  # SIEVE is better for such ids


def test_sizes_out_of_range():
    with pytest.raises(ValueError, match="capacity"):
        _native.CacheModel(-1)
    with pytest.raises(ValueError, match="most"):
        _native.CacheModel(1, 0)
