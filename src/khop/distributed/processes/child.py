"""Processes that a trainer starts: samplers and partition servers.

They are started with exec, so nothing of the trainer is inherited but its end of a control line.
They end when that line closes or when the kernel tells them that their parent died; whichever way
the trainer ends, they do.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import khop
from khop import _native, log
from khop.channel.control import ControlLine, Message, Op, socket_pair
from khop.distributed.processes.diagnostics import CurrentTaskPage, StderrTail

_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 2.0
_ENDING_SECONDS = 0.2
_log = log.get(__name__)


class ChildProcess:
    """A process that runs one of khop's programs.

    Args:
        module: the program, `khop.distributed.sampling.worker` for example.
        config: what it shall do; sent as JSON. None: it imports its program and waits to be told;
            see `configure`.
        descriptors: memory to pass along with the configuration.
        imports: modules that it imports beside.
    """

    def __init__(
        self,
        module: str,
        config: Mapping[str, Any] | None,
        descriptors: Sequence[int] = (),
        imports: Sequence[str] = (),
    ) -> None:
        self.module = module
        ours, theirs = socket_pair()
        self._log, self._task = StderrTail(), CurrentTaskPage()
        passed = theirs.fileno(), self._task.descriptor
        program = _program(module, imports)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, str(passed[0]), module, str(passed[1])],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stderr=self._log.child_end,
                # Ctrl-C is for the trainer: its children end with it.
                start_new_session=True,
            )
        self._log.start()
        self._task.close_descriptor()
        self.line = ControlLine(ours)
        self._finalizer = weakref.finalize(self, _end, self._process, self.line, os.getpid())
        # At exit the kernel closes the line; servers may have to stay until others have finished.
        self._finalizer.atexit = False
        if config is not None:
            self.configure(config, descriptors)

    def configure(self, config: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Tells a process that was started without a configuration what it shall do."""
        # The kernel's signal follows the thread that started the child, not the process.
        lasting = threading.current_thread() is threading.main_thread()
        with contextlib.suppress(ConnectionError):  # told by receive()
            self.line.send_json(
                Op.CONFIG,
                {
                    **config,
                    "log": log.of_child(self.module, config),
                    "parent": os.getpid(),
                    "end_with_parent_thread": lasting,
                },
                descriptors,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def exit_status(self) -> str:
        """How the process ended, in words; waits for it, it is known to be ending."""
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return "stopped talking but did not end"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with status {code}"

    @property
    def ended_with_server(self) -> bool:
        """Whether it ended with another process that had started it: no, this one did."""
        return False

    def log_tail(self) -> str:
        """The end of what it printed to standard error; call when it has ended."""
        return self._log.text()

    def last_task(self) -> tuple[int, int] | None:
        """(epoch, batch) that it worked on last, if it says so; also when it has ended."""
        return self._task.read()

    def close(self) -> None:
        """Ends the process and waits for it; harmless if called again."""
        self._finalizer()


def _program(module: str, imports: Sequence[str] = ()) -> str:
    """What the child's interpreter runs.

    `-m` and `-c` put the working directory first on the path, where a user's `typing.py` would
    shadow Python's. The child searches where its parent does, and nowhere else.
    """
    source = str(Path(khop.__file__).absolute().parent.parent)
    paths = [path for path in sys.path if path and Path(path).is_absolute()]
    if source not in paths:
        paths.insert(0, source)
    also = "".join(f"import {name}; " for name in imports)
    return f"import sys; sys.path[:] = {paths!r}; {also}from {module} import main; main()"


def _end(process: subprocess.Popen[bytes], line: ControlLine, owner: int) -> None:
    line.close()
    if os.getpid() != owner:  # a fork of the trainer: not its children
        return
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def explain_crashes(root: str | None) -> None:
    """Let the log of this process name what ended it, should that be a fault.

    The exit status stays that of the signal.

    Args:
        root: the partition folder whose files it maps. If None, none is named.
    """
    if sys.stderr is None:
        return
    # Frames of other threads, which run meanwhile, cannot be read without a second fault.
    faulthandler.enable(all_threads=False)
    if root is not None:
        _native.explain_bus_error(
            f"khop: process {os.getpid()} ends by SIGBUS: it read a part of a mapped file that is "
            "no longer there. Probably a file of the partition folder "
            f"'{log.printable(str(root))}' was cut off or overwritten while it was in use, or its "
            "file system failed. `khop verify` finds the file; replace folders only as a whole, by "
            "renaming.\n"
        )


def start_up() -> tuple[ControlLine, Message]:
    """What a child does first: takes its line from the command line, and its configuration.

    Returns:
        The line and the CONFIG message.
    """
    explain_crashes(None)
    line = ControlLine(socket.socket(fileno=int(sys.argv[1])))
    os.set_inheritable(line.fileno(), False)
    config = wait_for_message(line)
    if config is None or config.op is not Op.CONFIG:
        sys.exit(1)  # the parent ended first
    content = config.json()
    log.start_child(content["log"])
    explain_crashes(content.get("root"))
    if content["end_with_parent_thread"]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != content["parent"]:  # it ended before the line above
            sys.exit(1)
    signal.signal(signal.SIGTERM, _leave)
    program = sys.argv[2]
    _log.info("process-started", f"{program} begins", program=program)
    atexit.register(_log.info, "process-ended", f"{program} ends", program=program)
    return line, config


def task_page() -> CurrentTaskPage:
    """Where this process says what it works on, for the one that started it."""
    page = CurrentTaskPage(int(sys.argv[3]))
    page.close_descriptor()
    return page


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough: cleaning up takes a moment
    sys.exit(0)


def parent_has_gone(line: ControlLine, parent: int) -> bool:
    """Whether the process that started this one is ending, or has closed the line.

    Of a process that is killed one thread ends after the other: its children are told when the
    first does, its files close with the last. So this waits a moment for that.

    Args:
        line: the line to it.
        parent: its process id.
    """
    poller = select.poll()
    poller.register(line.fileno(), select.POLLIN)
    end = time.monotonic() + _ENDING_SECONDS
    try:
        while (left := end - time.monotonic()) > 0:
            if os.getppid() != parent:  # forks of it may still hold its end of the line
                return True
            if poller.poll(left * 1000):
                line.receive()
    except (EOFError, OSError):
        return True
    return False


def wait_for_message(line: ControlLine) -> Message | None:
    """Waits for the parent's next message; None if the parent is gone."""
    poller = select.poll()
    poller.register(line.fileno(), select.POLLIN)
    try:
        while (message := line.receive()) is None:
            poller.poll()
    except EOFError:
        return None
    return message
