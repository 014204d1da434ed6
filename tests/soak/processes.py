"""The processes of a soak: trainers, graph servers, and a client that comes and goes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import khop
from soak.ledger import Ledger
from soak.trainer import TrainerConfig

_LOG_LINES = 30
_TESTS = Path(__file__).parents[1]


def start_python(
    arguments: Sequence[str],
    log: Path,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    piped: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a program of khop or of the soak, in the log's folder.

    Args:
        arguments: arguments of the interpreter.
        log: file for its standard error, and for its output unless `piped`.
        prefix: words before the command.
        environment: variables in addition to this process's.
        piped: True if its standard input and output are pipes to this process.
    """
    paths = [str(path.absolute()) for path in (Path(khop.__file__).parents[1], _TESTS)]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    with log.open("a") as errors:
        return subprocess.Popen(
            [*prefix, sys.executable, *arguments],
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else errors,
            stderr=errors,
            cwd=log.parent,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "OMP_NUM_THREADS": "1",
                **(environment or {}),
            },
        )


def last_words(log: Path) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


class Trainer:
    """A trainer's process, and the ledger of what it delivers.

    Args:
        name: for reports.
        config: its configuration.
        ledger: records its batches.
        log: file for its standard error.
        prefix: words before its command.
        environment: added to this process's.
    """

    def __init__(
        self,
        name: str,
        config: TrainerConfig,
        ledger: Ledger,
        log: Path,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.log = log
        ledger.begin()
        arguments = ["-m", "soak.trainer", config.to_json()]
        self.process = start_python(arguments, log, prefix, environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *value = line.split()
            if word == b"b" and len(value) == 1 and line.endswith(b"\n"):
                self.ledger.deliver(int(value[0]))
            elif word == b"e":
                self.ledger.end_epoch()

    def stop(self) -> None:
        """Close the trainer's input, so that it ends after its epoch."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def wait(self, seconds: float) -> int | None:
        """Wait until the output is in the ledger. Return the exit status, None if it still runs."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(seconds)
        return status

    def describe_stacks(self) -> None:
        """Make the trainer write the stacks of all its threads to its log."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)

    def kill(self) -> None:
        """Kill and reap the trainer, and wait until its output is in the ledger."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


class GraphServer:
    """A `khop serve` that is started again when it has ended, as by an operator's supervisor.

    Args:
        rank: rank of the server.
        arguments: arguments of `khop serve`.
        log: file for its output.
        prefix: words before its command.
    """

    def __init__(
        self, rank: int, arguments: Sequence[str], log: Path, prefix: Sequence[str] = ()
    ) -> None:
        self.name = f"server {rank}"
        self.log = log
        self._arguments = ["-m", "khop.cli.main", "serve", *arguments]
        self._prefix = prefix
        self._start_at = 0.0
        self.num_starts = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.num_starts += 1
        return start_python(self._arguments, self.log, self._prefix, piped=False)

    def supervise(self, pause: float) -> None:
        """Start the server again if it has ended, `pause` seconds after the end was noticed."""
        if self.process.poll() is None:
            return
        now = time.monotonic()
        if self._start_at == 0.0:
            self._start_at = now + pause
        elif now >= self._start_at:
            self._start_at = 0.0
            self.process = self._start()

    def close(self) -> None:
        """Terminate the server as an operator does. If it has not ended after 10 s, kill it."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Visitor:
    """A client that joins, loads for a while, and leaves in order or is killed, again and again.

    Args:
        config: configuration of the client. Each process has another rank.
        ledger: records its batches.
        log: file for its standard error.
        prefix: words before its command.
        seed: seed of the durations and the ends of its visits.
    """

    def __init__(
        self,
        config: TrainerConfig,
        ledger: Ledger,
        log: Path,
        prefix: Sequence[str],
        seed: int,
    ) -> None:
        self.ledger = ledger
        self.log = log
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._config = config
        self._prefix = prefix
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._current: Trainer | None = None
        self._thread = threading.Thread(target=self._visit_for_ever, daemon=True)
        self._thread.start()

    @property
    def pids(self) -> list[int]:
        """Pid of the client's process, if there is one."""
        current = self._current
        return [] if current is None else [current.process.pid]

    def _visit_for_ever(self) -> None:
        rank = self._config.rank
        while not self._over.is_set():
            config = replace(self._config, rank=rank)
            rank += 1
            self._current = visit = Trainer("visitor", config, self.ledger, self.log, self._prefix)
            self._wait_for_batches(visit)
            self._over.wait(self._random.uniform(0, 6))
            if self._random.random() < 0.5:
                visit.kill()
                self.counts["killed client"] += 1
            else:
                self._part(visit)
            self._current = None
            self._over.wait(self._random.uniform(0, 3))

    def _wait_for_batches(self, visit: Trainer) -> None:
        begin, seconds = self.ledger.counts.delivered, 60.0
        self._until(lambda: self.ledger.counts.delivered > begin, visit, seconds)

    def _until(self, is_so: Callable[[], bool], visit: Trainer, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_so() and visit.process.poll() is None and time.monotonic() < end:
            if self._over.wait(0.1):
                return

    def _part(self, visit: Trainer) -> None:
        visit.stop()
        status = visit.wait(120)
        self.counts["client left"] += 1
        if status != 0:
            how = "did not leave" if status is None else f"ended with status {status}"
            visit.describe_stacks()
            self.problems.append(f"the visitor {how}:\n{last_words(self.log)}")
            visit.kill()

    def end(self) -> None:
        """Wait for the end of the client's last visit."""
        self._over.set()
        self._thread.join()
