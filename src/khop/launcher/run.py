"""Run of a job by `khop run`: its hosts are checked, its processes started, watched and ended.

One thread serves the connections to all hosts. Whatever ends this process closes them, and the
stages on the hosts then end all processes. The first failure decides: the job ends, and the
first process that failed gives its cause and exit status. Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from khop.errors import ProtocolError
from khop.launcher.job import Job
from khop.launcher.output import Output
from khop.launcher.preflight import compare
from khop.launcher.session import Message, Report, Session, receive_all, signal_name

_BEAT_SECONDS = 1.0
_LEAVING_SECONDS, _START_SECONDS = 2.0, 120.0
BAD_INPUT = 2


class CheckError(ValueError):
    """Error of the checks before the start, with a line per host and problem."""


class Failure(Exception):
    """First failure of a job: exit status and cause."""

    def __init__(self, status: int, cause: str, origin: str | None = None) -> None:
        super().__init__(cause)
        self.status, self._origin = status, origin

    def report(self, output: Output) -> str:
        """Return the cause, and the last lines of the process that has failed."""
        lines = output.last_lines(self._origin) if self._origin is not None else []
        return "\n".join([str(self), *(f"  {line}" for line in lines)])


class JobRun:
    """A job that runs.

    Args:
        job: the job.
        command_of: function that returns the words that start the stage on a host.
        output: writer of the processes' output.
    """

    def __init__(
        self,
        job: Job,
        command_of: Callable[[str], Sequence[str]],
        output: Output,
    ) -> None:
        self._job, self._output = job, output
        self._beat_at, self._has_started, self._is_over = 0.0, False, False
        self._processes = [
            [p for p in job.processes if p.host == host] for host in range(len(job.hosts))
        ]
        self._ended: set[str] = set()
        self.sessions = [Session(host, command_of(host), Message) for host in job.hosts]

    def check(self) -> list[Report]:
        """Return the reports of all hosts, when all agree and reach each other.

        Raises:
            CheckError: some do not.
        """
        options, files = self._job.options, self._job.files()
        for host, session in enumerate(self.sessions):
            session.send(
                check={
                    "environment": dict(options.environment),
                    "folder": options.folder,
                    "files": files,
                    "processes": len(self._processes[host]),
                    "parts": options.parts,
                    "num_servers": len(self._job.servers),
                    "servers": [p.rank for p in self._job.servers if p.host == host],
                    "interface": options.interface,
                    "lease": options.lease,
                    "grace": options.grace,
                    "run": self._job.run_on(host),
                }
            )
        reports: list[Report] = self._answers("checked")
        if problems := compare(self._job, reports):
            raise CheckError("\n".join(problems))
        if len(reports) > 1:
            self._check_reach(reports)
        return reports

    def _check_reach(self, reports: Sequence[Report]) -> None:
        targets = [(report.address, report.ports[0]) for report in reports]
        for session in self.sessions:
            session.send(reach=targets)
        answers: list[dict[int, str]] = self._answers("reached")
        problems = [
            f"{session.host}: cannot reach {self._job.hosts[index]} at "
            f"{targets[index][0]}: {reason}"
            for session, failed in zip(self.sessions, answers, strict=True)
            for index, reason in failed.items()
            if index < len(targets)
        ]
        if problems:
            raise CheckError("\n".join(problems))

    def start(self, masters: Sequence[str]) -> None:
        """Start all processes. `masters` has HOST:PORT of trainer 0, and of server 0."""
        keys = self._job.keys()
        self._has_started = True
        for session, processes in zip(self.sessions, self._processes, strict=True):
            session.send(
                start=[
                    {
                        "arguments": self._job.command_of(process, masters),
                        "environment": self._job.environment_of(process, masters),
                        "key": keys.get(process.role),
                    }
                    for process in processes
                ]
            )

    def wait(self) -> None:
        """Forward output until all trainers have ended with status 0.

        Raises:
            Failure: a process or host has failed.
            BrokenPipeError: the reader of standard output has gone.
        """
        trainers = {self._label(process.host, process.label) for process in self._job.trainers}
        while not trainers <= self._ended:
            failures = []
            try:
                arrived = self._round()
            except ProtocolError as error:
                raise Failure(1, str(error)) from None
            for session, message in arrived:
                try:
                    self._take(session, message)
                except (Failure, ProtocolError) as error:
                    failures.append(error)
            if failures:
                first = failures[0]
                raise first if isinstance(first, Failure) else Failure(1, str(first))
            for session, processes in zip(self.sessions, self._processes, strict=True):
                labels = {self._label(process.host, process.label) for process in processes}
                if labels <= self._ended:
                    continue
                silent = time.monotonic() - session.heard_at
                if session.is_lost:
                    raise Failure(1, f"host {session.host} {session.description_of_end()}")
                if silent > self._job.options.lease:
                    session.abandon()
                    raise Failure(1, f"host {session.host} has been silent for {silent:.0f} s")

    def end(self) -> None:
        """End all processes of the job, and forward their last output. Returns in bounded time.

        A second call does nothing.
        """
        if self._is_over:
            return
        self._is_over = True
        for session in self.sessions:
            session.end()
        seconds = self._job.options.grace + _LEAVING_SECONDS if self._has_started else 0.5
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(session.has_ended for session in self.sessions):
            try:
                for session, message in self._round():
                    if message.out is not None:
                        self._print(session, message.out)
            except (ProtocolError, Failure):
                break
        for session in self.sessions:
            session.close(max(0.0, end - time.monotonic()))

    def _answers(self, name: str) -> list[Any]:
        """Return the answer of each host: the field `name` of a message."""
        answers: dict[int, Any] = {}
        problems: dict[int, str] = {}
        end = time.monotonic() + _START_SECONDS
        while len(answers) + len(problems) < len(self.sessions):
            try:
                arrived = self._round()
            except ProtocolError as error:
                raise CheckError(str(error)) from None
            for session, message in arrived:
                value = getattr(message, name)
                if value is not None:
                    answers[self.sessions.index(session)] = value
            for index, session in enumerate(self.sessions):
                if index in answers or index in problems:
                    continue
                if session.is_lost:
                    problems[index] = f"{session.host}: {session.description_of_end()}"
                elif time.monotonic() > end:
                    problems[index] = f"{session.host}: no answer in {_START_SECONDS:.0f} s"
        if problems:
            raise CheckError("\n".join(problems[index] for index in sorted(problems)))
        return [answers[index] for index in range(len(self.sessions))]

    def _take(self, session: Session[Message], message: Message) -> None:
        if message.out is not None:
            self._print(session, message.out)
        elif message.failed is not None:
            index, reason = message.failed
            raise Failure(127, f"{self._origin(session, index)}: {reason}")
        elif message.lost is not None:
            raise Failure(1, f"host {session.host}: {message.lost}")
        elif message.ended is not None:
            index, status, pid = message.ended
            origin = self._origin(session, index)
            self._ended.add(origin)
            if status < 0:
                name = signal_name(-status)
                raise Failure(
                    128 - status, f"{origin} (process {pid}) was killed by {name}", origin
                )
            if status > 0:
                raise Failure(
                    status, f"{origin} (process {pid}) exited with status {status}", origin
                )

    def _round(self) -> list[tuple[Session[Message], Message]]:
        """Wait briefly for the hosts. Return the messages that have arrived."""
        if self._output.error is not None:
            raise BrokenPipeError(*self._output.error.args)
        messages = receive_all(self.sessions, self._output.write, not self._output.is_slow)
        self._beat()
        return messages

    def _beat(self) -> None:
        is_due = time.monotonic() >= self._beat_at
        if is_due:
            self._beat_at = time.monotonic() + _BEAT_SECONDS
        for session in self.sessions:
            if is_due:
                session.send()
            else:
                session.flush()
            if self._output.is_slow:
                session.excuse()

    def _print(self, session: Session[Message], out: tuple[int, str]) -> None:
        self._output.write(self._origin(session, out[0]), out[1])

    def _origin(self, session: Session[Message], index: int) -> str:
        processes = self._processes[self.sessions.index(session)]
        if index >= len(processes):
            raise ProtocolError(f"host {session.host} has no process {index}")
        return self._label(processes[index].host, processes[index].label)

    def _label(self, host: int, label: str) -> str:
        return f"{self._job.hosts[host]}/{label}"
