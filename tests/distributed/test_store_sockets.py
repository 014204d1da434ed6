"""Calls of a job's store that wait for a network which brings nothing end with their trainer."""

import contextlib
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore

from khop.distributed.job.barrier import MonitoredBarrier
from khop.distributed.job.rendezvous import StoreRendezvous
from khop.distributed.partitions.failure_detector import FailureDetector
from khop.errors import RendezvousError

SECONDS = timedelta(seconds=30)


class MutableStore:
    """A store of torch's, and a connection to it by way of a relay that can fall silent."""

    def __init__(self):
        self.server = TCPStore("127.0.0.1", 0, 1, True, SECONDS, wait_for_workers=False)
        self.is_open, self.has_dropped = threading.Event(), threading.Event()
        self.is_open.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept)
        port = self.listener.getsockname()[1]
        self.client = TCPStore("127.0.0.1", port, 1, False, SECONDS, wait_for_workers=False)

    def _start(self, target, *args):
        threading.Thread(target=target, args=args, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.server.port))
            self._start(self._relay, near, far)
            self._start(self._relay, far, near)

    def _relay(self, source, target):
        while received := source.recv(1 << 16):
            if self.is_open.is_set():
                target.sendall(received)
            else:
                self.has_dropped.set()
        target.close()


@pytest.fixture
def store():
    store = MutableStore()
    yield store
    store.listener.close()


def test_a_call_that_waits_is_ended(store):
    separate = StoreRendezvous(store.client, "job", 0, 2, 5.0).separate()
    errors = []

    def poll():
        try:
            separate.poll("x", [1])
        except RendezvousError as error:
            errors.append(error)

    separate.publish("x", 1)
    store.is_open.clear()
    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    assert store.has_dropped.wait(10)
    separate.disconnect()
    thread.join(10)
    assert not thread.is_alive()
    assert "cannot reach the job's store" in str(errors[0])


def test_the_connection_of_others_stays(store):
    """Also that of the one that it was separated from."""
    shared = StoreRendezvous(store.client, "job", 0, 1, 5.0)
    first, second = shared.separate(), shared.separate()
    first.disconnect()
    for rendezvous in (shared, second):
        rendezvous.publish("x", 7)
        assert rendezvous.poll("x", [0]) == {0: 7}


def test_a_failure_detector_ends_while_it_waits(store, monkeypatch):
    """Its thread would abort the process if the call returned while Python ends."""
    monkeypatch.setattr("khop.distributed.partitions.failure_detector._CLOSING_SECONDS", 0.2)
    detector = FailureDetector(
        StoreRendezvous(store.client, "job", 0, 2, 5.0), "parts", lambda key, update: None
    )
    detector.look_for(1, 1)
    thread = detector._thread
    store.is_open.clear()
    assert store.has_dropped.wait(10)
    detector.close({})
    thread.join(10)
    assert not thread.is_alive()


def test_a_barrier_ends_while_it_waits(store, monkeypatch):
    """Nor does a heartbeat that waits keep its trainer."""
    monkeypatch.setattr("khop.distributed.job.barrier._CLOSING_SECONDS", 0.2)
    barrier = MonitoredBarrier(StoreRendezvous(store.client, "job", 0, 2, 5.0), "inference")
    barrier.start()
    thread = barrier._thread
    store.is_open.clear()
    assert store.has_dropped.wait(10)
    started = time.monotonic()
    barrier.close()
    assert time.monotonic() - started < 10
    assert not thread.is_alive()


def test_looking_for_sockets_leaves_none_open(store, tmp_path):
    """Nor descriptors of files, which are looked at, too."""
    shared = StoreRendezvous(store.client, "job", 0, 1, 5.0)
    with contextlib.ExitStack() as files:
        for number in range(20):
            files.enter_context((tmp_path / str(number)).open("w"))
        before = len(list(Path("/proc/self/fd").iterdir()))
        separate = shared.separate()  # a socket here, one of the server, and two of the relay
        separate.disconnect()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def test_stores_without_sockets():
    separate = StoreRendezvous(HashStore(), "job", 0, 1, 5.0).separate()
    separate.publish("x", 1)
    separate.disconnect()
    assert separate.poll("x", [0]) == {0: 1}
