"""Connection to the stage on one host, for `khop run` and `khop distribute`: a child and its pipes.

The child process is ssh, or Python itself on this machine. All that arrives is bounded and checked.
Only `receive_all` waits. Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Generic, TypeVar

from khop.codec import AtMost, Between, from_json
from khop.errors import ProtocolError
from khop.launcher import ending, host_checks, stage
from khop.launcher.job import THIS_HOST

_BOOTSTRAP = "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
# The first line of a stage: what comes before is not from khop.
_MAGIC = b"khop-stage 1\n"
# khop need not be there: modules are imported by their names from what has arrived.
_PROGRAM = """
import os, sys
sys.path[:] = filter(None, sys.path)  # no modules of the home folder
import types
for name, source in {sources!r}.items():
    sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), vars(sys.modules[name]))
os.write(1, {magic!r})
sys.modules[name].main()
"""
_SSH = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
_ROUND_MILLISECONDS, _REAPED_SECONDS, _LOST_SECONDS, _LOST_LOOKS = 200, 0.5, 1.0, 4
_CHUNK, _MAX_MESSAGE, _MAX_NOISE, _KEPT_LINES = 1 << 16, 1 << 20, 1 << 16, 10

Text = Annotated[str, AtMost(4096)]
Index = Annotated[int, Between(0, 4096)]
Port = Annotated[int, Between(1, 65_535)]


@dataclass(frozen=True)
class Report:
    """Report of a host before the start: what runs there, and what is wrong.

    Attributes:
        name: the host's own name.
        interpreter: path of Python.
        versions: versions of Python and of packages, or 'missing'.
        files: digests of files, or 'error: ' and the reason.
        address: address of the host for others, or None if unknown.
        problems: what is wrong.
        ports: two free ports.
    """

    name: Text
    interpreter: Text
    versions: Annotated[dict[str, Text], AtMost(16)]
    files: Annotated[dict[str, Text], AtMost(16)]
    address: Text | None
    problems: Annotated[list[Text], AtMost(16)]
    ports: tuple[Port, Port]


@dataclass(frozen=True)
class Message:
    """Message of a stage. One of the fields is set."""

    checked: Report | None = None
    reached: Annotated[dict[int, Text], AtMost(4096)] | None = None
    out: tuple[Index, Annotated[str, AtMost(1 << 19)]] | None = None
    ended: tuple[Index, Annotated[int, Between(-128, 255)], int] | None = None
    failed: tuple[Index, Text] | None = None
    lost: Text | None = None
    done: bool | None = None


JOB_STAGE = (ending, host_checks, stage)
"""Modules of the stage of a job."""


@cache
def stage_source(modules: Sequence[ModuleType] = JOB_STAGE) -> bytes:
    """Return the program that hosts get: sources of modules, and a call of the last one's `main`.

    Modules may import the standard library, and those before them.
    """
    sources = {one.__name__: Path(str(one.__file__)).read_text() for one in modules}
    return _PROGRAM.format(sources=sources, magic=_MAGIC).encode()


def transport_command(host: str, rsh: Sequence[str], python: Sequence[str]) -> list[str]:
    """Return the words that start the stage on a host.

    Args:
        host: name of the host.
        rsh: words of the transport. `{host}` in a word stands for the host, else it is appended.
        python: words that start Python there.
    """
    if host == THIS_HOST:
        return [*python, "-c", _BOOTSTRAP]
    words = [word.replace("{host}", host) for word in rsh]
    if Path(words[0]).name == "ssh":  # the user's own options come first, and count
        words += _SSH
    if not any("{host}" in word for word in rsh):
        words.append(host)
    return [*words, "exec " + shlex.join([*python, "-c", _BOOTSTRAP])]


def signal_name(signal_number: int) -> str:
    """Return the name of a signal: 'SIGKILL' of 9."""
    with contextlib.suppress(ValueError):
        return signal.Signals(signal_number).name
    return f"signal {signal_number}"


M = TypeVar("M")


class Session(Generic[M]):
    """Connection to the stage on a host.

    Args:
        host: name of the host, for messages.
        command: words that start the stage.
        message: dataclass of the stage's messages.
        modules: modules of the stage, see `stage_source`.

    Attributes:
        is_ready: True when the stage has started.
        has_ended: True when its output has ended.
        heard_at: time of the last sign of life, of `time.monotonic`.
    """

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        message: type[M],
        modules: Sequence[ModuleType] = JOB_STAGE,
    ) -> None:
        self.host, self._message = host, message
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C goes to `khop run` alone.
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self.stdin = self._process.stdin.fileno()
        self.stdout = self._process.stdout.fileno()
        self.stderr = self._process.stderr.fileno()
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(descriptor, False)
        source = stage_source(modules)
        self._source, self._unsent = bytearray(b"%d\n%s" % (len(source), source)), bytearray()
        self._received, self._errors, self._noise = b"", b"", 0
        self._is_closed = False
        self.is_ready = self.has_ended = self.has_no_errors = False
        self.heard_at = time.monotonic()
        self._looks, self._ended_at = 0, 0.0  # since the transport has ended
        self.last_lines: deque[str] = deque(maxlen=_KEPT_LINES)

    @property
    def has_unsent(self) -> bool:
        return bool(self._waiting()) and not self._is_closed

    @property
    def unsent_bytes(self) -> int:
        """Bytes of messages that are not sent yet."""
        return len(self._unsent)

    def send(self, **message: object) -> None:
        """Send a message, or a sign of life without one."""
        if message:
            self._unsent += json.dumps(message).encode()
        if message or not self._unsent:
            self._unsent += b"\n"
        self.flush()

    def send_bytes(self, content: bytes) -> None:
        """Send bytes that the message before them has announced."""
        self._unsent += content
        self.flush()

    def flush(self) -> None:
        """Write as much as the connection takes."""
        if self._is_closed:
            return
        try:
            while waiting := self._waiting():
                del waiting[: os.write(self.stdin, waiting)]
        except BlockingIOError:
            pass
        except OSError:  # its end is read from its output
            self.end()

    def _waiting(self) -> bytearray:
        # Python reads ahead while it reads the stage's source: messages follow its first line.
        return self._source or (self._unsent if self.is_ready else bytearray())

    def end(self) -> None:
        """Close the stage's standard input, which ends all processes of the host."""
        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(OSError):
                assert self._process.stdin
                self._process.stdin.close()

    def abandon(self) -> None:
        """End the transport at once, without its output. The host ends its processes by itself."""
        self.end()
        self._process.kill()
        self.has_ended = self.has_no_errors = True

    def receive(self) -> Iterator[M]:
        """Yield the messages that have arrived.

        Raises:
            ProtocolError: the host sent something else.
        """
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self.stdout, _CHUNK)
            self.has_ended = not chunk
            self._received += chunk
            self.heard_at = time.monotonic()
        if not self.is_ready:
            self._skip_noise()
        if not self.is_ready:
            return
        *lines, self._received = self._received.split(b"\n")
        if len(self._received) > _MAX_MESSAGE:
            raise ProtocolError(f"host {self.host} sent a message of more than 1 MiB")
        for line in filter(None, lines):
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                raise ProtocolError(f"host {self.host} sent a line that is no JSON") from None
            yield from_json(self._message, content, f"a message of host {self.host}")

    def _skip_noise(self) -> None:
        """Keep the lines before the stage's first one: shells may print some at login."""
        before, magic, after = self._received.partition(_MAGIC)
        if magic:
            self.is_ready, self._received = True, after
        elif len(before) > _MAX_NOISE:
            raise ProtocolError(
                f"host {self.host} printed {len(before)} bytes before the stage of khop run: its "
                "shell must print nothing at login"
            )
        elif self.has_ended:
            self.last_lines.extend(before[-4096:].decode(errors="replace").splitlines())

    def error_lines(self) -> list[str]:
        """Return the lines that the transport (ssh) has written to standard error."""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self.stderr, _CHUNK)
            self._errors += chunk
            self.has_no_errors = not chunk
        *lines, self._errors = self._errors.split(b"\n")
        if self.has_no_errors or len(self._errors) > _CHUNK:
            lines, self._errors = [*lines, self._errors], b""
        texts = [line.decode(errors="replace").rstrip("\r") for line in lines if line.strip()]
        self.last_lines.extend(text[:500] for text in texts)
        return texts

    @property
    def is_lost(self) -> bool:
        """True if the transport has ended, with its output. To be asked after each `receive_all`.

        Other processes may hold the output open. So it counts as ended after a second, and as many
        looks as it takes to read what the transport has left.
        """
        if self.has_ended and self.has_no_errors:
            return True
        if self._process.poll() is None:
            return False
        if self._looks == 0:
            self._ended_at = time.monotonic()
        self._looks += 1
        return self._looks > _LOST_LOOKS and time.monotonic() > self._ended_at + _LOST_SECONDS

    def excuse(self) -> None:
        """Count the host neither as silent nor as lost, since its output is not read now."""
        self.heard_at, self._looks = time.monotonic(), 0

    def description_of_end(self) -> str:
        """Return text that explains why the connection ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAPED_SECONDS)
        status = self._process.returncode
        if status is None:
            return "closed its connection"
        if status < 0:
            return f"was lost: its transport was killed by {signal_name(-status)}"
        last = f": {self.last_lines[-1]}" if self.last_lines else ""
        return f"ended with status {status}{last}"

    def close(self, seconds: float) -> None:
        """End the transport, after at most `seconds`."""
        self.end()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream
            stream.close()


def receive_all(
    sessions: Sequence[Session[M]], note: Callable[[str, str], None], is_read: bool = True
) -> list[tuple[Session[M], M]]:
    """Wait briefly for hosts. Return the messages that have arrived.

    Args:
        sessions: connections to all hosts.
        note: called with the host and each line that its transport writes to standard error.
        is_read: False to read no messages, but to send what waits.

    Raises:
        ProtocolError: a host sent what is no message.
    """
    poller, by_descriptor = select.poll(), {}
    for session in sessions:
        if not session.has_ended and is_read:
            poller.register(session.stdout, select.POLLIN)
            by_descriptor[session.stdout] = session
        if not session.has_no_errors:
            poller.register(session.stderr, select.POLLIN)
            by_descriptor[session.stderr] = session
        if session.has_unsent:
            poller.register(session.stdin, select.POLLOUT)
    messages = []
    ready = {descriptor for descriptor, _ in poller.poll(_ROUND_MILLISECONDS)}
    for descriptor in ready & by_descriptor.keys():
        session = by_descriptor[descriptor]
        if descriptor == session.stderr:
            for line in session.error_lines():
                note(session.host, line)
        else:
            messages += [(session, message) for message in session.receive()]
    return messages
