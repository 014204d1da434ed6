"""Trainers of one machine, for stages that need several."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def run_trainers(module: str, num_trainers: int, words: Sequence[str]) -> list[Any]:
    """Run a program as so many trainers, and return what each has printed last, as JSON.

    The program `khop_bench.gpu.<module>` gets `words`, and RANK and other variables of torchrun.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {
        **{"WORLD_SIZE": str(num_trainers), "LOCAL_WORLD_SIZE": str(num_trainers)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }
    trainers = [
        subprocess.Popen(
            [sys.executable, "-m", f"khop_bench.gpu.{module}", *words],
            env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_trainers)
    ]
    printed = [trainer.communicate()[0] for trainer in trainers]
    for rank, trainer in enumerate(trainers):
        if trainer.returncode != 0:
            raise RuntimeError(f"trainer {rank} ended with status {trainer.returncode}")
    return [json.loads(text.splitlines()[-1]) for text in printed]
