"""A soak from beginning to end: prepare, run undisturbed, disturb, stop, conclude."""

from __future__ import annotations

import random
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from soak.faults import Faults, programs_below
from soak.ledger import Ledger
from soak.network import Hosts, NoNetworkError
from soak.outcome import Outcome, Settings
from soak.processes import GraphServer, Trainer, Visitor, last_words
from soak.trainer import TrainerConfig
from soak.watch import Watch, shared_on_machine, usage_of

_QUIET_SECONDS = 300.0  # the undisturbed cycle at most
_END_SECONDS = 180.0  # what trainers may take to finish their epoch when all is quiet again
_LEFT_SECONDS = 60.0  # after which servers hold nothing for clients that have left
_VISITOR = 100  # rank of its first process
_MANY_LIVES = 600.0  # seconds; before that the memory of servers depends on their age
# Seconds of epochs and faults after which the memory of a trainer has a trend.
_SOME_EPOCHS = 120.0


def soak(settings: Settings, report: Callable[[str], None] = print) -> Outcome:
    """Run a soak.

    Args:
        settings: its settings.
        report: function that is called with each line of progress.

    Returns:
        The findings.
    """
    outcome = Outcome()
    hosts = _hosts(settings, outcome)
    with tempfile.TemporaryDirectory(prefix="khop-soak-") as folder:
        try:
            _Soak(settings, outcome, Path(folder), hosts, report).run()
        finally:
            if hosts is not None:
                hosts.close()
    return outcome


