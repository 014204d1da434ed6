"""Processes that are forked: trainers that multiprocessing starts, and forks of a trainer."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
import torch

from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    get_context,
    init_worker_group,
)
from khop.loader import NeighborLoader
from support import processes
from support.cluster import jobs
from support.cluster.faults import within

PROGRAM = "support.cluster.fork_jobs"


def exit_status_of_trainers(method, ending, root):
    command = processes.command(PROGRAM, method, ending, root, jobs.free_port())
    environment = processes.environment(OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("method", "ending"), [("fork", "return"), ("fork", "exit"), ("forkserver", "return")]
)
def test_trainer_that_ends_first_waits_for_the_others(folder_of, method, ending):
    """Its partition server is needed until they are through, however its process was started."""
    status, log = exit_status_of_trainers(method, ending, folder_of("random", 2))
    assert status == [0, 0], log


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_trainer_that_fails_does_not_wait(folder_of, method):
    """Who started it learns of it at once, not after the rendezvous's timeout."""
    status, log = exit_status_of_trainers(method, "fail", folder_of("random", 2))
    assert status == [1, -signal.SIGKILL], log


def raised_in_fork(call):
    """The exception that a call raises in a fork; it must not hang."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = "nothing was raised"
        try:
            signal.alarm(20)
            call()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with within(30), os.fdopen(read) as end:
        text = end.read()
    assert os.waitpid(child, 0)[1] == 0, "it hangs"
    return text


def belongs_to(thing):
    return f"RuntimeError: this {thing} belongs to process {os.getpid()}; this is process"


def make_loader(root, workers, num_parts=2):
    dataset = DistDataset().load(root, 0, also_serve=range(1, num_parts))
    return DistNeighborLoader(
        dataset, [3], torch.arange(100), batch_size=10, worker_options=workers, seed=0
    )


def test_fork_that_uses_a_loader_with_samplers(folder_of):
    """Refused, while the trainer goes on and gets all its batches."""
    root = folder_of("random", 2)
    expected = [b.n_id for b in make_loader(root, CollocatedDistSamplingWorkerOptions())]
    loader = make_loader(root, MpDistSamplingWorkerOptions(num_workers=2))
    epoch = iter(loader)
    got = [next(epoch).n_id.clone()]
    for use in (lambda: next(epoch), lambda: iter(loader)):
        text = raised_in_fork(use)
        assert text.startswith(belongs_to("loader"))
        assert text.endswith("a fork of it: make a loader there")
        got.append(next(epoch).n_id.clone())
    got += [batch.n_id.clone() for batch in epoch]
    assert all(map(torch.equal, got, expected))
    assert len(got) == len(expected)


def test_fork_that_uses_a_loader_without_samplers(folder_of):
    """Refused where it would ask another partition over the trainer's connection."""
    loader = make_loader(folder_of("random", 2), CollocatedDistSamplingWorkerOptions())
    epoch = iter(loader)
    next(epoch)
    assert belongs_to("connection to other partitions") in raised_in_fork(lambda: next(epoch))
    assert raised_in_fork(loader.shutdown) == "nothing was raised"
    assert sum(1 for _ in epoch) == 9


def test_fork_makes_a_loader(folder_of):
    """Of a trainer that is alone: with a place, and samplers, of its own."""
    root = folder_of("random", 1)
    loader = make_loader(root, MpDistSamplingWorkerOptions(num_workers=1), 1)
    next(iter(loader))

    def load():
        assert get_context() is None
        own = make_loader(root, MpDistSamplingWorkerOptions(num_workers=1), 1)
        assert sum(batch.batch_size for batch in own) == 100
        own.shutdown()

    assert raised_in_fork(load) == "nothing was raised"


def test_fork_of_one_of_several_has_no_place(monkeypatch, folder_of):
    """It must not speak for its parent: neither at its end, nor in a loader."""
    context = init_worker_group(1, 0)
    with monkeypatch.context() as patch:
        patch.setattr(context, "world_size", 2)
        text = raised_in_fork(lambda: DistDataset().load(folder_of("random", 1), 0).context)
    assert "is a fork of khop-trainers_0" in text
    assert "call init_worker_group(world_size=1, rank=0)" in text

    def end():
        context.members.publish = lambda *_: os._exit(5)
        sys.exit(0)

    assert multiprocessing_fork(end) == 0


def multiprocessing_fork(call):
    child = multiprocessing.get_context("fork").Process(target=call)
    child.start()
    child.join(60)
    return child.exitcode


def test_fork_that_uses_threads_of_a_loader(graph):
    """The epoch of the parent is refused; one of its own is the same epoch."""
    loader = NeighborLoader(graph, [3], batch_size=10, num_workers=2, seed=0)
    epoch = iter(loader)
    next(epoch)
    text = raised_in_fork(lambda: list(epoch))
    assert text.startswith(belongs_to("loader's iterator")) and text.endswith("iter(loader) there")
    assert sum(1 for _ in epoch) == 49
    assert raised_in_fork(lambda: [None for _ in loader]) == "nothing was raised"
