"""Child processes (samplers, servers, receivers): the parent's side and the child's start-up.

Children are started with exec, so they inherit no memory of the parent. They get one end of a
control line and a page for the current task. They end when that line closes or when the kernel
signals that their parent died. So they end whichever way the parent ends.
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
        config: the configuration of the program, sent as JSON. If None, the process imports its
            program and waits for `configure`.
        descriptors: memory to pass along with the configuration.
        imports: further modules that it imports.
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
                # Ctrl-C goes to the trainer alone: its children end with it.
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
        """Send the configuration to a process that was started without one."""
        # The kernel's signal follows the thread that started the child, not the process.
        lasting = threading.current_thread() is threading.main_thread()
        with contextlib.suppress(ConnectionError):  # receive() reports it
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
        """True if the process has ended."""
        return self._process.poll() is not None

    def exit_status(self) -> str:
        """Return how the process ended, in words. Waits up to 2 s: call when it is ending."""
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return "stopped talking but did not end"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with status {code}"

    @property
    def ended_with_server(self) -> bool:
        """Always False: this process started the child itself, not through a graph server."""
        return False

    def log_tail(self) -> str:
        """Return the end of its standard error. Call when it has ended."""
        return self._log.text()

    def last_task(self) -> tuple[int, int] | None:
        """Return the (epoch, batch) that it worked on last, if known; also when it has ended."""
        return self._task.read()

    def close(self) -> None:
        """End the process and wait for it; harmless if called again."""
        self._finalizer()


def _program(module: str, imports: Sequence[str] = ()) -> str:
    """Return the Python code that the child's interpreter runs.

    `-m` and `-c` put the working directory first on the path, where a user's `typing.py` would
    shadow Python's. So the code sets the child's path to that of its parent.
    """
    source = str(Path(khop.__file__).absolute().parent.parent)
    paths = [path for path in sys.path if path and Path(path).is_absolute()]
    if source not in paths:
        paths.insert(0, source)
    also = "".join(f"import {name}; " for name in imports)
    return f"import sys; sys.path[:] = {paths!r}; {also}from {module} import main; main()"


def _end(process: subprocess.Popen[bytes], line: ControlLine, owner: int) -> None:
    line.close()
    if os.getpid() != owner:  # a fork of the trainer: the children are not its own
        return
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def explain_crashes(root: str | None) -> None:
    """Make this process log the cause of a fault that ends it.

    The exit status stays that of the signal.

    Args:
        root: the partition folder whose files it maps. If None, SIGBUS is not explained.
    """
    if sys.stderr is None:
        return
    # Other threads still run. Reading their frames could fault again.
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
    """Set up a child process: open its control line and wait for its configuration.

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
    """Return the page in which this process publishes its current task to its parent."""
    page = CurrentTaskPage(int(sys.argv[3]))
    page.close_descriptor()
    return page


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough: cleaning up takes a moment
    sys.exit(0)


def parent_has_gone(line: ControlLine, parent: int) -> bool:
    """Return whether the parent process is ending, or has closed the line.

    The threads of a killed process end one after the other. Its children get their signal when the
    thread that started them ends; its files close with the last. So this waits up to 0.2 s.

    Args:
        line: the line to the parent.
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
    """Wait for the next message on a line; return None if the other end is closed."""
    poller = select.poll()
    poller.register(line.fileno(), select.POLLIN)
    try:
        while (message := line.receive()) is None:
            poller.poll()
    except EOFError:
        return None
    return message
