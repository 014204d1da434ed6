"""Trainers that find each other in a store where others have been before."""

import contextlib
import itertools
import signal
import threading
import time

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore

from khop.distributed.job.torch_store import TorchStore
from khop.distributed.job.worker_group import establish_generation
from khop.distributed.membership.members import Membership
from khop.errors import RendezvousError


class Stopped(BaseException):
    """What a handler of a signal raises."""


@contextlib.contextmanager
def signalled(after=0.1):
    """A signal comes in a moment, whose handler raises `Stopped`; fails if it took effect late."""

    def stop(*_):
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    begin = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begin < 30


def call(stores, world_size, delays, timeout=5.0):
    """What each trainer that comes, {rank: seconds after the first}, is told or raises.

    Trainers share a store, or have each their own connection.
    """
    results = {}

    def run(rank, delay):
        store = stores[rank] if isinstance(stores, list) else stores
        time.sleep(delay)
        try:
            results[rank] = establish_generation(store, "group", rank, world_size, timeout)
        except RendezvousError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=item) for item in delays.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_generation_has_the_same_name_for_all(order):
    """All are told the same name, whoever comes first, and another one each time."""
    store, names = HashStore(), set()
    for _ in range(3):
        found = call(store, 3, {rank: 0.1 * place for place, rank in enumerate(order)})
        assert found.keys() == {0, 1, 2}
        assert len(set(found.values())) == 1
        names.add(found[0])
    assert len(names) == 3
    assert all(isinstance(name, str) for name in names)


def test_alone():
    """Who is the only trainer waits for nobody."""
    assert call(HashStore(), 1, {0: 0.0}, timeout=0.0)[0]


def test_missing():
    """Who is not there is named, even if it was there before."""
    store = HashStore()
    call(store, 3, {0: 0.0, 1: 0.0, 2: 0.0})
    found = call(store, 3, {0: 0.0, 1: 0.0}, timeout=0.5)
    assert "for trainer(s) [2] to call init_worker_group" in str(found[0])
    assert "trainer 0 has not found either" in str(found[1])
    found = call(store, 3, {1: 0.0, 2: 0.0}, timeout=0.5)
    assert all("for trainer 0 to call" in str(error) for error in found.values())


def test_second_try():
    """The first trainer gives up and tries again: those who still wait answer again."""
    store = HashStore()
    first = threading.Thread(target=call, args=(store, 3, {0: 0.0}, 0.3))
    first.start()
    found = call(store, 3, {1: 0.0, 0: 0.6, 2: 0.8})
    first.join()
    assert len({found[0], found[1], found[2]}) == 1
    assert isinstance(found[0], str)


def test_killed_between():
    """A trainer that was there but went no further is not taken for its successor."""
    store = HashStore()
    gone = call(store, 3, {2: 0.0}, timeout=0.1)
    assert isinstance(gone[2], RendezvousError)
    gone = call(store, 3, {0: 0.0, 2: 0.0}, timeout=0.3)
    assert all(isinstance(error, RendezvousError) for error in gone.values())
    found = call(store, 3, {0: 0.0, 1: 0.0, 2: 0.5})
    assert len(set(found.values())) == 1
    assert isinstance(found[2], str)


def connections(count):
    """A store of this process, and further connections to it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    others = [TCPStore("127.0.0.1", store.port, wait_for_workers=False) for _ in range(count - 1)]
    return [store, *others]


def test_waiting_is_silent(capfd):
    """Torch's stores warn of each wait that takes longer than it may: nothing waits in them."""
    stores = connections(3)
    found = call(stores, 3, {0: 0.0, 1: 0.0, 2: 0.6})
    assert len(set(found.values())) == 1
    waiting = Membership(TorchStore(stores[0], "group", 0), 0, 2, 0.3)
    with (
        contextlib.closing(waiting),
        pytest.raises(RendezvousError, match=r"waited 0 s for trainer\(s\) \[1\] to begin"),
    ):
        waiting.wait_for("value", [1], "begin")
    assert capfd.readouterr() == ("", "")


def test_waiting_can_be_interrupted():
    """A signal's exception ends it at once, long before the timeout."""
    (store,) = connections(1)
    waiting = Membership(TorchStore(store, "group", 0), 0, 2, 60.0)
    with contextlib.closing(waiting), signalled(), pytest.raises(Stopped):
        waiting.wait_for("value", [1], "begin")
    with signalled(), pytest.raises(Stopped):
        establish_generation(store, "group", 1, 2, 60.0)
