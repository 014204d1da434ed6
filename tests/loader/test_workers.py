"""Background workers: errors surface, epochs may be left, iterators live side by side."""

import gc
import multiprocessing
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.loader.iteration.background import BackgroundIterator
from khop.sampler import NeighborSampler

_WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "process"}]
workers = pytest.mark.parametrize("workers", _WORKERS, ids=["none", "threads", "processes"])


def sampler_threads():
    return [t for t in threading.enumerate() if t.name.startswith("khop-sampler")]


def wait_for_no_threads():
    for _ in range(500):
        gc.collect()
        if not sampler_threads():
            return True
        time.sleep(0.01)
    return False


@workers
def test_leaving_an_epoch_early(data, same_epochs, workers):
    """The next epoch is whole, and the one that follows; no thread is left."""
    loader = NeighborLoader(data, [3], batch_size=20, shuffle=True, seed=1, **workers)
    reference = NeighborLoader(data, [3], batch_size=20, shuffle=True, seed=1)
    for batch in loader:
        assert batch.batch_size == 20
        break
    list(reference)
    assert same_epochs(list(loader), list(reference))
    assert same_epochs(list(loader), list(reference))
    assert wait_for_no_threads()


@workers
def test_closing_an_iterator(data, same_epochs, workers):
    """It is at its end; its batches stay due, and the loader goes on with them."""
    loader = NeighborLoader(data, [3], batch_size=20, shuffle=True, seed=1, **workers)
    whole = list(NeighborLoader(data, [3], batch_size=20, shuffle=True, seed=1))
    iterator = iter(loader)
    taken = [next(iterator), next(iterator)]
    iterator.close()
    assert list(iterator) == []
    assert wait_for_no_threads()
    loader.load_state_dict(loader.state_dict())
    assert same_epochs([*taken, *loader], whole)


@workers
def test_two_iterators_at_once(data, same_epochs, workers):
    """Each is an epoch of its own, whatever the other does."""
    loader = NeighborLoader(data, [3], batch_size=20, shuffle=True, seed=1, **workers)
    one, other = iter(loader), iter(loader)
    a, b = [], []
    for x, y in zip(one, other, strict=True):
        a.append(x)
        b.append(y)
    reference = NeighborLoader(data, [3], batch_size=20, shuffle=True, seed=1)
    assert same_epochs(a, list(reference))
    assert same_epochs(b, list(reference))


@workers
def test_deleting_a_loader_in_an_epoch(data, workers):
    loader = NeighborLoader(data, [3], batch_size=20, **workers)
    iterator = iter(loader)
    next(iterator)
    del loader
    assert next(iterator).batch_size == 20
    del iterator
    assert wait_for_no_threads()


@workers
def test_a_loader_is_freed_with_its_last_user(data, workers):
    """And its graph with it; nothing waits for the garbage collector."""
    loader = NeighborLoader(data, [3], batch_size=50, **workers)
    list(loader)
    seen = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "kind,filter_per_worker", [(NeighborLoader, False), (LinkNeighborLoader, True)]
)
def test_persistent_workers_end_with_their_loader(data, kind, filter_per_worker):
    """At once, not when the garbage collector comes by, which would wait seconds for each.

    An epoch that somebody still holds goes on, and keeps its loader.
    """
    loader = kind(
        data,
        [3],
        batch_size=50,
        num_workers=2,
        worker_type="process",
        persistent_workers=True,
        filter_per_worker=filter_per_worker,
    )
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        sizes = [[len(b.input_id) for b in loader] for _ in range(2)]
        workers = set(multiprocessing.active_children()) - before
        epoch = iter(loader)
        assert len(epoch) == len(loader)
        del loader
        assert [sizes[0], [len(b.input_id) for b in epoch]] == [sizes[1], sizes[0]]
        assert len(workers) == 2 and all(w.is_alive() for w in workers)
        del epoch
        assert not any(w.is_alive() for w in workers)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("hook", "workers"),
    [
        ("transform", {}),
        ("transform_sampler_output", {}),
        ("transform", {"num_workers": 2}),
        ("transform_sampler_output", {"num_workers": 2}),
        # Torch takes five seconds to end each worker process after an error.
        ("transform", {"num_workers": 1, "worker_type": "process"}),
    ],
)
def test_errors_surface(data, hook, workers):
    """With the type and the message they had; batches before them are delivered."""

    def fail(value):
        if hook == "transform_sampler_output" and int(value.node[0]) >= 40:
            raise ZeroDivisionError("of my own")
        if hook == "transform" and int(value.n_id[0]) >= 40:
            raise ZeroDivisionError("of my own")
        return value

    loader = NeighborLoader(data, [3], batch_size=20, **{hook: fail}, **workers)
    seen = []
    with pytest.raises(ZeroDivisionError, match="of my own"):
        for batch in loader:
            seen.append(int(batch.n_id[0]))
    assert seen == [0, 20]
    assert wait_for_no_threads()


