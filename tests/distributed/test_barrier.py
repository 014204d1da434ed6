"""Members in lockstep: slow ones are waited for, those that fail or fall silent end all.

Over both places of values and leases: torch's store, and the directory of a graph server.
"""

import contextlib
import itertools
import re
import threading
import time

import pytest
from torch._C._distributed_c10d import HashStore

from khop.distributed.job.torch_store import TorchStore
from khop.distributed.membership import barrier as lockstep, members as membership
from khop.distributed.membership.barrier import Barrier
from khop.distributed.membership.members import Membership
from khop.distributed.remote import directory_client
from khop.distributed.remote.client.client_context import DirectoryStore
from khop.errors import PartitionUnavailableError, RendezvousError
from support.cluster.serving import client_of, serving

NAMES = itertools.count()


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch):
    """Beats and looks more often: leases are short here."""
    monkeypatch.setattr(membership, "_BEAT_SECONDS", 0.1)
    monkeypatch.setattr(lockstep, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(directory_client, "_BEAT", 0.3)


@pytest.fixture(scope="module")
def served(folder_of):
    """A graph server, which has a directory."""
    with serving(folder_of("random", 1)) as graph:
        yield graph


@pytest.fixture(params=["store", "directory"])
def group(request, served):
    """Returns group(size, timeout, lease): a membership of each member, by rank."""
    with contextlib.ExitStack() as stack:

        def make(size, timeout=1.5, lease=2.0, ranks=None):
            name, store = f"group-{next(NAMES)}", HashStore()
            made = []
            for rank in range(size) if ranks is None else ranks:
                if request.param == "store":
                    values = TorchStore(store, name, rank)
                else:
                    values = DirectoryStore(stack.enter_context(client_of(served, rank)), name)
                    values._directory.wait_for_table(lambda table: True, "an answer")
                made.append(Membership(values, rank, size, timeout, lease))
                stack.callback(made[-1].close)
            return made

        make.backend = request.param
        yield make


def run_members(members, *programs):
    """What each program, a member's in a thread of its own, returned or raised."""
    results = [None] * len(programs)

    def run(rank, program):
        try:
            with Barrier(members[rank], "work") as together:
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


def test_values_of_all(group):
    """In the order of ranks, step by step; a member may be slower than timeout and lease."""

    def program(number):
        def run(together):
            first = together.all_gather("first", {"number": number})
            time.sleep(1.2 * number)
            return [v["number"] for v in first], together.all_gather("second", number**2)

        return run

    members = group(3, timeout=1.0, lease=2.0)
    expected = ([0, 1, 2], [0, 1, 4])
    assert run_members(members, program(0), program(1), program(2)) == [expected] * 3
    for member in members:
        member.close()
    if group.backend == "store":  # values of earlier steps are deleted
        assert members[0]._store.get("work/first", range(3)) == {}


def test_alone(group):
    members = group(1)
    assert run_members(members, lambda together: together.all_gather("only", None)) == [[None]]


def test_failure_ends_all(group):
    """Who waits and who works hears of it; the failed one raises its own exception."""

    def fail(together):
        raise ArithmeticError("no good")

    def work(together):
        while True:
            together.check()
            time.sleep(0.01)

    first, second, third = run_members(
        group(3, timeout=30, lease=30), fail, work, lambda t: t.all_gather("step", 1)
    )
    assert isinstance(first, ArithmeticError)
    for other in (second, third):
        assert isinstance(other, RendezvousError)
        assert "work: " in str(other)
        assert "0 has failed with ArithmeticError: no good" in str(other)


def test_failure_that_comes_of_another(group, monkeypatch):
    """A server that is gone because its trainer has failed: it is the trainer that is named."""
    monkeypatch.setattr(lockstep, "_LOOK_SECONDS", 60)  # no look tells of it

    def fail(together):
        time.sleep(0.2)
        raise ArithmeticError("no good")

    def suffer(together):
        while not together._members.announced("work/failed", [0]):
            time.sleep(0.01)
        raise PartitionUnavailableError("gone")

    first, second = run_members(group(2, timeout=30), fail, suffer)
    assert isinstance(first, ArithmeticError)
    assert isinstance(second, RendezvousError) and "ArithmeticError" in str(second)
    assert isinstance(second.__cause__ or second.__context__, PartitionUnavailableError)


def silence(member):
    """The member's process is stopped, as far as others can see; returns what lets it go on."""
    while not member._store.sightings([member.rank]):
        time.sleep(0.01)
    client = getattr(member._store, "_directory", None)
    if client is not None:
        before, client._register = client._register, lambda: None
        return lambda: setattr(client, "_register", before)
    before, member._store.renew = member._store.renew, lambda *_, **__: None
    return lambda: setattr(member._store, "renew", before)


def test_silence_ends_all(group):
    """One that was stopped is named, and is told so when it goes on."""
    members = group(3)
    given_up = threading.Event()

    def stop(together):
        together.all_gather("begin", 0)
        go_on = silence(members[0])
        assert given_up.wait(10)
        go_on()
        while True:
            together.check()
            time.sleep(0.01)

    def wait(together):
        together.all_gather("begin", 0)
        try:
            together.all_gather("end", 0)
        finally:
            given_up.set()

    stopped, first, second = run_members(members, stop, wait, wait)
    for error in (stopped, first, second):
        assert isinstance(error, RendezvousError)
    assert "waits in work for" in str(first) + str(second)
    for error in (first, second):  # the second may hear of the first one's finding
        assert re.search(r"0, which has not been heard of for \d s \(process", str(error))
    assert "has given up this process, which has not been heard of for" in str(stopped)


def test_never_begun(group):
    """One that never came, and one that lives and does something else."""
    (alone,) = group(2, timeout=1.0, ranks=[0])
    with (
        pytest.raises(RendezvousError, match=r"1, which has not been heard of for \d s.*not begun"),
        Barrier(alone, "work") as together,
    ):
        together.all_gather("begin", 0)


def test_busy_elsewhere(group):
    waiting, elsewhere = group(2, timeout=1.0)
    elsewhere.hold()
    with (
        pytest.raises(RendezvousError, match=r"1, which is alive, but has not begun it in 1 s"),
        Barrier(waiting, "work") as together,
    ):
        together.all_gather("begin", 0)


def test_end_without_a_step(group):
    """Who ends in order, and leaves out a step, is noticed at once."""
    begin = time.monotonic()
    ended, waiting = run_members(
        group(2, timeout=30, lease=30),
        lambda together: together.all_gather("begin", 0),
        lambda together: [together.all_gather(step, 0) for step in ("begin", "end")],
    )
    assert ended == [0, 0]
    assert isinstance(waiting, RendezvousError)
    assert "0, which has ended it without this step" in str(waiting)
    assert time.monotonic() - begin < 10


@contextlib.contextmanager
def client_members(graph, name, *ranks, size=2, **options):
    """Memberships of clients, which end with the block."""
    with contextlib.ExitStack() as stack:
        made = []
        for rank in ranks:
            client = stack.enter_context(client_of(graph, rank))
            client.wait_for_table(lambda table: True, "an answer")
            made.append(Membership(DirectoryStore(client, name), rank, size, **options))
            stack.callback(made[-1].close)
        yield made


def test_clients_of_an_earlier_start_do_not_count(served):
    """A predecessor is known to have gone: its successor, which is late, is waited for."""
    step = lambda together: together.all_gather("begin", together._members.rank)  # noqa: E731
    with client_members(served, "job", 0, 1, timeout=20, lease=20) as members:
        assert run_members(members, step, step) == [[0, 1]] * 2
    with client_members(served, "again", 0, timeout=20, lease=20) as (first,):
        results = []

        def wait():
            with contextlib.suppress(RendezvousError), Barrier(first, "work") as together:
                results.append(step(together))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(1.0)
        with client_members(served, "again", 1, timeout=20, lease=20) as (second,):
            with Barrier(second, "work") as together:
                results.append(step(together))
            thread.join(20)
    assert results == [[0, 1]] * 2


def test_a_directory_that_is_started_again_ends_nobody(folder_of):
    """It is away for longer than a lease: nobody is heard of, and nobody is given up."""
    with (
        serving(folder_of("random", 1)) as graph,
        client_members(graph, "job", 0, 1, timeout=20, lease=2.0) as members,
    ):

        def go_on(together):
            together.all_gather("begin", 0)
            if together._members.rank == 0:
                graph.kill(0)
                time.sleep(3.0)
                graph.start(0, port=int(graph.master.rpartition(":")[2]))
            return together.all_gather("end", together._members.rank)

        assert run_members(members, go_on, go_on) == [[0, 1]] * 2
