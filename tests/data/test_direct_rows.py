"""Rows of files past the page cache: equal to the mapped file's, with a cache of bounded bytes."""

import os
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop.data import RowFormat, rows_on_disk
from khop.data.direct_reads import ProcessReads
from khop.data.direct_rows import DiskOptions
from khop.data.waiter import waiter
from khop.errors import RowStoreError


@pytest.fixture
def saved(tmp_path):
    """saved(shape, dtype): a file of random rows, and the rows."""

    def saved(shape, dtype="float32"):
        rows = (np.random.default_rng(0).random(shape) * 200).astype(dtype)
        np.save(tmp_path / "rows.npy", rows)
        return tmp_path / "rows.npy", rows

    return saved


def result(out, ticket):
    """Wait for a read that `start` returned."""
    if ticket is not None:
        waiter().wait([ticket], timeout=30)
        ticket.result()
    return out


@pytest.mark.parametrize("engine", ["auto", "threads"])
@pytest.mark.parametrize("cache_memory", [0, "4400KB", "64MB"])
@pytest.mark.parametrize(
    "shape,dtype",
    [
        *(((5000,), "float32"), ((701, 3), "uint8"), ((999, 2, 5), "float64")),
        *(((3001, 128), "float32"), ((50, 10_000), "float32"), ((1, 7), "int16")),
    ],
)
def test_rows_are_those_of_the_file(saved, shape, dtype, cache_memory, engine):
    """Many reads in flight, with repeats: each gets its rows, whoever has read them."""
    path, rows = saved(shape, dtype)
    store = rows_on_disk(path, cache_memory=cache_memory, engine=engine)
    assert (store.num_rows, store.stored) == (len(rows), RowFormat(dtype, rows.shape[1:]))
    rng, started = np.random.default_rng(1), []
    for turn in range(30):
        ids = rng.integers(len(rows), size=rng.integers(300))
        started.append((ids, *store.start(ids)))
        if turn % 7 == 0:
            assert (store.gather(ids.astype(np.int32)) == rows[ids]).all()
    for ids, out, ticket in reversed(started):
        assert (result(out, ticket) == rows[ids]).all()
    assert store.counts().missed <= store.counts().asked
    assert (store.array == rows).all()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["expect", "read", "expected"]),
            st.lists(st.integers(0, 299), max_size=30),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.integers(0, 40),
)
def test_any_order_of_calls(tmp_path_factory, calls, cached):
    """Batches that are expected, read in any order, or never; waits at any time."""
    path = tmp_path_factory.getbasetemp() / "any.npy"
    rows = np.arange(300 * 25, dtype=np.int64).reshape(300, 25)
    if not path.exists():
        np.save(path, rows)
    store = rows_on_disk(path, cache_memory=(4 << 20) + cached * 400)
    expected, started = [], []
    for call, drawn, waits in calls:
        ids = np.array(drawn, np.int64)
        if call == "expect":
            store.expect(ids)
            expected.append(ids)
            continue
        if call == "expected" and expected:
            ids = expected.pop(len(drawn) % len(expected))
        started.append((ids, *store.start(ids)))
        if waits:
            ids, out, ticket = started.pop()
            assert (result(out, ticket) == rows[ids]).all()
    for ids, out, ticket in started:
        assert (result(out, ticket) == rows[ids]).all()


def test_rows_that_are_needed_again_are_not_read_again(saved):
    path, rows = saved((1000, 64))
    store = rows_on_disk(path, cache_memory="64MB")
    ids = np.arange(0, 1000, 2)
    for _ in range(3):
        assert (store.gather(ids) == rows[ids]).all()
    assert store.counts()[:2] == (1500, 500)
    other = store.start(np.arange(1000))
    assert store.counts().missed == 1000
    assert (result(*other) == rows).all()


def test_expected_rows_are_kept_and_read_ahead(saved):
    """The announced batch wins over rows that were used later; half of them are read ahead."""
    path, rows = saved((4000, 64))
    left = 300 * (256 + 96) * 8 // 7 + 8  # 7/8 of it: 300 rows
    store = rows_on_disk(path, cache_memory=(4 << 20) + left)
    batches = [np.arange(i, i + 100) for i in (0, 1000, 0, 2000, 0, 3000, 0)]
    for ids in batches:
        store.expect(ids)
    for ids in batches:
        out, ticket = store.start(ids)
        assert (result(out, ticket) == rows[ids]).all()
    assert store.counts()[:2] == (700, 400)