def _hosts(settings: Settings, outcome: Outcome) -> Hosts | None:
    try:
        return Hosts() if settings.network else None
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
        hosts: Hosts | None,
        report: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._outcome = outcome
        self._folder = folder
        self._parts = folder / "parts"
        self._hosts = hosts
        self._print = report
        self._addresses = hosts.addresses if hosts else ["127.0.0.1", "127.0.0.1"]
        self._port = _free_port() if hosts is None else 29500
        self._trainers: list[Trainer] = []
        self._servers: list[GraphServer] = []
        self._visitor: Visitor | None = None
        self._random = random.Random(settings.seed)
        self._watch = Watch()

    def run(self) -> None:
        workload = self._settings.workload
        self._print(f"partitioning {workload.num_nodes:,} nodes, making what every batch must be")
        workload.write(self._parts, 2)
        ledgers = [Ledger(workload.expected(stream)) for stream in range(2)]
        before = shared_on_machine()
        try:
            self._start(ledgers)
            if self._undisturbed():
                self._disturbed(ledgers)
                self._finish()
        finally:
            for trainer in self._trainers:
                trainer.kill()
            for server in self._servers:
                server.close()
        self._conclude(ledgers)
        left = shared_on_machine() - before
        self._outcome.notes.append(f"shared memory of the machine afterwards: {left:+.0f} MiB")

    # Starting -----------------------------------------------------------------------------------

    def _start(self, ledgers: list[Ledger]) -> None:
        if self._settings.mode == "worker":
            self._trainers = [self._worker(rank, ledgers[rank]) for rank in range(2)]
            return
        self._servers = [self._server(rank) for rank in range(2)]
        config = self._config(0, stream=0)
        log = self._folder / "client.log"
        self._trainers = [Trainer("client", config, ledgers[0], log, self._prefix(0))]

    def _prefix(self, host: int) -> list[str]:
        return self._hosts.prefixes[host] if self._hosts else []

    def _config(self, rank: int, stream: int) -> TrainerConfig:
        return TrainerConfig(
            self._settings.mode,
            asdict(self._settings.workload),
            str(self._parts),
            rank,
            stream,
            num_servers=2,
            master=(self._addresses[0], self._port),
            key_file=str(self._folder / "keys" / "client.key") if self._hosts else None,
        )

    def _worker(self, rank: int, ledger: Ledger) -> Trainer:
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": self._addresses[0],
            "MASTER_PORT": str(self._port),
        }
        log = self._folder / f"trainer-{rank}.log"
        config = self._config(rank, stream=rank)
        return Trainer(f"trainer {rank}", config, ledger, log, self._prefix(rank), environment)

    def _server(self, rank: int) -> GraphServer:
        arguments = [
            *(str(self._parts), "--part", str(rank), "--rank", str(rank)),
            *("--num-servers", "2", "--num-clients", "0"),
            *("--master", f"{self._addresses[0]}:{self._port}"),
        ]
        if self._hosts:
            arguments += ["--host", self._addresses[rank], "--key-file", self._server_key()]
        log = self._folder / f"server-{rank}.log"
        return GraphServer(rank, arguments, log, self._prefix(rank))

    def _server_key(self) -> str:
        from khop.distributed.rpc.key_files import write_keys

        folder = self._folder / "keys"
        if not folder.exists():
            write_keys(folder)
        return str(folder / "server.key")

    # Running ------------------------------------------------------------------------------------

    def _undisturbed(self) -> bool:
        """Run the first cycle, without faults. Return False if it fails."""
        begin = time.monotonic()
        for trainer in self._trainers:
            while not trainer.ledger.wait_for_cycle(1, 1.0):
                everybody = [t.process for t in self._trainers] + [s.process for s in self._servers]
                has_ended = any(process.poll() is not None for process in everybody)
                if has_ended or time.monotonic() - begin > _QUIET_SECONDS:
                    self._blame(trainer, "did not finish the undisturbed cycle")
                    return False
        self._report(time.monotonic() - begin, "undisturbed, with start-up")
        return True

    def _disturbed(self, ledgers: list[Ledger]) -> None:
        settings, begin = self._settings, time.monotonic()
        for ledger in ledgers:
            ledger.watch_gaps()
        if settings.mode == "client":
            log, config = self._folder / "visitor.log", self._config(_VISITOR, stream=1)
            prefix = self._prefix(1)
            self._visitor = Visitor(config, ledgers[1], log, prefix, settings.seed)
        faults = Faults(
            self._roots,
            settings.seed,
            settings.interval,
            settings.roles,
            lambda: [trainer.ledger.counts.delivered for trainer in self._trainers],
            self._hosts,
        )
        next_word = begin + 10
        try:
            while (now := time.monotonic()) - begin < settings.minutes * 60:
                self._look(now - begin)
                if now >= next_word:
                    next_word = now + max(10.0, settings.minutes)
                    self._report(now - begin, f"{faults.kills} kills")
                if faults.failure is not None or not self._all_well():
                    break
                time.sleep(0.25)
        finally:
            faults.end()
            self._outcome.seconds = time.monotonic() - begin
            self._outcome.faults = dict(faults.counts)
        if faults.failure is not None:
            self._outcome.problems.append(f"the soak itself failed: {faults.failure!r}")

    def _roots(self) -> list[int]:
        pids = [trainer.process.pid for trainer in self._trainers]
        pids += [server.process.pid for server in self._servers]
        return [*pids, *(self._visitor.pids if self._visitor else [])]

    def _look(self, seconds: float) -> None:
        for server in self._servers:
            server.supervise(self._random.uniform(0, 1))
        pids = {trainer.name: trainer.process.pid for trainer in self._trainers}
        pids |= {server.name: server.process.pid for server in self._servers}
        self._watch.look(seconds, pids)

    def _report(self, seconds: float, state: str) -> None:
        counts = [t.ledger.counts for t in self._trainers]
        counts += [self._visitor.ledger.counts] if self._visitor else []
        done, wrong = sum(c.delivered for c in counts), sum(c.wrong for c in counts)
        self._print(f"{seconds:6.0f} s  {state}: {done} batches, {wrong} wrong")

    def _all_well(self) -> bool:
        for trainer in self._trainers:
            if trainer.process.poll() is not None:
                self._blame(trainer, f"ended with status {trainer.process.returncode}")
                return False
            silent = time.monotonic() - trainer.ledger.last_progress
            if silent > self._settings.patience:
                self._blame(trainer, f"has delivered nothing for {silent:.0f} s")
                return False
        return self._visitor is None or not self._visitor.problems

    def _blame(self, trainer: Trainer, failure: str) -> None:
        trainer.describe_stacks()
        logs = [trainer.log, *(server.log for server in self._servers)]
        words = "\n".join(f"--- {log.name}\n{last_words(log)}" for log in logs)
        self._outcome.problems.append(f"{trainer.name} {failure}:\n{words}")

    # Ending -------------------------------------------------------------------------------------

    def _finish(self) -> None:
        for _ in range(20 if self._outcome.kills else 0):  # servers that were killed last come back
            self._look(self._outcome.seconds)
            time.sleep(0.1)
        if self._visitor is not None:
            self._visitor.end()
            self._outcome.problems += self._visitor.problems
            self._outcome.faults.update(self._visitor.counts)
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
        self._check_servers()

    def _check_servers(self) -> None:
        """Check that servers have no samplers and no shared memory of clients that have left."""
        end = time.monotonic() + _LEFT_SECONDS
        while (left := self._left_on_servers()) and time.monotonic() < end:
            time.sleep(0.5)
        if left:
            self._outcome.problems.append(f"all clients have gone, but {' and '.join(left)}")

    def _left_on_servers(self) -> list[str]:
        left = []
        for server in self._servers:
            samplers = programs_below([server.process.pid])["sampler"]
            usage = usage_of(server.process.pid)
            shared = 0.0 if usage is None else usage.shared
            if samplers or shared >= 1:
                left.append(f"{server.name} has {len(samplers)} samplers, {shared:.0f} MiB shared")
        return left

    def _conclude(self, ledgers: list[Ledger]) -> None:
        outcome = self._outcome
        outcome.trainers = [ledger.counts for ledger in ledgers]
        outcome.longest_gaps = [ledger.longest_gap for ledger in ledgers]
        for stream, counts in enumerate(outcome.trainers):
            if counts.wrong:
                outcome.problems.append(
                    f"trainer {stream}: {counts.lost} batches lost, {counts.doubled} doubled, "
                    f"{counts.changed} changed, of {counts.delivered}"
                )
        if outcome.seconds and not outcome.kills:
            outcome.problems.append("nothing was killed")
        outcome.trends = self._watch.trends()
        servers = [server.name for server in self._servers]
        for name, of in outcome.trends.items():
            if outcome.seconds < (_MANY_LIVES if name in servers else _SOME_EPOCHS):
                continue
            for measure, trend in of.items():
                if not trend.is_flat:
                    outcome.problems.append(
                        f"{name}: {measure} grew by {trend.growth:.1f}, bound {trend.bound:.1f}"
                    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
