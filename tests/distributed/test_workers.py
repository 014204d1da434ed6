"""`loader.workers`: the processes of a loader."""

import os
import signal
from pathlib import Path

from khop.distributed import Worker
from support.cluster import jobs


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_sampler_processes(folder_of):
    """Children of the trainer, by number; a successor has its predecessor's number."""
    loader = jobs.make_loader(folder_of("random", 1), 1, 2)
    first = loader.workers
    assert [(worker.number, worker.device) for worker in first] == [(0, "cpu"), (1, "cpu")]
    assert [parent_of(worker.pid) for worker in first] == [os.getpid()] * 2
    os.kill(first[1].pid, signal.SIGKILL)
    assert sum(1 for _ in loader) == len(loader)
    second = loader.workers
    assert second == [first[0], Worker(second[1].pid, 1, "cpu")] != first
    loader.shutdown()
    assert loader.workers == []


def test_sampling_in_the_trainer(folder_of):
    """No process."""
    assert jobs.make_loader(folder_of("random", 2), 2, None).workers == []
