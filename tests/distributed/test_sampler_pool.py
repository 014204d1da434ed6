"""The trainer's pool of samplers: epochs, prefetch and failures, with fake processes."""

import errno
from types import SimpleNamespace

import numpy as np
import pytest

import khop.distributed.sampling.pool as pools
from khop.channel.control import Op
from khop.distributed.sampling.pool import SamplerPool
from khop.errors import SamplerDiedError
from khop.sampler.plan import EpochPlan
from support.cluster.fake_samplers import FakeProgram


@pytest.fixture
def program():
    program = FakeProgram()
    yield program
    program.started.clear()


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, as the pool sees it; begins at 1000."""
    now = [1000.0]
    monkeypatch.setattr(pools, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def make_pool(program, num_samplers=2, depth=2, in_bulk=False, arena_bytes=1 << 16, **options):
    """A pool of fake samplers."""
    arguments = {"max_restarts": 3, "endpoints": None, "program": program, **options}
    return SamplerPool({}, [None] * num_samplers, depth, in_bulk, arena_bytes, **arguments)


def open_epoch(pool, num_batches=10, first=0):
    number = pool.new_epoch()
    pool.open_epoch(number, 7, EpochPlan(num_batches, 1), np.arange(num_batches)[None], first)
    return number


def ids_of(received):
    return received.named()["ids"][0].tolist()


def batches_of(program):
    return [[batch for _, batch in asked] for asked in program.asked()]


def test_each_sampler_is_kept_a_few_batches_ahead(program):
    pool = make_pool(program)
    epoch = open_epoch(pool)
    assert batches_of(program) == [[0, 2], [1, 3]]
    program.started[0].deliver((epoch, 0))
    assert ids_of(pool.take(epoch, 0)) == [0] * 4
    assert batches_of(program) == [[0, 2, 4], [1, 3]]
    pool.close()


def test_small_batches_are_requested_in_bulk(program):
    pool = make_pool(program, depth=4, in_bulk=True)
    epoch = open_epoch(pool, 20)
    assert batches_of(program) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for batch in range(8):
        program.started[batch % 2].deliver((epoch, batch))
    for batch in range(8):
        pool.take(epoch, batch)
        num_asked = sum(map(len, batches_of(program)))
        assert num_asked == {3: 12, 7: 16}.get(batch, 8 if batch < 3 else 12)
    pool.close()


def test_an_epoch_may_begin_in_its_middle(program):
    pool = make_pool(program, 1)
    open_epoch(pool, 10, first=8)
    assert batches_of(program) == [[8, 9]]
    pool.close()


def test_early_batches_wait_for_their_turn(program):
    pool = make_pool(program, 1)
    epoch = open_epoch(pool)
    program.started[0].deliver((epoch, 1))
    assert not pool.has_arrived(epoch, 0)
    assert pool.has_arrived(epoch, 1)
    program.started[0].deliver((epoch, 0))
    assert [ids_of(pool.take(epoch, batch))[0] for batch in (0, 1)] == [0, 1]
    pool.close()


def test_the_successor_of_a_dead_sampler_knows_the_epochs(program):
    pool = make_pool(program)
    epoch = open_epoch(pool)
    program.started[0].die((epoch, 0))
    assert not pool.has_arrived(epoch, 0)
    assert batches_of(program)[1:] == [[1, 3, 0, 2], []]
    assert program.started[2].ops() == [Op.OPEN_EPOCH]
    program.started[1].deliver((epoch, 0))
    assert ids_of(pool.take(epoch, 0)) == [0] * 4
    assert pool.num_restarts == 1
    pool.close()


def test_a_death_is_noticed_while_batches_are_at_hand(program, clock):
    """Every 0.05 s, also if the trainer never has to wait."""
    pool = make_pool(program, depth=4)
    epoch = open_epoch(pool)
    for batch in (0, 2, 4, 6):
        program.started[0].deliver((epoch, batch))
    assert pool.has_arrived(epoch, 0)
    program.started[1].die()
    pool.take(epoch, 0)
    assert pool.num_restarts == 0
    clock[0] += 0.1
    pool.take(epoch, 2)
    assert pool.num_restarts == 1
    pool.close()


def test_an_error_of_a_batch_comes_in_its_turn(program):
    pool = make_pool(program, 1)
    epoch = open_epoch(pool)
    program.started[0].fail((epoch, 1))
    program.started[0].deliver((epoch, 0))
    pool.take(epoch, 0)
    with pytest.raises(ValueError, match="no"):
        pool.take(epoch, 1)
    assert batches_of(program) == [[0, 1, 2, 3]]
    pool.close()


def test_a_sampler_that_cannot_begin_ends_the_loader(program):
    pool = make_pool(program)
    epoch = open_epoch(pool)
    program.started[1].fail(None, "no folder")
    for _ in range(2):
        with pytest.raises(ValueError, match="no folder"):
            pool.take(epoch, 0)
    pool.close()


def test_the_loader_ends_when_no_restart_is_left(program):
    pool = make_pool(program, 1, max_restarts=0)
    epoch = open_epoch(pool)
    program.started[0].die((epoch, 0))
    for _ in range(2):
        with pytest.raises(SamplerDiedError, match="max_restarts"):
            pool.take(epoch, 0)
    pool.close()


def test_the_loader_ends_when_no_process_can_be_started(program):
    pool = make_pool(program, 2)
    epoch = open_epoch(pool)
    program.refusals = [OSError(errno.EAGAIN, "no process")]
    program.started[0].die()
    for _ in range(2):
        with pytest.raises(OSError, match="no process"):
            pool.take(epoch, 0)
    pool.close()
    assert program.started[1].is_closed


def test_batches_are_copied_if_the_user_keeps_them(program):
    """Five batches take more than half of an arena of eight slots: later ones are copies."""
    pool = make_pool(program, 1, depth=8, arena_bytes=8 * 4096)
    epoch = open_epoch(pool)
    kept = []
    for batch in range(7):
        program.started[0].deliver((epoch, batch), size=480)
        kept.append(pool.take(epoch, batch))
    assert [ids_of(received)[0] for received in kept] == list(range(7))
    program.started[0].read()
    assert program.started[0].freed == [5 * 4096, 6 * 4096]
    pool.close()
    assert [ids_of(received)[0] for received in kept] == list(range(7))


def test_slots_are_freed_with_the_next_requests_in_bulk(program):
    pool = make_pool(program, 1, depth=2, in_bulk=True)
    epoch = open_epoch(pool)
    for batch in range(2):
        program.started[0].deliver((epoch, batch))
    pool.take(epoch, 0)
    program.started[0].read()
    assert program.started[0].freed == []
    pool.take(epoch, 1)
    assert batches_of(program) == [[0, 1, 2, 3]]
    assert program.started[0].freed == [0]
    pool.close()


def test_fallbacks_are_replaced_between_epochs(program):
    fallbacks = set()
    pool = make_pool(program, is_fallback=lambda process, index: process in fallbacks)
    first = open_epoch(pool)
    fallbacks.add(program.started[0])
    open_epoch(pool)
    assert len(program.started) == 2  # an epoch is open
    for epoch in (first, first + 1):
        pool.close_epoch(epoch)
    epoch = open_epoch(pool)
    assert [worker.pid for worker in pool.workers] == [
        program.started[2].pid,
        program.started[1].pid,
    ]
    assert program.started[2].ops() == [Op.OPEN_EPOCH]
    assert program.started[2].read() == [(epoch, 0), (epoch, 2)]
    pool.close()


def test_batches_of_an_epoch_that_was_left_are_dropped(program):
    pool = make_pool(program, 1)
    left = open_epoch(pool)
    pool.close_epoch(left)
    assert program.started[0].ops() == [Op.OPEN_EPOCH, Op.CLOSE_EPOCH]
    program.started[0].deliver((left, 0))
    epoch = open_epoch(pool)
    program.started[0].deliver((epoch, 0))
    assert ids_of(pool.take(epoch, 0)) == [0] * 4
    pool.close()


def test_shutdown(program):
    pool = make_pool(program)
    epoch = open_epoch(pool)
    program.started[0].deliver((epoch, 0))
    kept = pool.take(epoch, 0)
    pool.close()
    assert all(process.is_closed for process in program.started)
    assert ids_of(kept) == [0] * 4
    with pytest.raises(RuntimeError, match="has been shut down"):
        open_epoch(pool)
    pool.close()
