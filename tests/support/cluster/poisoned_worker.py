"""A sampler that a certain batch kills, whoever makes it."""

import os
import signal

from khop.distributed.sampling import worker

VICTIM = 5

_run = worker.Sampler._run


def _run_or_die(self, task):
    if task.key[1] == VICTIM:
        os.kill(os.getpid(), signal.SIGSEGV)
    return _run(self, task)


def main():
    """The sampler's program."""
    worker.Sampler._run = _run_or_die
    worker.main()
