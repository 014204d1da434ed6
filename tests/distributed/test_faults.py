"""Whatever dies: the right batches or a clear exception, soon, and nothing stays behind."""

import ctypes
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import zmq.sugar.socket

from khop.channel.control import U64, Op
from khop.distributed import shutdown_worker_group
from khop.distributed.loaders import backends
from khop.distributed.processes import child
from khop.distributed.rpc import connection, partition_client, pending
from khop.errors import FolderError, SamplerDiedError
from support import processes
from support.cluster import jobs, poisoned_worker
from support.cluster.faults import (
    FEW_AHEAD,
    RECOVERED,
    SOON,
    Interrupted,
    Interrupts,
    make_loader,
    make_reference,
    within,
)


@pytest.mark.parametrize("num_parts", [1, 2])
def test_killed_samplers_are_replaced(graph, folder_of, num_parts):
    """Samplers killed in the middle of an epoch, one after the other: the same batches arrive."""
    loader = make_loader(folder_of("random", num_parts), num_parts, buffer_size=FEW_AHEAD)
    batches = []
    with within(SOON):
        for number, batch in enumerate(loader):
            if number in (1, 4, 5):
                os.kill(loader.workers[number % 2].pid, signal.SIGKILL)
            batches.append(batch.clone())
    assert jobs.same_batches(batches, make_reference(graph)) == len(loader)
    assert 1 <= loader.stats().restarts <= 3  # one that owes nothing is not missed


def test_sampler_killed_between_epochs(graph, folder_of):
    """A sampler that died while nobody iterated."""
    loader, reference = make_loader(folder_of("random", 2), 2), make_reference(graph)
    assert jobs.same_batches(loader, reference)
    os.kill(loader.workers[0].pid, signal.SIGKILL)
    with within(SOON):
        assert jobs.same_batches(loader, reference) == len(loader)


_KILLED_ONCE = r"SIGKILL while (batches \[\d.*\] were|no batch was) due.*restarted 0"


def test_sampler_killed_too_often(folder_of):
    """Beyond max_restarts: an exception that says how it ended and what was due.

    Nothing is where the sampler had made all that it was asked for.
    """
    loader = make_loader(
        folder_of("random", 1), 1, num_workers=1, max_restarts=0, buffer_size=FEW_AHEAD
    )
    iterator = iter(loader)
    next(iterator)
    os.kill(loader.workers[0].pid, signal.SIGKILL)
    with within(SOON), pytest.raises(SamplerDiedError, match=_KILLED_ONCE):
        list(iterator)
    with within(SOON), pytest.raises(SamplerDiedError):
        list(loader)


@pytest.mark.parametrize("num_parts", [1, 2])
def test_standby(graph, folder_of, num_parts):
    """A process in reserve takes the dead sampler's place, and another is made ready."""
    loader = make_loader(
        folder_of("random", num_parts), num_parts, 1, buffer_size=FEW_AHEAD, standby=True
    )
    standby = loader._backend._program
    batches, successors = [], []
    with within(RECOVERED):
        for number, batch in enumerate(loader):
            if number in (1, 9):
                successors.append(standby.pid)
                os.kill(loader.workers[0].pid, signal.SIGKILL)
            if number in (8, 18):
                assert jobs.pids_of(loader) == successors[-1:]
            batches.append(batch.clone())
    assert jobs.same_batches(batches, make_reference(graph)) == len(loader)
    assert len({*successors, standby.pid}) == 3
    reserve = standby.pid
    del standby  # the loader has the other reference
    loader.shutdown()
    assert jobs.wait_for_ends([reserve]) == []


