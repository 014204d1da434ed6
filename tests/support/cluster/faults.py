"""Loaders whose processes are killed in tests, and limits of the time that tests may take."""

import contextlib
import os
import signal
import sys
import threading
import time

from khop.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions
from khop.loader import NeighborLoader
from support.cluster import jobs

SOON = 5.0
# Where processes have to start again several times, on a busy machine: tells a hang.
RECOVERED = 30.0
# A ring so small that samplers do not make an epoch's small batches all ahead: they owe some.
FEW_AHEAD = "256KB"


@contextlib.contextmanager
def within(seconds):
    """Fail the test if the block takes longer than this. A hang is interrupted."""
    timer = threading.Timer(seconds + 5, lambda: os.kill(os.getpid(), signal.SIGALRM))
    timer.start()
    begin = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
    assert time.monotonic() - begin < seconds


def make_loader(root, num_parts, num_workers=2, max_restarts=3, **options):
    """Return a loader of all training nodes, whose trainer serves all parts."""
    dataset = DistDataset().load(root, 0, also_serve=range(1, num_parts))
    keywords = {"buffer_size": options.pop("buffer_size", None), "max_restarts": max_restarts}
    keywords["standby"] = options.pop("standby", False)
    keywords["timeout"] = options.pop("timeout", 180)
    settings = {"batch_size": 8, "shuffle": True, "seed": 5, **options}
    return DistNeighborLoader(
        dataset,
        jobs.FANOUTS,
        jobs.seeds_of_rank(0),
        with_edge=True,
        collect_features=True,
        worker_options=MpDistSamplingWorkerOptions(num_workers=num_workers, **keywords),
        **settings,
    )


def make_reference(graph, batch_size=8):
    """Return the in-memory loader that makes the batches of `make_loader`."""
    return NeighborLoader(
        graph, jobs.FANOUTS, jobs.seeds_of_rank(0), batch_size=batch_size, shuffle=True, seed=5
    )


class Interrupted(BaseException):
    """Exception like KeyboardInterrupt, at which pytest does not stop."""


class Interrupts:
    """Context in which `Interrupted` is raised at a line of some modules: the `at`-th that is run.

    Attributes:
        left: number of lines until then.
    """

    def __init__(self, at, modules):
        self.left = at
        self._files = {module.__file__ for module in modules}

    def __enter__(self):
        sys.settrace(self._enter_frame)

    def __exit__(self, *_):
        sys.settrace(None)

    def _enter_frame(self, frame, *_):
        return self._look if frame.f_code.co_filename in self._files else None

    def _look(self, frame, event, _):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise Interrupted
        return self._look
