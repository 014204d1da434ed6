"""A soak from beginning to end: prepare, run undisturbed, disturb, stop, report."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import khop
from khop.bench.report import table_lines
from khop.bench.soak.faults import Faults
from khop.bench.soak.ledger import Counts, Ledger
from khop.bench.soak.network import NoNetworkError, TwoHosts
from khop.bench.soak.trainer import TrainerConfig
from khop.bench.soak.watch import Trend, Watch, shared_on_machine
from khop.bench.soak.workload import Workload

_QUIET_SECONDS = 300.0  # the undisturbed cycle at most
_END_SECONDS = 180.0  # what trainers may take to finish their epoch when all is quiet again
_LOG_LINES = 30


@dataclass(frozen=True)
class Settings:
    """What a soak does.

    Attributes:
        minutes: how long faults strike.
        mode: 'worker'.
        interval: seconds between two kills on average.
        patience: seconds without a batch that count as a hang.
        seed: of faults; the workload has its own.
        roles: whom to kill.
        network: disturb the network, where the machine allows it.
        workload: what is loaded.
    """

    minutes: float = 30.0
    mode: str = "worker"
    interval: float = 1.8
    patience: float = 90.0
    seed: int = 0
    roles: tuple[str, ...] = ("sampler", "server")
    network: bool = True
    workload: Workload = field(default_factory=Workload)


@dataclass
class Outcome:
    """What a soak found.

    Attributes:
        seconds: how long faults struck.
        trainers: what became of each trainer's batches.
        longest_gaps: seconds between two batches at most, a trainer each.
        faults: how often each happened.
        trends: what became of each trainer's memory and descriptors.
        notes: what was left out.
        problems: what went wrong, a sentence each; empty if the soak passed.
    """

    seconds: float = 0.0
    trainers: list[Counts] = field(default_factory=list)
    longest_gaps: list[float] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    trends: dict[str, dict[str, Trend]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Processes that were killed."""
        return sum(n for what, n in self.faults.items() if what.startswith("killed"))

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        trends = {
            name: {kind: {**t._asdict(), "flat": t.is_flat} for kind, t in of.items()}
            for name, of in self.trends.items()
        }
        return {**asdict(self), "kills": self.kills, "trends": trends}

    def lines(self) -> list[str]:
        """A table of it."""
        head = ["", *(f"trainer {rank}" for rank in range(len(self.trainers)))]
        rows = [head]
        for kind in ("delivered", "lost", "doubled", "changed", "epochs"):
            rows.append([kind, *(str(getattr(c, kind)) for c in self.trainers)])
        rows.append(["longest gap (s)", *(f"{gap:.2f}" for gap in self.longest_gaps)])
        for kind, unit in (("private", " MiB"), ("shared", " MiB"), ("descriptors", "")):
            cells = [of[kind] for of in self.trends.values()]
            rows.append(
                [f"{kind}: mean, growth{unit}", *(f"{t.mean:.0f} {t.growth:+.1f}" for t in cells)]
            )
        faults = [["fault", "times"], *([what, str(n)] for what, n in sorted(self.faults.items()))]
        return [*table_lines(rows), "", *table_lines(faults)]