def test_rows_ahead_are_handed_over(saved):
    """The rows of an expected batch are there before it is read."""
    path, rows = saved((500, 64))
    store = rows_on_disk(path, cache_memory="16MB")
    ids = np.array([7, 3, 7, 499])
    store.expect(ids)
    store.expect(np.array([1]))
    assert store.counts().asked == 4
    out, ticket = store.start(ids)
    assert (result(out, ticket) == rows[ids]).all()
    store.expect(ids)
    store.expect(ids)
    target = np.zeros((4, 64), np.float32)
    ticket = store.read(ids, target)
    assert (result(target, ticket) == rows[ids]).all()


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_a_file_that_is_cut_off(saved, engine):
    """Reads of rows that are gone fail, those that wait for the same rows too, and no other."""
    path, rows = saved((1000, 64))
    store = rows_on_disk(path, cache_memory="64MB", engine=engine)
    assert (store.gather(np.array([5])) == rows[5]).all()
    os.truncate(path, 128 + 500 * 256)
    good, bad = np.array([5, 499, 0]), np.array([3, 500])
    started = [store.start(ids) for ids in (bad, good, bad, np.array([4, 3]))]
    for (out, ticket), ids in zip(started, (None, good, None, np.array([4, 3])), strict=True):
        if ids is None:
            with pytest.raises(RowStoreError, match="ends before its rows"):
                result(out, ticket)
        else:
            assert (result(out, ticket) == rows[ids]).all()
    assert (store.gather(np.array([3, 5])) == rows[[3, 5]]).all()


def test_an_error_of_the_disk(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    reads = ProcessReads(descriptor, "a folder", 0, RowFormat("int64"), 10, 0)
    out = np.zeros(3, np.int64)
    ticket = reads.read(np.arange(3), out)
    with pytest.raises(IsADirectoryError, match="a folder"):
        result(out, ticket)
    reads.close()
    os.close(descriptor)


def test_close_with_reads_in_flight(saved):
    path, rows = saved((200_000, 32))
    store = rows_on_disk(path)
    ids = np.arange(200_000)
    started = [store.start(ids), store.start(ids[::2])]
    store.close()
    for out, ticket in started:
        with pytest.raises(RowStoreError, match="was closed"):
            result(out, ticket)
    assert (store.gather(ids[::3]) == rows[::3]).all()


def test_many_threads(saved):
    """Any thread that waits takes what has landed for all."""
    path, rows = saved((3000, 40))
    store = rows_on_disk(path, cache_memory="4500KB")
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            ids = rng.integers(3000, size=200)
            if not (store.gather(ids) == rows[ids]).all():
                wrong.append(ids)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.process
def test_a_fork_and_a_pickle_read_for_themselves(saved):
    path, rows = saved((3000, 40))
    store = rows_on_disk(path)
    ids = np.arange(0, 3000, 3)
    pending = store.start(ids)
    child = os.fork()
    if child == 0:
        is_right = (store.gather(ids) == rows[ids]).all() and store.counts().asked == 1000
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (result(*pending) == rows[ids]).all()
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.gather(ids) == rows[ids]).all()
    assert copy.options == store.options


def test_memory_of_the_cache_is_bounded(saved):
    """Rows, their plan and batches that are read ahead stay below `cache_memory`."""
    path, _ = saved((20_000, 64))
    store = rows_on_disk(path, cache_memory="6MB")
    rng = np.random.default_rng(0)
    for _ in range(20):
        store.expect(rng.integers(20_000, size=300))
    for _ in range(30):
        store.gather(rng.integers(20_000, size=3000))
    reads = store._of_process()
    assert reads._early <= reads._most_early
    plan = reads._cache.nbytes + reads._owners.nbytes + reads._positions.nbytes
    assert (4 << 20) + reads._most_early + reads._table.nbytes <= 6 << 20
    assert reads._table.nbytes > 1 << 20
    assert plan < 2 << 20  # rows of batches that are announced count here, too


def test_bad_arguments(saved, tmp_path):
    path, _ = saved((10, 4))
    with pytest.raises(ValueError, match="engine must be one of"):
        rows_on_disk(path, engine="magic")
    with pytest.raises(TypeError, match="'bfloat16' is not stored as 'float32'"):
        rows_on_disk(path, "bfloat16")
    with pytest.raises(ValueError, match="must not be negative"):
        rows_on_disk(path, cache_memory=-1)
    with pytest.raises(IndexError):
        rows_on_disk(path).gather(np.array([10]))
    with pytest.raises(IndexError):
        rows_on_disk(path).expect(np.array([-1]))
    with pytest.raises(FileNotFoundError):
        rows_on_disk(tmp_path / "none.npy")
    np.save(tmp_path / "one.npy", np.float32(3))
    with pytest.raises(ValueError, match="has no rows"):
        rows_on_disk(tmp_path / "one.npy")
    np.save(tmp_path / "wide.npy", np.zeros((1, 1 << 18)))
    with pytest.raises(ValueError, match="rows of 2097152 bytes"):
        rows_on_disk(tmp_path / "wide.npy")


def test_bfloat16(saved):
    path, rows = saved((10, 4), "uint16")
    store = rows_on_disk(path, "bfloat16")
    assert (store.dtype, store.delivered.nbytes) == ("bfloat16", 8)
    assert (store.gather(np.array([9, 0])) == rows[[9, 0]]).all()


def test_options_as_json():
    options = DiskOptions(("a", "b"), 100)
    assert DiskOptions.from_json(list(options)) == options
    assert DiskOptions.from_json(None) is None
    assert options.among(3).cache_memory == 33
