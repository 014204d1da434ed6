"""Assignment, restarts and endpoint updates of samplers: with fake processes, in milliseconds."""

import errno
import json

import pytest

from khop.channel.control import Op
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.sampling.process_handle import SamplerProcess
from khop.distributed.sampling.process_pool import ProcessPool
from khop.errors import SamplerDiedError
from support.cluster.fake_samplers import FakeProgram


@pytest.fixture
def program():
    program = FakeProgram()
    yield program
    program.started.clear()


class Pool(ProcessPool):
    """A pool that starts fake processes.

    Args:
        program: starts them.
    """

    def __init__(self, program, *arguments):
        super().__init__(*arguments)
        self.program = program

    def start_next(self):
        """Starts the next process that is missing."""
        self.add(SamplerProcess.start(self.program, self.missing, {}, 1 << 16, []))


def make_pool(program, num_samplers=2, max_restarts=3, started=None, session=None, endpoints=None):
    """A pool some of whose processes were started (all, if None)."""
    calls = SamplerProcess.request_batches, SamplerProcess.read
    pool = Pool(program, num_samplers, max_restarts, *calls, endpoints, session)
    for _ in range(num_samplers if started is None else started):
        pool.start_next()
    return pool


def read(pool, index):
    """Batches and errors that a sampler has sent."""
    sampler = next(s for s in pool.samplers if s.index == index)
    return list(pool.receive(sampler))


def keys(*batches):
    return [(0, batch) for batch in batches]


def test_batches_go_to_the_least_loaded(program):
    pool = make_pool(program, 3)
    pool.assign(keys(0, 1, 2, 3))
    assert program.asked() == [keys(0, 3), keys(1), keys(2)]
    program.started[1].deliver((0, 1))
    ((key, received),) = read(pool, 1)
    assert key == (0, 1)
    assert received.named()["ids"][0].tolist() == [1] * 4
    assert pool.least_loaded().index == 1
    pool.assign(keys(4, 5))
    assert program.asked() == [keys(0, 3), keys(1, 4, 5), keys(2)]
    assert pool.in_flight == set(keys(0, 2, 3, 4, 5))


def test_batches_ahead_stay_with_the_sampler_that_draws_them(program):
    """They count as its work. A sampler that dies leaves them to the others, as it had them."""
    pool = make_pool(program, 2)
    pool.assign(keys(0), keys(1, 2, 3))
    assert program.asked() == [keys(0), []]
    assert [process.ahead for process in program.started] == [keys(2), keys(1, 3)]
    pool.assign(keys(1, 2), keys(4))
    assert program.asked() == [keys(0, 2), keys(1)]
    assert [process.ahead for process in program.started] == [keys(2, 4), keys(1, 3)]
    program.started[0].die()
    read(pool, 0)
    assert program.asked()[1] == keys(1, 0, 2)
    assert program.started[1].ahead == keys(1, 3, 4)


def test_an_error_takes_the_place_of_its_batch(program):
    pool = make_pool(program, 1)
    pool.assign(keys(0, 1))
    program.started[0].fail((0, 1), "no edge")
    program.started[0].fail(None, "no folder")
    assert [(key, error.content["message"]) for key, error in read(pool, 0)] == [
        ((0, 1), "no edge"),
        (None, "no folder"),
    ]
    assert pool.in_flight == set(keys(0))


def test_batches_wait_for_the_first_sampler(program):
    pool = make_pool(program, started=0)
    assert pool.least_loaded() is None
    pool.assign(keys(0, 1))
    assert pool.in_flight == set(keys(0, 1))
    pool.start_next()
    assert program.asked() == [keys(0, 1)]


def test_batches_of_a_dead_sampler_go_to_the_others_at_once(program):
    pool = make_pool(program, 3)
    pool.assign(keys(*range(6)))
    program.started[0].die()
    assert read(pool, 0) == []
    assert program.asked()[1:] == [keys(1, 4, 0), keys(2, 5, 3)]
    assert pool.missing == 0
    assert pool.num_restarts == 1


def test_delivered_batches_of_a_dead_sampler_are_not_requested_again(program):
    pool = make_pool(program)
    pool.assign(keys(0, 1, 2))
    first = program.started[0]
    first.deliver((0, 0))
    first.die()
    ((key, _),) = read(pool, 0)
    assert key == (0, 0)
    assert program.asked()[1] == keys(1, 2)


def test_a_replacement_gets_batches_when_it_is_ready(program):
    pool = make_pool(program)
    program.started[0].die()
    read(pool, 0)
    pool.start_next()
    assert [s.index for s in pool.samplers] == [0, 1]
    pool.assign(keys(0, 1))
    assert program.asked()[1:] == [keys(0, 1), []]
    program.started[2].report_ready()
    assert read(pool, 0) == []
    pool.assign(keys(2))
    assert program.asked()[1:] == [keys(0, 1), keys(2)]


