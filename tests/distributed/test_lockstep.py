"""Trainers in lockstep: slow ones are waited for, those that fail or fall silent end all."""

import threading
import time

import pytest
from torch._C._distributed_c10d import HashStore

from khop.distributed.job import barrier as lockstep
from khop.distributed.job.barrier import MonitoredBarrier
from khop.distributed.job.rendezvous import StoreRendezvous
from khop.errors import PartitionUnavailableError, RendezvousError


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch):
    """Beats ten times as fast."""
    monkeypatch.setattr(lockstep, "_BEAT_SECONDS", 0.1)


def run_trainers(*programs, timeout=1.5):
    """What each program, a trainer's in a thread of its own, returned or raised."""
    store = HashStore()
    results = [None] * len(programs)

    def run(rank, program):
        try:
            rendezvous = StoreRendezvous(store, "test", rank, len(programs), timeout)
            with MonitoredBarrier(rendezvous, "work") as together:
                results[rank] = program(together)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(programs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


def test_values_of_all():
    """In the order of ranks, step by step; a trainer may be slower than the timeout."""

    def program(number):
        def run(together):
            time.sleep(1.5 * number)
            first = together.all_gather("first", {"number": number})
            return [v["number"] for v in first], together.all_gather("second", number**2)

        return run

    expected = ([0, 1, 2], [0, 1, 4])
    assert run_trainers(program(0), program(1), program(2)) == [expected] * 3
    assert run_trainers(lambda together: together.all_gather("only", None)) == [[None]]


def test_failure_ends_all():
    """Who waits and who works hears of it; the failed one raises its own exception."""

    def fail(together):
        raise ArithmeticError("no good")

    def work(together):
        while True:
            together.check()
            time.sleep(0.01)

    first, second, third = run_trainers(fail, work, lambda t: t.all_gather("step", 1), timeout=30)
    assert isinstance(first, ArithmeticError)
    for other in (second, third):
        assert isinstance(other, RendezvousError)
        assert "work: trainer 0 has failed with ArithmeticError: no good" in str(other)


def test_failure_that_comes_of_another(monkeypatch):
    """A server that is gone because its trainer has failed: it is the trainer that is named."""
    monkeypatch.setattr(lockstep, "_BEAT_SECONDS", 60)  # no beat tells of it

    def fail(together):
        raise ArithmeticError("no good")

    def suffer(together):
        while not together.rendezvous.poll(f"{together._name}/failed", [0]):
            time.sleep(0.01)
        raise PartitionUnavailableError("gone")

    first, second = run_trainers(fail, suffer, timeout=30)
    assert isinstance(first, ArithmeticError)
    assert isinstance(second, RendezvousError) and "ArithmeticError" in str(second)
    assert isinstance(second.__cause__ or second.__context__, PartitionUnavailableError)


def test_silence_ends_all():
    """One that left without a word, and one that never came."""

    def leave(together):
        together.all_gather("begin", 0)

    def go_on(together):
        together.all_gather("begin", 0)
        together.all_gather("end", 0)

    begin = time.monotonic()
    gone, waiting = run_trainers(leave, go_on)
    assert gone is None
    assert isinstance(waiting, RendezvousError)
    assert "trainer 1 waits in work for trainer 0, which has not been heard of" in str(waiting)
    alone = StoreRendezvous(HashStore(), "test", 0, 2, 1.0)
    with (
        pytest.raises(RendezvousError, match=r"has not been heard of for \d s.*has not begun"),
        MonitoredBarrier(alone, "work") as together,
    ):
        together.all_gather("begin", 0)
    assert time.monotonic() - begin < 10