@pytest.mark.parametrize("num_workers", [1, 2])
def test_batch_that_kills_samplers(folder_of, num_workers, monkeypatch):
    """Sampler after sampler dies at the same batch: an error that names it, whatever is allowed."""
    program = partial(child.ChildProcess, poisoned_worker.__name__)
    monkeypatch.setattr(backends, "start_sampler", program)
    victim = poisoned_worker.VICTIM
    loader = make_loader(
        folder_of("random", 1), 1, num_workers, max_restarts=1000, buffer_size=FEW_AHEAD
    )
    iterator = iter(loader)
    with (
        within(RECOVERED),
        pytest.raises(
            SamplerDiedError, match=rf"SIGSEGV.*4 samplers have died at work on batch {victim}\."
        ),
    ):
        list(iterator)
    assert loader.stats().restarts == 3


def test_last_words_of_a_sampler(folder_of, capfd):
    """Of one that crashes: how it ended, what it worked on, and faulthandler's traceback."""
    loader = make_loader(
        folder_of("random", 1), 1, num_workers=1, max_restarts=0, buffer_size=FEW_AHEAD
    )
    iterator = iter(loader)
    next(iterator)
    (sampler,) = loader._backend._pool.samplers
    os.kill(sampler.process.pid, signal.SIGSTOP)
    while not sampler.in_flight:  # it was faster than the trainer
        next(iterator)
    pid = sampler.process.pid
    # In its main thread: any other thread has no traceback, and may be the first to go on.
    assert ctypes.CDLL(None).tgkill(pid, pid, int(signal.SIGSEGV)) == 0
    os.kill(pid, signal.SIGCONT)
    with within(SOON), pytest.raises(SamplerDiedError) as caught:
        list(iterator)
    said = str(caught.value)
    assert re.search(r"SIGSEGV while batches \[\d", said)
    assert re.search(r"It worked on batch \d+ last", said)
    assert re.search(r"end of its log:\n(.|\n)*Segmentation fault(.|\n)*worker.py", said)
    assert "Segmentation fault" in capfd.readouterr().err  # the user sees it, too


def test_exception_in_a_sampler(folder_of, tmp_path):
    """An exception arrives with its type and the sampler's traceback; the loader can go on."""
    root = tmp_path / "broken"
    shutil.copytree(folder_of("random", 1), root)
    loader = make_loader(root, 1)
    (root / "part-0/node/node/half.npy").write_bytes(b"short")
    for _ in range(2):
        with within(SOON), pytest.raises(FolderError, match=r"half.npy(.|\n)*sampler process \d"):
            list(loader)
    shutil.copy(folder_of("random", 1) / "part-0/node/node/half.npy", root / "part-0/node/node")
    assert len(list(loader)) == len(loader)


def start_slow_pair(folder_of, tmp_path, num_workers=1):
    """Two trainers that iterate for ever, and the children of each."""
    ready = tmp_path / "ready"
    arguments = {
        "root": str(folder_of("random", 2)),
        "homes": [0, 1],
        "num_workers": num_workers,
        "ready": str(ready),
    }
    trainers = jobs.start_trainers("slow", arguments, 2)
    files = [Path(f"{ready}.{rank}") for rank in (0, 1)]
    end = time.monotonic() + 120
    while not all(f.is_file() and f.read_text() for f in files):
        if time.monotonic() > end:
            states = [t.poll() for t in trainers]
            for trainer in trainers:
                trainer.kill()
            raise AssertionError(f"trainers did not begin: {states}")
        time.sleep(0.05)
    return trainers, [json.loads(f.read_text()) for f in files]


@pytest.mark.parametrize("num_workers", [1, None])
def test_killed_trainer(folder_of, tmp_path, num_workers):
    """Its children end with it, its sockets go, and the other trainer gets an exception.

    That it has ended is found out; a request would be waited for much longer.
    """
    trainers, children = start_slow_pair(folder_of, tmp_path, num_workers)
    assert len(children[0]) == (2 if num_workers else 1)
    time.sleep(0.3)
    trainers[0].kill()
    with within(RECOVERED):  # and the other's own exit, which alone takes seconds beside a load
        trainers[0].communicate()
        (result,) = jobs.finish_trainers(trainers[1:], 30)
    assert result["error"] == "PartitionUnavailableError"
    assert "partition 0" in result["message"]
    assert "has ended" in result["message"]
    assert result["after"] < RECOVERED
    assert jobs.wait_for_ends(children[0] + children[1]) == []


