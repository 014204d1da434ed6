"""A sampler that a certain batch kills, whoever makes it."""

import os
import signal

from khop.distributed.sampling import worker

VICTIM = 5

_run = worker._run


def _run_or_die(task):
    if task.batch == VICTIM:
        os.kill(os.getpid(), signal.SIGSEGV)
    return _run(task)


def main():
    """The sampler's program."""
    worker._run = _run_or_die
    worker.main()
