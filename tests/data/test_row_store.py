"""Row stores that are not at hand: views of them, tickets, and what a thread waits for."""

import os
import pickle
import threading

import numpy as np
import pytest

from khop.data import CachedRows, Feature, ReadThreads, ReadTicket, RowStore, TicketGroup, waiter
from khop.data.joined import JoinedFeature, TakenFeature
from khop.data.steps import run
from khop.data.waiter import Waiter
from khop.errors import RowStoreError
from support.row_stores import HeldRows, ReapedRows, ThreadRows, rows_of

IDS = np.array([7, 0, 99, 7])


def views(make):
    """{name: (view, rows of all its ids)} of what `make(number of rows)` returns."""
    table = rows_of(np.arange(100))
    order = np.array([5, 99, 5, 0] * 25, np.int32)
    return {
        "itself": (make(100), table),
        "taken": (TakenFeature(make(100), order), table[order]),
        "joined": (JoinedFeature([make(60), Feature(table[60:])]), table),
        "joined twice": (
            JoinedFeature([make(60), Feature(table[:30]), make(10)]),
            np.concatenate([table[:60], table[:30], table[:10]]),
        ),
        "cached": (CachedRows(Feature(table), [7, 50]), table),
    }


@pytest.mark.parametrize("name", ["itself", "taken", "joined", "joined twice", "cached"])
@pytest.mark.parametrize("ids", [IDS, IDS.astype(np.int32), np.arange(100)[::-1], IDS[:0]])
def test_views_of_stores_that_threads_read(name, ids, tmp_path):
    """As NumPy indexes the whole array; also at positions of a longer array."""
    view, expected = views(lambda count: ThreadRows(tmp_path, count))[name]
    assert (view.num_rows, view.dtype, view.row_shape) == (100, "float32", (3,))
    assert np.array_equal(view.gather(ids), expected[ids])
    out, places = np.zeros((200, 3), np.float32), np.arange(len(ids)) * 2
    assert view.gather(ids, out, places) is out
    assert np.array_equal(out[places], expected[ids])
    assert np.array_equal(view.array, expected)
    with pytest.raises(IndexError, match="id 100 at position 1"):
        view.start(np.array([0, 100]))


def test_copies_of_hot_rows_are_read_once():
    store = HeldRows()
    thread = threading.Thread(target=lambda: made.append(CachedRows(store, [7, 50])))
    made = []
    thread.start()
    while not store.pending:
        pass
    store.complete()
    thread.join()
    (cached,) = made
    out, ticket = cached.start(np.array([50, 3, 7]))
    assert [ids.tolist() for _, ids, _ in store.pending] == [[3]]
    assert not ticket.done
    store.complete()
    ticket.result()
    assert np.array_equal(out, rows_of([50, 3, 7]))


def test_rows_are_there_when_the_result_is():
    """Parts of a group are done in any order; an error of one is the error of all."""
    first, second, finished = ReadTicket(), ReadTicket(), []
    group = TicketGroup([first, second], lambda: finished.append(1))
    second.succeed()
    assert not group.done
    first.succeed()
    assert group.done
    assert not finished
    group.result()
    group.result()
    assert finished == [1]
    failed = ReadTicket()
    failed.fail(OSError("the disk is gone"))
    failed.succeed()  # too late
    with pytest.raises(OSError, match="the disk is gone"):
        TicketGroup([failed], finished.clear).result()
    assert finished


def test_descriptors_are_waited_for():
    """Nothing but the eventfd says that rows are there; two reads share it."""
    store = ReapedRows()
    joined = JoinedFeature([store, Feature(rows_of([1])), store])
    timer = threading.Timer(0.02, store.kernel_is_done)
    timer.start()
    ids = np.array([150, 3, 100, 4])
    assert np.array_equal(joined.gather(ids), rows_of([49, 3, 1, 4]))
    timer.join()
    store.close()