def test_terminated_trainer_takes_its_children_along(folder_of, tmp_path):
    """SIGTERM, as launchers send it, to both."""
    trainers, children = start_slow_pair(folder_of, tmp_path)
    for trainer in trainers:
        trainer.terminate()
    for trainer in trainers:
        trainer.communicate(timeout=SOON)
    assert jobs.wait_for_ends(children[0] + children[1]) == []


def test_trainer_that_finishes_early(folder_of):
    """Its server stays until the others have finished."""
    arguments = {"root": str(folder_of("random", 2)), "homes": [0, 1], "num_workers": [1, None]}
    trainers = jobs.start_trainers("early", arguments, 2)
    early, late = jobs.finish_trainers(trainers, silent=True)
    assert early["batches"] == [1, 1]
    assert late["batches"] == [5, 5]
    assert all(count > 0 for count in late["remote"])


def test_sampler_that_cannot_begin(folder_of, tmp_path):
    """What is wrong arrives as the exception that it is, without restarts."""
    root = tmp_path / "vanishing"
    shutil.copytree(folder_of("random", 1), root)
    loader = make_loader(root, 1, num_workers=1)
    shutil.move(root, tmp_path / "elsewhere")
    os.kill(loader.workers[0].pid, signal.SIGKILL)
    for _ in range(2):
        with within(SOON), pytest.raises(FolderError, match=r"no partition folder(.|\n)*sampler"):
            list(loader)


def test_fork_of_a_trainer(graph, folder_of):
    """A fork that drops its copy of a batch, or of the loader, takes nothing from the trainer."""
    loader, reference = make_loader(folder_of("random", 1), 1), make_reference(graph)
    iterator = iter(loader)
    batch = next(iterator)
    kept = batch.clone()
    child = os.fork()
    if child == 0:
        del batch, iterator, loader
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    rest = [b.clone() for b in iterator]
    assert torch.equal(batch.x, kept.x)
    assert jobs.same_batches([batch, *rest], reference) == len(loader)


def test_sampler_that_does_not_listen_for_a_while(graph, folder_of):
    """More is said to a busy sampler than its line holds: nothing of it is lost, nothing hangs."""
    loader, reference = make_loader(folder_of("random", 1), 1), make_reference(graph)
    assert jobs.same_batches(loader, reference) == len(loader)
    for pid in jobs.pids_of(loader):
        os.kill(pid, signal.SIGSTOP)
    lines = [sampler.process.line for sampler in loader._backend._pool.samplers]
    for line in lines:
        for _ in range(2000):
            line.post(Op.CLOSE_EPOCH, U64.pack(10**6))  # of no epoch
    assert all(line.has_unsent for line in lines)
    wake = threading.Timer(0.5, lambda: [os.kill(p, signal.SIGCONT) for p in jobs.pids_of(loader)])
    wake.start()
    with within(SOON):
        assert jobs.same_batches(loader, reference) == len(loader)
    wake.join()


def test_epoch_left_early(graph, folder_of):
    """The next epoch begins at its beginning: nothing of the last one is in the way."""
    loader, reference = make_loader(folder_of("random", 2), 2), make_reference(graph)
    with within(SOON):
        for ours, theirs in zip(loader, reference, strict=True):
            assert torch.equal(ours.n_id, theirs.n_id)
            break
        next(iter(reference)), next(iter(loader))
        assert jobs.same_batches(loader, reference) == len(loader)


def test_two_iterators(graph, folder_of):
    """Two epochs iterated at the same time are those that would come one after the other."""
    loader, reference = make_loader(folder_of("random", 2), 2), make_reference(graph)
    with within(SOON):
        pairs = list(zip(loader, loader, strict=True))
    assert jobs.same_batches([a for a, _ in pairs], reference) == len(loader)
    assert jobs.same_batches([b for _, b in pairs], reference) == len(loader)


