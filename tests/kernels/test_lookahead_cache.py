"""Plan of a cache by announced batches: hits equal Belady's in plain Python, and slots hold."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from torch_geometric.data import Data

from khop import _native
from khop.datasets import PowerLaw
from khop.loader import NeighborLoader
from support.reference.lookahead_cache import WindowedBelady, fewest_misses

BATCHES = st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=14)


class StoredRows:
    """The rows that the plan is for: moves ids as rows, and checks each batch's content."""

    def __init__(self, capacity: int, num_rows: int = 1 << 40) -> None:
        self.cache = _native.LookaheadCache(capacity, num_rows)
        self.rows = np.full(capacity, -1)

    def take(self, number: int, ids: np.ndarray) -> set[int]:
        """Take a batch, check that it gets all of its rows, and return the hits."""
        hits, hit_slots, misses, positions, slots, repeats, originals = self.cache.take(number)
        out = np.full(len(ids), -1)
        out[hits] = self.rows[hit_slots]
        out[positions] = misses
        out[repeats] = out[originals]
        assert np.array_equal(out, ids)
        assert len(set(misses)) == len(misses)
        assert len(hits) + len(misses) + len(repeats) == len(ids)
        stored = slots >= 0
        assert len(set(slots[stored])) == stored.sum()
        self.rows[slots[stored]] = misses[stored]
        assert self.cache.num_rows <= self.cache.capacity
        return set(ids[hits].tolist())


def hits_of(
    batches: list[np.ndarray], capacity: int, window: int, num_rows: int = 1 << 40
) -> list[int]:
    """Return the hits per batch with a window of announced batches, which are the oracle's."""
    plan, oracle, counts = StoredRows(capacity, num_rows), WindowedBelady(capacity), []
    announced = 0
    for i, ids in enumerate(batches):
        while announced < min(i + 1 + window, len(batches)):
            number = plan.cache.announce(batches[announced])
            assert number == oracle.announce(batches[announced].tolist()) == announced
            announced += 1
        hits = plan.take(i, ids)
        # Of rows needed by the same batch, any may be evicted: their number decides.
        assert len(hits) == len(oracle.take(i))
        assert plan.cache.num_rows == len(oracle.rows)
        assert plan.cache.num_announced == announced - i - 1
        counts.append(len(hits))
    return counts


def as_arrays(batches: list[list[int]]) -> list[np.ndarray]:
    return [np.array(batch, np.int64) for batch in batches]


@given(BATCHES, st.integers(0, 10), st.integers(0, 6))
def test_hits_equal_the_oracle(batches, capacity, window):
    hits_of(as_arrays(batches), capacity, window)


@given(BATCHES, st.integers(13, 16), st.integers(0, 6))
def test_hits_of_a_cache_of_all_rows_equal_the_oracle(batches, capacity, window):
    """Its plan has no uses and no lists."""
    hits_of(as_arrays(batches), capacity, window, num_rows=13)


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=6), st.integers(0, 3))
def test_no_cache_has_fewer_misses(batches, capacity):
    """With all batches announced, misses are the fewest that any cache has."""
    rows = [len(set(batch)) for batch in batches]
    hits = hits_of(as_arrays(batches), capacity, len(batches))
    assert sum(rows) - sum(hits) == fewest_misses(batches, capacity)


@pytest.mark.parametrize("window", [0, 1, 4, 8])
def test_hits_of_recorded_batches_equal_the_oracle(window):
    """Batches that a loader drew of a power law, over two epochs."""
    data: Data = PowerLaw(3_000, 30_000, undirected=True, seed=3).data()
    loader = NeighborLoader(data, [5, 5], batch_size=32, shuffle=True, seed=1, input_nodes=None)
    batches = [b.n_id.numpy() for _ in range(2) for b, _ in zip(loader, range(30), strict=False)]
    hits = hits_of(batches, 300, window)
    assert sum(hits) > 0


@given(BATCHES, st.integers(0, 6), st.sampled_from([5, 1 << 40]), st.randoms(use_true_random=False))
def test_any_order_of_calls_keeps_the_rows_right(batches, capacity, num_rows, random):
    """Batches taken out of turn and forgotten, rows discarded: each batch still gets its rows.

    Also if there are more rows than the cache was made for.
    """
    plan, pending = StoredRows(capacity, num_rows), {}
    for ids in as_arrays(batches):
        pending[plan.cache.announce(ids)] = ids
        while len(pending) > random.randint(0, 5):
            number = random.choice(sorted(pending))
            taken = pending.pop(number)
            if random.random() < 0.3:
                plan.cache.forget(number)
            else:
                plan.take(number, taken)
            for closed in (number, 1 << 40, -1):
                with pytest.raises(IndexError, match=f"batch {closed} is not announced"):
                    plan.cache.take(closed)
        if random.random() < 0.2:
            lost = np.flatnonzero(np.arange(13) % random.randint(1, 5) == 0)
            plan.cache.discard(lost)
            plan.rows[np.isin(plan.rows, lost)] = -2
        if random.random() < 0.1:
            plan.cache.clear()
            assert plan.cache.num_rows == plan.cache.num_announced == 0
            pending.clear()


def test_a_row_needed_later_than_all_others_is_not_stored():
    """Batches 0 to 2 need rows 1, 2 and 1, then 3: row 3 displaces neither 1 nor 2.

    batch   0     1    2     3
    rows   1 2   3   1 2    3
    """
    cache = _native.LookaheadCache(2)
    for ids in ([1, 2], [3], [1, 2], [3]):
        cache.announce(np.array(ids))
    *_, slots, _, _ = cache.take(0)
    assert sorted(slots) == [0, 1]
    *_, slots, _, _ = cache.take(1)
    assert slots.tolist() == [-1]
    hits, *_ = cache.take(2)
    assert hits.tolist() == [0, 1]


def test_memory_does_not_grow_with_batches():
    random = np.random.default_rng(0)
    cache = _native.LookaheadCache(100)
    sizes = []
    for _ in range(300):
        cache.take(cache.announce(random.integers(0, 1 << 40, 200)))
        sizes.append(cache.nbytes)
    assert sizes[-1] == sizes[100] < 1 << 20


@pytest.mark.parametrize("capacity", [-1, 2**30 + 1])
def test_bad_capacities(capacity):
    with pytest.raises(ValueError, match="0 to 2\\^30 rows"):
        _native.LookaheadCache(capacity)