class Trainer:
    """A trainer's process, and the ledger of what it delivers.

    Args:
        name: for logs.
        config: what it does.
        ledger: what its batches are entered in.
        log: file for what it says on its standard error.
        prefix: goes before its command.
        environment: added to this process's.
    """

    def __init__(
        self,
        name: str,
        config: TrainerConfig,
        ledger: Ledger,
        log: Path,
        prefix: list[str],
        environment: dict[str, str],
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.log = log
        source = str(Path(khop.__file__).absolute().parents[1])
        paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
        ledger.begin()
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "khop.bench.soak.trainer", config.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=log.parent,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *value = line.split()
            if word == b"b":
                self.ledger.deliver(int(value[0]))
            elif word == b"e":
                self.ledger.end_epoch()

    def stop(self) -> None:
        """Asks it to end after its epoch."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self, seconds: float) -> int | None:
        """Its exit status, once all that it said is in the ledger; None if it has not ended."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(seconds)
        return status

    def describe_stacks(self) -> None:
        """Has it write to its log where all its threads are."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)

    def kill(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def soak(settings: Settings, say: Callable[[str], None] = print) -> Outcome:
    """Runs a soak.

    Args:
        settings: what it does.
        say: called with each line of progress.

    Returns:
        What was found.
    """
    outcome = Outcome()
    hosts = _hosts(settings, outcome)
    with tempfile.TemporaryDirectory(prefix="khop-soak-") as folder:
        try:
            _Soak(settings, outcome, Path(folder), hosts, say).run()
        finally:
            if hosts is not None:
                hosts.close()
    return outcome


def _hosts(settings: Settings, outcome: Outcome) -> TwoHosts | None:
    try:
        return TwoHosts() if settings.network else None
    except NoNetworkError as error:
        outcome.notes.append(f"the network was left alone: {error}")
        return None


class _Soak:
    """One run."""

    def __init__(
        self,
        settings: Settings,
        outcome: Outcome,
        folder: Path,
        hosts: TwoHosts | None,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._outcome = outcome
        self._folder = folder
        self._hosts = hosts
        self._say = say
        self._trainers: list[Trainer] = []
        self._watch = Watch()

    def run(self) -> None:
        say, workload = self._say, self._settings.workload
        say(f"partitioning {workload.num_nodes:,} nodes, and making what every batch must be")
        workload.write(self._folder / "parts", 2)
        ledgers = [Ledger(workload.expected(rank)) for rank in range(2)]
        before = shared_on_machine()
        try:
            self._trainers = [self._start(rank, ledger) for rank, ledger in enumerate(ledgers)]
            if self._undisturbed():
                self._disturbed()
                self._finish()
        finally:
            for trainer in self._trainers:
                trainer.kill()
        self._conclude(before)

    def _start(self, rank: int, ledger: Ledger) -> Trainer:
        master = self._hosts.addresses[0] if self._hosts else "127.0.0.1"
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": master,
            "MASTER_PORT": self._port(),
        }
        settings = self._settings
        config = TrainerConfig(
            settings.mode, asdict(settings.workload), str(self._folder / "parts"), rank, 2
        )
        prefix = self._hosts.prefixes[rank] if self._hosts else []
        log = self._folder / f"trainer-{rank}.log"
        return Trainer(f"trainer {rank}", config, ledger, log, prefix, environment)

    def _port(self) -> str:
        if self._hosts:  # a namespace of its own: every port is free
            return "29500"
        if not hasattr(self, "_free_port"):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._free_port = str(probe.getsockname()[1])
        return self._free_port

    def _undisturbed(self) -> bool:
        """The first cycle, without faults."""
        begin = time.monotonic()
        for trainer in self._trainers:
            while not trainer.ledger.wait_for_cycle(1, 1.0):
                if time.monotonic() - begin > _QUIET_SECONDS or trainer.process.poll() is not None:
                    self._blame(trainer, "did not finish the undisturbed cycle")
                    return False
        done = sum(t.ledger.counts.delivered for t in self._trainers)
        wrong = sum(t.ledger.counts.wrong for t in self._trainers)
        seconds = time.monotonic() - begin
        self._say(f"undisturbed: {done} batches in {seconds:.1f} s with start-up, {wrong} wrong")
        return True

    def _disturbed(self) -> None:
        settings, begin = self._settings, time.monotonic()
        pids = {t.name: t.process.pid for t in self._trainers}
        for trainer in self._trainers:
            trainer.ledger.watch_gaps()
        faults = Faults(pids.values, settings.seed, settings.interval, settings.roles, self._hosts)
        next_word = begin + 10
        try:
            while (now := time.monotonic()) - begin < settings.minutes * 60:
                self._watch.look(now - begin, pids)
                if now >= next_word:
                    next_word = now + max(10.0, settings.minutes)
                    self._report(now - begin, faults)
                if faults.failure is not None or not self._all_well():
                    break
                time.sleep(0.5)
        finally:
            faults.end()
            self._outcome.faults = dict(faults.counts)
            self._outcome.seconds = time.monotonic() - begin
        if faults.failure is not None:
            self._outcome.problems.append(f"the soak itself failed: {faults.failure!r}")

    def _report(self, seconds: float, faults: Faults) -> None:
        done = sum(t.ledger.counts.delivered for t in self._trainers)
        wrong = sum(t.ledger.counts.wrong for t in self._trainers)
        self._say(f"{seconds:6.0f} s  {faults.kills} kills, {done} batches, {wrong} wrong")

    def _all_well(self) -> bool:
        for trainer in self._trainers:
            if trainer.process.poll() is not None:
                self._blame(trainer, f"ended with status {trainer.process.returncode}")
                return False
            silent = time.monotonic() - trainer.ledger.last_progress
            if silent > self._settings.patience:
                self._blame(trainer, f"has delivered nothing for {silent:.0f} s")
                return False
        return True

    def _blame(self, trainer: Trainer, what: str) -> None:
        trainer.describe_stacks()
        self._outcome.problems.append(f"{trainer.name} {what}:\n{trainer.last_words()}")

    def _finish(self) -> None:
        if self._outcome.problems:
            return
        for trainer in self._trainers:
            trainer.stop()
        end = time.monotonic() + _END_SECONDS
        for trainer in self._trainers:
            status = trainer.wait(max(0.1, end - time.monotonic()))
            if status != 0:
                how = "does not end" if status is None else f"ended with status {status}"
                self._blame(trainer, f"{how} after the faults")

    def _conclude(self, shared_before: float) -> None:
        outcome = self._outcome
        outcome.trainers = [t.ledger.counts for t in self._trainers]
        outcome.longest_gaps = [t.ledger.longest_gap for t in self._trainers]
        for trainer in self._trainers:
            counts = trainer.ledger.counts
            if counts.wrong:
                outcome.problems.append(
                    f"{trainer.name}: {counts.lost} batches lost, {counts.doubled} doubled, "
                    f"{counts.changed} changed, of {counts.delivered}"
                )
        outcome.trends = self._watch.trends()
        for name, of in outcome.trends.items():
            for kind, trend in of.items():
                if not trend.is_flat:
                    outcome.problems.append(
                        f"{name}: {kind} grew by {trend.growth:.1f}, bound {trend.bound:.1f}"
                    )
        left = shared_on_machine() - shared_before
        outcome.notes.append(f"shared memory of the machine afterwards: {left:+.0f} MiB")


def write_report(outcome: Outcome, settings: Settings, path: Path) -> None:
    """Writes settings and outcome as JSON."""
    content = {"settings": asdict(settings), **outcome.to_json()}
    path.write_text(json.dumps(content, indent=1) + "\n")