@pytest.mark.parametrize("workers", _WORKERS[:2], ids=["none", "threads"])
def test_errors_of_a_users_sampler_surface(data, workers):
    def seeds():
        yield from range(10)
        raise KeyError("my sampler")

    class Sampler(torch.utils.data.Sampler):
        def __iter__(self):
            return seeds()

    with pytest.raises(KeyError, match="my sampler"):
        list(NeighborLoader(data, [3], sampler=Sampler(), batch_size=2, **workers))
    assert wait_for_no_threads()


def test_threads_run_ahead_but_not_without_bound(data):
    """At most `prefetch_factor` batches a thread are made before they are asked for."""
    made = []
    loader = NeighborLoader(
        data,
        [3],
        batch_size=1,
        num_workers=2,
        prefetch_factor=3,
        transform_sampler_output=lambda out: made.append(1) or out,
    )
    iterator = iter(loader)
    next(iterator)
    deadline = time.monotonic() + 10
    while len(made) < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(made) == 7  # the one that was taken, and 2 * 3 ahead


def test_transforms_run_where_the_user_iterates(data):
    """With threads: models and devices may be used in `transform`."""
    where = []

    def transform(batch):
        where.append(threading.get_ident())
        return batch

    loader = NeighborLoader(data, [3], num_workers=2, batch_size=100, transform=transform)
    list(loader)
    assert where == [threading.get_ident()] * 2


@pytest.mark.process
def test_timeout(data):
    """A batch that does not come in time is an error, not a hang."""
    release = threading.Event()
    loader = NeighborLoader(
        data,
        [3],
        num_workers=1,
        timeout=0.2,
        transform_sampler_output=lambda out: release.wait(20) and out,
    )
    try:
        with pytest.raises(RuntimeError, match=r"no batch within timeout=0\.2"):
            next(iter(loader))
    finally:
        release.set()


def test_background_keeps_the_order():
    """Tasks that end in any order are handed out in theirs."""
    tasks = [0.02, 0.0, 0.01, 0.0, 0.03, 0.0]

    def work(task):
        time.sleep(task)
        return task

    assert list(BackgroundIterator(work, tasks, 3, 4)) == tasks
    assert list(BackgroundIterator(work, [], 3, 4)) == []


def test_the_next_batch_is_begun_before_one_is_made():
    """Errors of either are raised in the turn of their batch."""
    all_ordered, done = threading.Event(), []

    def begin(task):
        assert all_ordered.wait(60)
        done.append(f"begin {task}")
        if task == 3:
            raise ValueError("3 cannot begin")
        return task, "begun"

    def make(begun):
        done.append(f"make {begun[0]}")
        return begun

    iterator = BackgroundIterator(make, range(5), 1, 5, begin=begin)
    all_ordered.set()
    assert [next(iterator) for _ in range(3)] == [(task, "begun") for task in range(3)]
    with pytest.raises(ValueError, match="3 cannot begin"):
        next(iterator)
    expected = ["begin 0", "begin 1", "make 0", "begin 2", "make 1", "begin 3", "make 2"]
    assert done[:7] == expected
    assert wait_for_no_threads()
    assert "make 3" not in done


@pytest.mark.process
def test_threads_end_with_the_interpreter():
    """Also those of an epoch that nobody has ended, while they make batches."""
    program = """
import torch
from torch_geometric.data import Data
from khop.loader import NeighborLoader
data = Data(x=torch.rand(5000, 300), edge_index=torch.randint(5000, (2, 100000)))
loader = NeighborLoader(data, [20, 20], batch_size=500, num_workers=2, prefetch_factor=8)
epochs = [iter(loader) for _ in range(3)]
print(len({len(next(epoch).input_id) for epoch in epochs}))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_after_batches_were_made_here(data, check_batch):
    """Memory that the trainer pooled is not written by two worker processes at once."""
    data.x = torch.arange(200.0).view(-1, 1).repeat(1, 3000)
    sampler = NeighborSampler(data, [-1, -1])
    options = {"neighbor_sampler": sampler, "batch_size": 25}
    kept = list(NeighborLoader(data, [-1, -1], **options))
    del kept[::2]
    gc.collect()
    loader = NeighborLoader(data, [-1, -1], num_workers=2, worker_type="process", **options)
    for batch in (*loader, *loader, *kept):
        check_batch(data, batch)


@pytest.mark.process
def test_spawned_workers(data, check_batch):
    """Loaders pickle, for worker processes that are not forked."""
    loader = NeighborLoader(data, [3, 3], batch_size=100, seed=2)
    first = next(iter(loader))
    check_batch(data, first)
    loader = NeighborLoader(
        data,
        [3, 3],
        batch_size=100,
        seed=2,
        num_workers=1,
        multiprocessing_context="spawn",
    )
    batches = list(loader)
    assert torch.equal(batches[0].n_id, first.n_id)
    assert torch.equal(batches[0].e_id, first.e_id)
