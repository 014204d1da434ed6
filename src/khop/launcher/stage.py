"""Remote stage of `khop run`: checks a host, starts its processes, forwards output, ends them.

`khop run` sends this file, `ending` and `host_checks` to a Python interpreter on each host, by
standard input. So they import only the standard library at first, and all hosts run the same
version. Imports no torch.

Both sides write lines of JSON. From `khop run` to the stage, an object with one of these keys:

    check   what `host_checks.check` takes, lease, grace, run   -> checked: the host's report
    reach   addresses and ports of all hosts                    -> reached: failures
    start   the processes of this host                          -> out, ended, and done at the end

An empty line is a sign of life, in both directions. The end of standard input, or silence for the
length of a lease, ends all processes of the job: SIGTERM, and SIGKILL after the grace. If the stage
itself is killed, its guard does the same. The guard is a fork that waits for the stage's end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from khop.launcher.ending import ROUND_SECONDS, VARIABLE, ending, start_guard
from khop.launcher.host_checks import check, listen, reach, reserve

_CHUNK, _MAX_LINE, _MAX_UNSENT = 1 << 16, 1 << 16, 1 << 20
_BEAT_SECONDS, _FLUSH_SECONDS = 1.0, 1.0


class Launcher:
    """Connection to `khop run`, over standard input and output. No call of it waits."""

    def __init__(self) -> None:
        self._received, self._unsent = b"", bytearray()
        self.heard_at = time.monotonic()
        self.is_gone = self._is_broken = False
        for descriptor in (0, 1):
            os.set_blocking(descriptor, False)

    @property
    def is_slow(self) -> bool:
        """True if so much output is unsent that none of the processes' should be read."""
        return len(self._unsent) > _MAX_UNSENT

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def silence(self) -> float:
        """Seconds since the last sign of life of `khop run`."""
        return time.monotonic() - self.heard_at

    def send(self, **message: object) -> None:
        """Send a message, or a sign of life without one."""
        if self._is_broken:
            return
        self._unsent += json.dumps(message).encode() + b"\n" if message else b"\n"
        self.flush()

    def flush(self) -> None:
        """Write as much as the connection takes."""
        try:
            while self._unsent:
                del self._unsent[: os.write(1, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = self._is_broken = True
            self._unsent.clear()

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived."""
        try:
            while chunk := os.read(0, _CHUNK):
                self._received += chunk
                self.heard_at = time.monotonic()
            self.is_gone = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines if line]


class Child:
    """A process of the job, and its output by lines.

    Args:
        index: its index in the messages.
        process: `arguments`, where None stands for this interpreter, `environment` and `key`.
        num_threads: OMP_NUM_THREADS of a process without a placement.
    """

    def __init__(self, index: int, process: Mapping[str, Any], num_threads: int) -> None:
        from khop.placement import bound_command

        self.index = index
        environment = {**os.environ, **process["environment"]}
        words = [sys.executable if word is None else word for word in process["arguments"]]
        if "LOCAL_RANK" in process["environment"]:  # a trainer
            words = bound_command(words, environment)
        environment.setdefault("OMP_NUM_THREADS", str(num_threads))
        if process["key"] is not None:
            # Other processes of this user read it through the stage. It is on no disk.
            key = os.memfd_create("khop-key")
            os.fchmod(key, 0o600)
            os.write(key, json.dumps(process["key"]["content"]).encode())
            environment[process["key"]["variable"]] = f"/proc/{os.getpid()}/fd/{key}"
        self._process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        streams = (self._process.stdout, self._process.stderr)
        self.begun = {stream.fileno(): b"" for stream in streams if stream is not None}
        for descriptor in self.begun:
            os.set_blocking(descriptor, False)

    @property
    def status(self) -> int | None:
        """Exit status, below 0 the signal that ended it, or None while it runs."""
        return self._process.poll()

    def lines(self) -> list[str]:
        """Return the lines of output that have arrived. An unfinished one waits for its end."""
        lines: list[bytes] = []
        for descriptor, begun in list(self.begun.items()):
            try:
                chunk = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                continue
            *whole, rest = (begun + chunk).replace(b"\r", b"\n").split(b"\n")
            lines += whole
            if rest and (not chunk or len(rest) > _MAX_LINE):
                lines.append(rest)
                rest = b""
            self.begun[descriptor] = rest
            if not chunk:
                del self.begun[descriptor]
        return [line.decode("utf-8", "backslashreplace") for line in lines]


class Stage:
    """State of the stage from `start` to the end of all processes.

    Args:
        launcher: the connection.
        cookie: bytes that all processes of the job have in their environment.
        lease: seconds of silence of `khop run` after which it counts as lost.
        grace: seconds from SIGTERM to SIGKILL.
    """

    def __init__(self, launcher: Launcher, cookie: bytes, lease: float, grace: float) -> None:
        self._launcher, self._cookie, self._lease, self._grace = launcher, cookie, lease, grace
        self._guard, self._pipe = start_guard(cookie, grace)
        self._children: list[Child] = []
        self._ended: set[int] = set()
        self._ending: Iterator[dict[int, int]] | None = None
        self._beat_at, self._signal = 0.0, 0
        for ends in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(ends, self._note)

    def _note(self, signal_number: int, _: FrameType | None) -> None:
        self._signal = signal_number

    def start(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Start the processes. If one cannot be started, all end."""
        from khop.cores import available_cores

        num_threads = max(1, available_cores() // len(processes))
        for index, process in enumerate(processes):
            try:
                self._children.append(Child(index, process, num_threads))
            except OSError as error:
                reason = (
                    f"cannot start {process['arguments'][0] or sys.executable}: {error.strerror}"
                )
                self._launcher.send(failed=[index, reason])
                self._ended.add(index)
                self._end()

    def run(self) -> None:
        """Forward output until all processes have ended."""
        while True:
            self._wait()
            self._launcher.receive()
            self._forward()
            self._look_for_ends()
            if self._ending is not None and next(self._ending, None) is None:
                break
        self._forward()
        self._look_for_ends()
        with contextlib.suppress(BrokenPipeError):  # the guard was killed
            os.write(self._pipe, b".")
        self._launcher.send(done=True)

    def _wait(self) -> None:
        poller = select.poll()
        if not self._launcher.is_gone:
            poller.register(0, select.POLLIN)
        if self._launcher.has_unsent:
            poller.register(1, select.POLLOUT)
        if not self._launcher.is_slow:
            for child in self._children:
                for descriptor in child.begun:
                    poller.register(descriptor, select.POLLIN)
        poller.poll(1000 * ROUND_SECONDS)
        self._launcher.flush()
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + _BEAT_SECONDS
            self._launcher.send()

    def _forward(self) -> None:
        is_slow = self._launcher.is_slow
        if is_slow and not self._launcher.is_gone:
            return
        for child in self._children:
            for line in child.lines():
                if not is_slow:  # else nobody may ever read it
                    self._launcher.send(out=[child.index, line])

    def _look_for_ends(self) -> None:
        for child in self._children:
            status = child.status
            if status is not None and child.index not in self._ended:
                self._ended.add(child.index)
                for line in child.lines():
                    self._launcher.send(out=[child.index, line])
                self._launcher.send(ended=[child.index, status, child.pid])
        if self._signal and self._ending is None:
            name = signal.Signals(self._signal).name
            self._launcher.send(lost=f"the stage was ended by {name}")
        elif self._ending is None and os.waitpid(self._guard, os.WNOHANG)[0]:
            self._launcher.send(lost="the stage's guard was killed")
        elif self._ending is None and self._launcher.silence > self._lease:
            self._launcher.send(lost=f"khop run was silent for {self._launcher.silence:.0f} s")
        elif not self._launcher.is_gone and len(self._ended) < len(self._children):
            return
        self._end()

    def _end(self) -> None:
        if self._ending is None:
            self._ending = ending(self._cookie, self._grace)


def main() -> None:
    """Serve one `khop run`: answer its checks, then run its processes."""
    launcher, listeners, lease, grace, cookie = Launcher(), [listen(), listen()], 60.0, 3.0, b""
    while True:
        poller = select.poll()
        poller.register(0, select.POLLIN)
        poller.poll(1000 * _BEAT_SECONDS)
        launcher.send()
        messages = launcher.receive()
        if launcher.is_gone or launcher.silence > lease:
            return
        for message in messages:
            if "check" in message:
                request = message["check"]
                lease, grace = request["lease"], request["grace"]
                cookie = f"{VARIABLE}={request['run']}\0".encode()
                launcher.send(
                    checked={**check(request), "ports": [one.getsockname()[1] for one in listeners]}
                )
            elif "reach" in message:
                launcher.send(reached=reach(message["reach"]))
            elif "start" in message:
                for listener in listeners:  # their ports stay reserved
                    reserve(listener)
                stage = Stage(launcher, cookie, lease, grace)
                stage.start(message["start"])
                stage.run()
                end = time.monotonic() + _FLUSH_SECONDS
                while launcher.has_unsent and time.monotonic() < end:
                    launcher.flush()
                    time.sleep(0.01)
                return
