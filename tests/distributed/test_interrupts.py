"""Ctrl-C at any line of what trainer and samplers tell each other: the next epoch is whole."""

import contextlib
import json

import numpy as np
import pytest

from khop.channel import control
from khop.channel.control import U64, Op
from khop.distributed.sampling import pool, process_handle, process_pool
from khop.distributed.sampling.pool import SamplerPool
from khop.sampler.plan import EpochPlan
from support.cluster.fake_samplers import FakeProgram
from support.cluster.faults import Interrupted, Interrupts

MODULES = (control, pool, process_handle, process_pool)
NUM_BATCHES = 5


@pytest.fixture(autouse=True)
def nothing_is_left():
    """A descriptor is lost between the line that makes it and the one that keeps it."""


class Samplers(FakeProgram):
    """Samplers that make what they are asked for, of epochs that they have been told of."""

    def work(self):
        for process in self.started:
            made = len(process.asked)
            for epoch, batch in process.read()[made:]:
                told = process.told
                opened = [json.loads(text)["epoch"] for op, text in told if op is Op.OPEN_EPOCH]
                closed = [U64.unpack(number)[0] for op, number in told if op is Op.CLOSE_EPOCH]
                if epoch not in closed and process.is_alive:
                    assert epoch in opened, "asked for a batch of an epoch that it does not know"
                    process.deliver((epoch, batch))


def make_epoch(pool, samplers, interrupts):
    """An epoch, as an iterator of a loader makes it: `close_epoch` is a destructor's."""
    number = pool.new_epoch()
    plan = EpochPlan(NUM_BATCHES, 1)
    try:
        with interrupts:
            pool.open_epoch(number, 7, plan, np.arange(NUM_BATCHES)[None])
        for batch in range(NUM_BATCHES):
            for _ in range(10):
                samplers.work()
                with interrupts:
                    if pool.has_arrived(number, batch):
                        break
            else:
                raise AssertionError(f"batch {batch} never comes")
            with interrupts:
                received = pool.take(number, batch)
            assert received.named()["ids"][0].tolist() == [batch] * 4
            with interrupts:
                del received
    finally:
        # Nobody sees what a destructor raises.
        with contextlib.suppress(Interrupted), interrupts:
            pool.close_epoch(number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("in_bulk", [False, True])
def test_the_next_epoch_is_whole(in_bulk):
    interrupts, num_restarted = Interrupts(0, MODULES), 0
    samplers = Samplers()
    make_epoch(make_pool(samplers, in_bulk), samplers, interrupts)
    num_lines = -interrupts.left
    assert num_lines > 600
    for at in range(1, num_lines + 1, 3):
        samplers = Samplers()
        pool = make_pool(samplers, in_bulk)
        with contextlib.suppress(Interrupted):
            make_epoch(pool, samplers, Interrupts(at, MODULES))
        make_epoch(pool, samplers, contextlib.nullcontext())
        assert pool.num_restarts == 0  # none that counts
        num_restarted += len(samplers.started) > 2
        pool.close()
    assert num_restarted > 0


def make_pool(samplers, in_bulk):
    return SamplerPool({}, [None] * 2, 2, in_bulk, 1 << 15, 0, None, program=samplers)