@pytest.mark.parametrize("buffer_size", [None, "256KB", "1KB"])
def test_kept_batches(graph, folder_of, buffer_size):
    """`list(loader)`: kept batches block nothing and stay as they were; rings may be too small."""
    loader = make_loader(folder_of("random", 2), 2, buffer_size=buffer_size)
    with within(SOON):
        first, second = list(loader), list(loader)
    reference = make_reference(graph)
    assert jobs.same_batches(first, reference) == jobs.same_batches(second, reference)


def test_kept_tensors_outlive_the_loader(folder_of):
    """A tensor of a batch keeps its memory, whatever becomes of the loader and its samplers."""
    loader = make_loader(folder_of("random", 1), 1)
    batch = next(iter(loader))
    n_id, x = batch.n_id, batch.x
    del batch, loader
    gc.collect()
    assert torch.equal(x[:, 0].long(), n_id)
    x.add_(1)  # and it is the user's to write


def test_loader_deleted_in_the_middle(folder_of):
    """With an iterator alive or not; the fixture sees that nothing stays."""
    loader = make_loader(folder_of("random", 2), 2)
    iterator = iter(loader)
    next(iterator)
    assert jobs.khop_processes()
    del loader
    with within(SOON):
        next(iterator)
        del iterator
        gc.collect()
    shutdown_worker_group()
    assert not jobs.khop_processes()


def test_interrupted_trainer(folder_of, tmp_path):
    """Ctrl-C reaches the trainer; its children end with it and print nothing."""
    code = (
        "import signal, time\n"
        "from support.cluster import jobs\n"
        # A shell that runs the tests in the background has them ignore it, and what they start.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from khop.distributed import *\n"
        f"data = DistDataset().load({str(folder_of('random', 2))!r}, 0, also_serve=[1])\n"
        "loader = DistNeighborLoader(data, [3], worker_options=MpDistSamplingWorkerOptions(2))\n"
        "iterator = iter(loader); next(iterator); print(*jobs.khop_processes(), flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", code],
        env=processes.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(children) == 3
    os.killpg(trainer.pid, signal.SIGINT)
    with within(RECOVERED):
        _, err = trainer.communicate()
    assert err.count("Traceback") == 1
    assert "KeyboardInterrupt" in err
    assert jobs.wait_for_ends(children) == []


def test_interrupted_while_it_asks_another_partition(graph, folder_of):
    """Ctrl-C in a notebook, at any line, with a reply half read: the next epoch is whole."""
    loader = make_loader(folder_of("random", 2), 2, num_workers=0, batch_size=64)
    reference = make_reference(graph, batch_size=64)
    modules = (connection, partition_client, pending, zmq.sugar.socket)
    counting = Interrupts(0, modules)
    with counting:
        assert jobs.same_batches(loader, reference) == len(loader)
    num_lines, num_interrupted = -counting.left, 0
    for at in range(1, num_lines, num_lines // 40):
        iter(reference)
        try:
            with Interrupts(at, modules):
                list(loader)
        except Interrupted:
            num_interrupted += 1
        with within(SOON):
            assert jobs.same_batches(loader, reference) == len(loader)
    assert num_interrupted > 30  # what a destructor raises is not seen


def test_samplers_and_servers_run_without_torch(graph, folder_of, tmp_path, monkeypatch):
    """Their programs start and work where torch and PyG cannot be imported."""
    for name in ("torch", "torch_geometric"):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text(f"raise ImportError('{name} is not for samplers')")
    monkeypatch.syspath_prepend(str(tmp_path))
    check = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch"
    blocked = subprocess.run([sys.executable, "-c", check], capture_output=True, check=False)
    assert b"not for samplers" in blocked.stderr
    # Children search where the parent does, so they would find these first.
    program = child._program("khop.distributed.sampling.worker")
    assert f"= ['{tmp_path}'" in program
    loader = make_loader(folder_of("random", 2), 2, max_restarts=0)
    assert jobs.same_batches(loader, make_reference(graph)) == len(loader)
