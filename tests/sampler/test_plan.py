"""An epoch's batches by index alone."""

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from khop.sampler.plan import EpochPlan, epoch_order, seeds_of


@given(st.integers(0, 60), st.integers(1, 20), st.booleans())
def test_batches_as_torch_makes_them(num_seeds, batch_size, drop_last):
    plan = EpochPlan(num_seeds, batch_size, drop_last)
    seeds = list(range(num_seeds))
    expected = [seeds[i : i + batch_size] for i in range(0, num_seeds, batch_size)]
    if drop_last:
        expected = [batch for batch in expected if len(batch) == batch_size]
    got = [seeds_of(None, *plan.bounds(b)).tolist() for b in range(plan.num_batches)]
    assert got == expected


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 15))
def test_a_number_of_batches_that_was_asked_for(num_seeds, batch_size, asked):
    """Every seed once, in order, in batches whose sizes differ by one at most (or as usual)."""
    plan = EpochPlan(num_seeds, batch_size, num_batches_asked=asked)
    batches = [range(*plan.bounds(b)) for b in range(plan.num_batches)]
    assert [i for batch in batches for i in batch] == list(range(num_seeds))
    sizes = [len(batch) for batch in batches]
    if asked != EpochPlan(num_seeds, batch_size).num_batches:
        assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 60), st.integers(1, 20), st.integers(0, 15))
def test_dropping_the_last_keeps_batches_full(num_seeds, batch_size, asked):
    assume(asked <= num_seeds // batch_size)
    plan = EpochPlan(num_seeds, batch_size, True, asked)
    got = [plan.bounds(b) for b in range(plan.num_batches)]
    assert got == [(b * batch_size, (b + 1) * batch_size) for b in range(asked)]


def test_order():
    """A permutation that the key decides; None where nothing is shuffled."""
    assert epoch_order(10, 1, False) is None
    a, b = epoch_order(100, 1, True), epoch_order(100, 2, True)
    assert sorted(a) == sorted(b) == list(range(100))
    assert not np.array_equal(a, b)
    assert np.array_equal(a, epoch_order(100, 1, True))
    assert seeds_of(a, 3, 7).tolist() == a[3:7].tolist()


@pytest.mark.parametrize("batch_size", [0, -3])
def test_batch_sizes_that_make_no_batches(batch_size):
    with pytest.raises(ValueError, match="at least 1"):
        EpochPlan(10, batch_size)


@pytest.mark.parametrize("batch_size", [1.5, True, None, "3"])
def test_batch_sizes_that_are_no_integers(batch_size):
    with pytest.raises(TypeError, match="must be an integer"):
        EpochPlan(10, batch_size)


def test_batches_that_do_not_exist():
    for batch in (-1, 4):
        with pytest.raises(IndexError, match=f"batch {batch} of an epoch of 4 batches"):
            EpochPlan(10, 3).bounds(batch)


LISTS = st.lists(st.integers(0, 30), min_size=1, max_size=4)


@given(LISTS, st.integers(1, 20), st.booleans(), st.integers(0, 12))
def test_lists_that_do_not_mix(lists, batch_size, drop_last, more):
    """Each list's seeds once and in order, batches by turns, as many as were asked for."""
    plan = EpochPlan(sum(lists), batch_size, drop_last, None, lists)
    alone = [EpochPlan(n, batch_size, drop_last).num_batches for n in lists]
    assert plan.num_batches == sum(alone)
    if not drop_last:
        asked = min(plan.num_batches + more, plan.num_seeds)
        plan = EpochPlan(sum(lists), batch_size, False, asked, lists)
        assert plan.num_batches == asked
    owner = np.repeat(np.arange(len(lists)), lists)
    taken = [[] for _ in lists]
    for batch in range(plan.num_batches):
        places = list(range(*plan.bounds(batch)))
        assert {plan.list_of(batch)} == set(owner[places].tolist())
        assert 1 <= len(places) <= batch_size
        taken[plan.list_of(batch)].extend(places)
    for number, places in enumerate(taken):
        kept = np.flatnonzero(owner == number)
        if drop_last:
            kept = kept[: len(kept) // batch_size * batch_size]
        assert places == kept.tolist()
    turns = [plan.list_of(batch) for batch in range(plan.num_batches)]
    assert turns[: sum(bool(places) for places in taken)] == sorted(set(turns))


@given(LISTS, st.integers(0, 2**64 - 1))
def test_order_within_lists(lists, key):
    order = epoch_order(sum(lists), key, True, lists)
    ends = np.cumsum(lists)
    for first, last in zip(ends - lists, ends, strict=True):
        assert sorted(order[first:last]) == list(range(first, last))


def test_lists_of_other_seeds():
    with pytest.raises(ValueError, match=r"lists of \[3, 4\] seeds for 8 seeds"):
        EpochPlan(8, 2, lists=[3, 4])
