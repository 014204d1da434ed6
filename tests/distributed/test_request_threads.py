"""Requests in turns: a slice of one, a slice of another; none outlives its sender or its server."""

import contextlib
import os
import threading

import pytest
import zmq

from khop import _native
from khop.distributed.rpc.limits import Limits
from khop.distributed.rpc.request_threads import RequestThreads


class SlicedHandler:
    """A request is the number of slices that it takes; each takes a second of the clock."""

    def __init__(self):
        self.stop = _native.StopFlag()
        self.now = 0.0
        self.log = []

    def steps(self, frames, source=None):
        name, count = bytes(frames[0]).decode().split()
        for i in range(int(count)):
            self.now += 1.0
            self.log.append(f"{name}{i}")
            if i + 1 < int(count):
                yield
        return [f"{name} is done".encode()]


@pytest.fixture
def handler():
    return SlicedHandler()


@pytest.fixture
def turns(handler):
    """Requests that the test itself processes, slice by slice."""
    made = RequestThreads(handler, 0, Limits(waiting=1000), clock=lambda: handler.now)
    yield made
    made.close()


def put(turns, user, request, peer=None):
    assert turns.put(user, 0, (peer or user).encode(), [zmq.Frame(request.encode())])


def test_a_small_request_waits_for_one_slice_of_many_large_ones(turns, handler):
    """However many wait, over however many connections, and however long they take."""
    for number in range(100):
        put(turns, "flood", "large 1000", f"peer{number % 40}")
    for _ in range(50):
        turns.work()
    put(turns, "honest", "small 1")
    turns.work()
    turns.work()
    assert handler.log.count("small0") == 1
    assert turns.replies() == [(0, b"honest", [b"small is done"])]


def test_equal_users_get_equal_time(turns, handler):
    """Requests of ten slices and of one slice."""
    for _ in range(40):
        put(turns, "a", "a 10")
        put(turns, "b", "b 1")
    for _ in range(60):
        turns.work()
    assert abs(sum(entry.startswith("a") for entry in handler.log) - 30) <= 1


def test_replies_of_a_connection_come_in_order(turns):
    """A request that is not done comes before the next of its connection."""
    for name in "xyz":
        put(turns, "a", f"{name} 3")
    while turns.has_work:
        turns.work()
    assert [frames for _, _, [frames] in turns.replies()] == [
        b"x is done", b"y is done", b"z is done",
    ]  # fmt: skip


def test_an_error_that_is_no_refusal_fails_its_request_alone(turns):
    """The handler catches its own; this is the guard behind it."""
    put(turns, "a", "nonsense")
    put(turns, "a", "y 1")
    turns.work(), turns.work()
    (_, _, failed), (_, _, done) = turns.replies()
    assert b"the server failed at this request" in failed[0] and done == [b"y is done"]


def test_nothing_is_made_for_who_does_not_read(handler):
    """Also for requests that were let in before."""
    unread = {b"a": 0}
    turns = RequestThreads(
        handler, 0, Limits(unread_bytes=100), unread.__getitem__, lambda: handler.now
    )
    put(turns, "a", "x 1"), put(turns, "a", "y 1")
    turns.work()
    unread[b"a"] = 101
    turns.work()
    (_, _, done), (_, _, refused) = turns.replies()
    assert done == [b"x is done"] and b"has not read 101 bytes" in refused[0]
    assert handler.log == ["x0"]
    turns.close()


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_work_for_who_has_gone_ends_at_its_next_slice(turns, handler, transport, tmp_path):
    """Its connection is closed; other connections are not."""
    with contextlib.ExitStack() as stack:
        router = stack.enter_context(zmq.Context()).socket(zmq.ROUTER)
        stack.callback(router.close, 0)
        router.bind(f"ipc://{tmp_path}/s" if transport == "ipc" else "tcp://127.0.0.1:*")
        for name in ("gone", "here"):
            theirs = zmq.Context()
            stack.callback(theirs.destroy, 0)
            dealer = theirs.socket(zmq.DEALER)
            dealer.connect(router.getsockopt_string(zmq.LAST_ENDPOINT))
            dealer.send(f"{name} 100".encode())
            peer, *frames = router.recv_multipart(copy=False)
            turns.put(name, 0, peer.bytes, frames)
            descriptor = frames[0].get(zmq.SRCFD)
            if name == "gone":
                turns.work()
                theirs.destroy(0)
                while is_open(descriptor):
                    router.poll(10)
        for _ in range(20):
            turns.work()
        assert handler.log.count("gone0") == 1 and "gone1" not in handler.log
        assert "here10" in handler.log
        assert turns.replies() == []


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class EndlessHandler(SlicedHandler):
    """Works until it is stopped, without a slice."""

    def __init__(self):
        super().__init__()
        self.is_busy, self.stopped = threading.Event(), threading.Event()
        self.stop = self

    def set(self):
        self.stopped.set()

    def steps(self, frames, source=None):
        self.is_busy.set()
        assert self.stopped.wait(20)
        yield
        raise AssertionError("it was not dropped")


def test_threads_at_work_end_when_they_are_closed():
    """Whatever they do and whatever waits; nothing is worked at any more."""
    handler = EndlessHandler()
    threads = RequestThreads(handler, 2, Limits())
    before = threading.active_count()
    for number in range(10):
        put(threads, str(number), "x 1")
    assert handler.is_busy.wait(10)
    threads.close()
    assert threading.active_count() == before - 2
    threads.close()