def test_the_only_replacement_gets_batches_at_once(program):
    pool = make_pool(program, 1)
    pool.assign(keys(0, 1))
    program.started[0].die()
    read(pool, 0)
    assert pool.in_flight == set(keys(0, 1))
    pool.start_next()
    assert program.asked()[1] == keys(0, 1)


def test_failed_start_is_tried_again(program):
    pool = make_pool(program, 1)
    pool.assign(keys(0))
    program.started[0].die()
    read(pool, 0)
    program.refusals = [OSError(errno.EAGAIN, "no process")]
    with pytest.raises(OSError, match="no process"):
        pool.start_next()
    assert pool.missing == 0
    assert pool.samplers == []
    pool.start_next()
    assert pool.missing is None
    assert program.asked()[1] == keys(0)


@pytest.mark.parametrize("num_samplers", [1, 2, 3])
def test_a_batch_that_kills_samplers_ends_the_pool(program, num_samplers):
    pool = make_pool(program, num_samplers, max_restarts=1000)
    pool.assign(keys(5, 6))
    with pytest.raises(SamplerDiedError, match="4 samplers have died at work on batch 5"):
        for _ in range(10):
            victim = next(s for s in pool.samplers if (0, 5) in s.in_flight)
            victim.process.die((0, 5))
            list(pool.receive(victim))
            pool.start_next()
    assert pool.num_restarts == 3
    assert pool.in_flight == set(keys(5, 6))


@pytest.mark.parametrize("session", [None, "s"])
def test_the_error_has_exit_status_batches_and_log(program, session):
    pool = make_pool(program, 1, max_restarts=0, session=session)
    pool.assign(keys(7, 3))
    program.started[0].die((0, 7))
    with pytest.raises(SamplerDiedError) as caught:
        read(pool, 0)
    where = " of the graph server" if session else ""
    assert f"(pid {program.started[0].pid}){where} was killed by SIGKILL" in str(caught.value)
    assert "while batches [3, 7] were due, and samplers have been restarted 0" in str(caught.value)
    assert "It worked on batch 7 last" in str(caught.value)
    assert str(caught.value).endswith("The end of its log:\nout of cheese")


def test_a_sampler_that_ends_with_its_server_is_not_counted(program):
    pool = make_pool(program, 1, max_restarts=0)
    program.started[0].ended_with_server = True
    program.started[0].die()
    read(pool, 0)
    assert pool.missing == 0
    assert pool.num_restarts == 0


def test_a_process_is_replaced_by_another(program):
    pool = make_pool(program)
    pool.replace(pool.samplers[0], SamplerProcess.start(program, 0, {}, 1 << 16, []))
    assert [s.process for s in pool.samplers] == [program.started[2], program.started[1]]
    pool.assign(keys(0, 1))  # a replacement that is not for a dead one need not report first
    assert program.asked() == [[], keys(1), keys(0)]


def test_batches_that_are_forgotten_are_not_requested_again(program):
    pool = make_pool(program)
    pool.assign([(0, 0), (1, 0), (0, 1)])
    forgotten = pool.forget(lambda key: key[0] == 0)
    assert [(s.index, key) for s, key in forgotten] == [(0, (0, 0)), (0, (0, 1))]
    program.started[0].die((0, 0))
    read(pool, 0)
    assert program.asked()[1] == [(1, 0)]


def test_endpoint_updates_reach_all(program):
    pool = make_pool(program)
    pool.relocate(1, Endpoint("tcp://b", None))
    pool.relocate(1, "it has ended")
    for process in program.started:
        process.read()
        assert [(op, json.loads(payload)) for op, payload in process.told] == [
            (Op.ENDPOINT, {"part": 1, "address": "tcp://b", "server_key": None}),
            (Op.ENDPOINT, {"part": 1, "ended": "it has ended"}),
        ]


class Endpoints:
    """Endpoints of which that of partition 1 has changed.

    Attributes:
        searched: partitions whose servers were looked for.
    """

    def __init__(self):
        self.searched = []

    def latest(self, part):
        return Endpoint("tcp://b", None) if part == 1 else None

    def look_for(self, part):
        self.searched.append(part)


def test_an_unreachable_server_is_looked_for(program):
    endpoints = Endpoints()
    pool = make_pool(program, endpoints=endpoints)
    for part in (1, 2):
        program.started[0].report_lost(part)
    assert read(pool, 0) == []
    assert endpoints.searched == [1, 2]
    assert [process.ops() for process in program.started] == [[Op.ENDPOINT], []]


@pytest.mark.parametrize("started", [1, 2])
def test_shutdown(program, started):
    pool = make_pool(program, started=started)
    pool.assign(keys(0, 1))
    pool.close(wait=True)
    assert all(process.is_closed for process in program.started)
    assert pool.samplers == []
    assert pool.in_flight == set()
    assert pool.missing is None


def test_messages_end_when_the_pool_is_closed_in_between(program):
    pool = make_pool(program, 1)
    pool.assign(keys(0, 1))
    for batch in (0, 1):
        program.started[0].fail((0, batch))
    for _ in pool.receive(pool.samplers[0]):
        pool.close(wait=True)
