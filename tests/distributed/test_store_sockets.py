"""Calls of a job's store that wait for a network which brings nothing end with their trainer."""

import contextlib
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore

from khop.distributed.job.torch_store import TorchStore
from khop.distributed.membership.barrier import Barrier
from khop.distributed.membership.members import Membership
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


def member_of(store, rank=0, lease=5.0):
    """A member of a group of two, over the connection that can fall silent."""
    return Membership(TorchStore(store.client, "job", rank), rank, 2, 5.0, lease)


def test_a_store_that_is_silent_is_an_error(store):
    """Its machine has gone, or it was stopped: who waits is told after the length of a lease."""
    with contextlib.closing(member_of(store, lease=1.0)) as member:
        member.publish("x", 1)
        store.is_open.clear()
        begin = time.monotonic()
        with pytest.raises(RendezvousError, match="job's store: it has not answered for 1 s"):
            member.poll("x", [1])
        assert 1.0 <= time.monotonic() - begin < 10
        with pytest.raises(RendezvousError, match="it has not answered for 1 s"):
            member.publish("x", 2)
    assert not member._thread.is_alive()


def test_the_connection_of_others_stays(store):
    """Also that of the one that it was separated from."""
    first, second = member_of(store), member_of(store)
    first.publish("x", 6)
    assert first.poll("x", [0]) == {0: 6}  # it is in the store: calls that set do not wait
    first.close()
    with contextlib.closing(second):
        second.publish("x", 7)
        assert second.poll("x", [0]) == {0: 7}
    assert store.client.get("job/x/0") == b"7"


def test_a_member_ends_while_it_waits(store, monkeypatch):
    """Its thread would abort the process if a call returned while Python ends."""
    monkeypatch.setattr("khop.distributed.membership.members._CLOSING_SECONDS", 0.2)
    member = member_of(store)
    member.publish("x", 1)
    store.is_open.clear()
    member.hold()
    assert store.has_dropped.wait(10)
    begin = time.monotonic()
    member.close()
    assert time.monotonic() - begin < 5
    member._thread.join(10)
    assert not member._thread.is_alive()


def test_a_barrier_ends_while_its_member_waits(store, monkeypatch):
    """What it publishes last does not keep its trainer."""
    monkeypatch.setattr("khop.distributed.membership.members._CLOSING_SECONDS", 0.2)
    with contextlib.closing(member_of(store)) as member:
        barrier = Barrier(member, "inference")
        barrier.start()
        store.is_open.clear()
        assert store.has_dropped.wait(10)
        begin = time.monotonic()
        barrier.close()
        assert time.monotonic() - begin < 2


def test_looking_for_sockets_leaves_none_open(store, tmp_path):
    """Nor descriptors of files, which are looked at, too."""
    with contextlib.ExitStack() as files:
        for number in range(20):
            files.enter_context((tmp_path / str(number)).open("w"))
        before = len(list(Path("/proc/self/fd").iterdir()))
        separate = TorchStore(store.client, "job", 0)  # here, of the server, and two of the relay
        separate.disconnect()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def test_stores_without_sockets():
    separate = TorchStore(HashStore(), "job", 0)
    separate.put("x", 1)
    separate.disconnect()
    assert separate.get("x", [0]) == {0: 1}