def test_what_is_late_fails_and_what_is_not_does_not():
    now = [0.0]
    own = Waiter(lambda: now[0])
    store = HeldRows()
    late, early = (store.start(IDS)[1] for _ in range(2))
    own.add([late], 5.0)
    own.add([early], 60.0)
    now[0] = 5.5
    own.collect()
    assert (late.done, early.done) == (True, False)
    with pytest.raises(RowStoreError, match=r"no rows in 5\.5 s, more than the 5 s .*timeout"):
        late.result()
    store.complete()  # writes to memory of its own, that of nobody else
    store.complete()
    own.collect()
    early.result()


def test_a_run_ends_with_the_error_of_its_store(tmp_path):
    """And what is waited for next, by the same thread, is not disturbed."""
    store = ThreadRows(tmp_path, 100)
    (tmp_path / "fail-7").touch()
    with pytest.raises(Exception, match="row 7 is locked") as raised:
        store.gather(IDS)
    assert type(raised.value).__name__ == "OperationalError"
    assert np.array_equal(store.gather(IDS[1:3]), rows_of(IDS[1:3]))

    def steps():
        out, ticket = store.start(IDS[1:3])
        yield [ticket]
        ticket.result()
        return out

    assert np.array_equal(run(steps()), rows_of(IDS[1:3]))


def test_tickets_that_nobody_completes():
    class Request:
        done = False

    with pytest.raises(RuntimeError, match="waits for another partition"):
        waiter.waiter().wait([Request()])

    class Odd(HeldRows):
        def read(self, ids, out):
            return out

    with pytest.raises(TypeError, match=r"Odd\.read must return None or a ReadTicket"):
        Odd().start(IDS)


def test_an_interrupted_wait_gives_its_memory_to_nobody():
    """The read goes on after Ctrl-C: it writes to an array that no later read has."""
    store = HeldRows()

    def interrupt():
        raise KeyboardInterrupt

    def steps():
        _, ticket = store.start(IDS)
        ticket.notify(lambda: None)
        yield [Interrupting(interrupt), ticket]

    class Interrupting:
        def __init__(self, action):
            self._action = action

        @property
        def done(self):
            if store.pending[0][0].done:
                return True
            self._action()
            return False

    with pytest.raises(KeyboardInterrupt):
        run(steps())
    _, _, given_up = store.pending[0]
    others = [store.start(IDS)[0] for _ in range(20)]
    for other in others:
        other[:] = 1
    store.complete()
    assert not any(np.shares_memory(given_up, other) for other in others)
    assert all((other == 1).all() for other in others)


def test_closing_with_reads_in_flight(tmp_path):
    """What has begun ends; what has not fails; then there is nothing more to read."""
    threads, holding, go = ReadThreads(), threading.Event(), threading.Event()

    def hold():
        holding.set()
        go.wait(20)

    begun = threads.submit(hold)
    assert holding.wait(20)
    queued = threads.submit(lambda: None)
    threads.close()
    go.set()
    waiter.waiter().wait([begun, queued])
    begun.result()
    with pytest.raises(RowStoreError, match="closed before the rows were read"):
        queued.result()
    with pytest.raises(RowStoreError, match="has been closed"):
        threads.submit(hold)
    assert pickle.loads(pickle.dumps(threads)).submit(lambda: None) is not None


@pytest.mark.process
def test_a_fork_reads_with_threads_and_a_waiter_of_its_own(tmp_path):
    store = ThreadRows(tmp_path, 100)
    assert np.array_equal(store.gather(IDS), rows_of(IDS))
    (tmp_path / "hold-7").touch()
    _, ticket = store.start(IDS)  # in flight in the parent
    own = waiter.waiter()
    own.add([ticket])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            same = np.array_equal(store.gather(IDS[1:3]), rows_of(IDS[1:3]))
            code = 0 if same and waiter.waiter() is not own else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (tmp_path / "hold-7").unlink()
    waiter.waiter().wait([ticket])
    ticket.result()


def test_a_store_must_read():
    with pytest.raises(TypeError, match="abstract method read"):
        RowStore()
