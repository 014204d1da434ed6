"""Child processes (samplers, servers, receivers): the parent's side and the child's start-up.

Children are started with exec, so they inherit no memory of the parent. They get one end of a
control line and a page for the current task. They end when that line closes or when the kernel
signals that their parent died. So they end whichever way the parent ends.

A child's standard error is a pipe to the parent. A thread of the parent forwards its lines and
keeps the last ones. They include the output of C libraries that abort, and the traceback that
`faulthandler` writes after a segmentation fault. The current task is in a page of memory that both
processes map: writing to the page costs nothing, and the page outlives the child.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import khop
from khop import _native, log
from khop.channel.control import ControlLine, Message, Op, socket_pair
from khop.placement import Placement

_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 2.0
_ENDING_SECONDS = 0.2
_TASK = struct.Struct("<QQ")
_NO_TASK = 2**64 - 1
# Bytes of a child's standard error that are kept, and that are read at once.
_KEPT_BYTES, _READ_BYTES = 8192, 4096
_log = log.get(__name__)


class ChildProcess:
    """A process that runs one of khop's programs.

    Args:
        module: the program, `khop.distributed.sampling.worker` for example.
        config: the configuration of the program, sent as JSON. If None, the process imports its
            program and waits for `configure`.
        descriptors: memory to pass along with the configuration.
        imports: further modules that it imports.
        placement: its cores, and the node of its memory. If None, as this process.
    """

    def __init__(
        self,
        module: str,
        config: Mapping[str, Any] | None,
        descriptors: Sequence[int] = (),
        imports: Sequence[str] = (),
        placement: Placement | None = None,
    ) -> None:
        self.module = module
        parent_end, child_end = socket_pair()
        self._log, self._task = _StderrTail(), CurrentTaskPage()
        passed = child_end.fileno(), self._task.descriptor
        program = _program(module, imports, placement)
        with child_end:
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
        self.line = ControlLine(parent_end)
        self._finalizer = weakref.finalize(self, _end, self._process, self.line, os.getpid())
        # At exit the kernel closes the line. Some servers must stay until others have finished.
        self._finalizer.atexit = False
        if config is not None:
            self.configure(config, descriptors)

    def configure(self, config: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send `config`, and descriptors of memory, to a process that has no configuration yet."""
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
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def exit_status(self) -> str:
        """Return text that explains how the process ended. Waits up to 2 s for the end."""
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its control line but did not end"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with status {code}"

    @property
    def ended_with_server(self) -> bool:
        """Always False: this process started the child itself, not through a graph server."""
        return False

    def log_tail(self) -> str:
        """Return the last lines of the process's standard error. Call it when it has ended."""
        return self._log.text()

    def last_task(self) -> tuple[int, int] | None:
        """Return the (epoch, batch) that the process worked on last, or None if it had none."""
        return self._task.read()

    def close(self) -> None:
        """End the process and wait for it. A second call does nothing."""
        self._finalizer()


class _StderrTail:
    """Forwarder of a child's standard error that keeps the last 8 KiB.

    Attributes:
        child_end: descriptor for the child, which `start` closes here.
    """

    def __init__(self) -> None:
        self._parent_end, self.child_end = os.pipe()
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._thread = threading.Thread(target=self._forward, name="khop-log", daemon=True)

    def start(self) -> None:
        """Start the thread that reads. Call it once the child process has been started."""
        os.close(self.child_end)
        self._thread.start()

    def _forward(self) -> None:
        begun = b""  # an unfinished line: lines of several children must not be mixed
        while chunk := os.read(self._parent_end, _READ_BYTES):
            self._kept.append(chunk)
            self._size += len(chunk)
            while self._size - len(self._kept[0]) > _KEPT_BYTES:
                self._size -= len(self._kept.popleft())
            lines, end, begun = (begun + chunk).rpartition(b"\n")
            if len(begun) > _KEPT_BYTES:
                lines, end, begun = lines + end, begun, b""
            _write_stderr(lines + end)
        _write_stderr(begun)
        os.close(self._parent_end)

    def text(self) -> str:
        """Return the last output of the child process. Call it when the process has ended."""
        self._thread.join(1.0)  # until all is read, but a child of the child can hold the pipe open
        kept = b"".join(list(self._kept))[-_KEPT_BYTES:]
        return kept.decode(errors="replace").strip()


def _write_stderr(text: bytes) -> None:
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(2, text) :]


class CurrentTaskPage:
    """A page of shared memory in which a child process publishes the batch it is working on.

    Args:
        descriptor: descriptor of the memory. If None, a new page is made, as the parent does.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        is_new = descriptor is None
        if descriptor is None:
            descriptor = os.memfd_create("khop-task", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, mmap.PAGESIZE)
        self.descriptor = descriptor
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        if is_new:
            self.write(_NO_TASK, _NO_TASK)

    def write(self, epoch: int, batch: int) -> None:
        _TASK.pack_into(self._page, 0, epoch, batch)

    def read(self) -> tuple[int, int] | None:
        """Return the (epoch, batch) that was published last. None if there was none yet."""
        epoch, batch = _TASK.unpack_from(self._page)
        return None if epoch == _NO_TASK else (epoch, batch)

    def close_descriptor(self) -> None:
        """Close the descriptor of the memory. The page can still be read."""
        os.close(self.descriptor)


def _program(module: str, imports: Sequence[str] = (), placement: Placement | None = None) -> str:
    """Return the Python code that a child process runs: `imports`, then program `module`.

    It is bound first, before it loads libraries and takes memory.

    `-m` and `-c` put the working directory first on the path, where a user's `typing.py` would
    shadow Python's. So the code sets the child's path to its parent's.
    """
    source = str(Path(khop.__file__).absolute().parent.parent)
    paths = [path for path in sys.path if path and Path(path).is_absolute()]
    if source not in paths:
        paths.insert(0, source)
    also = "".join(f"import {name}; " for name in imports)
    bound = ""
    if placement is not None:
        bound = f"from khop.placement import bind; bind({placement.cpus}, {placement.node}); "
    return f"import sys; sys.path[:] = {paths!r}; {bound}{also}from {module} import main; main()"


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
    """Make this process log the cause of a fault that ends it, such as SIGSEGV.

    The exit status does not change.

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
    """Set up a child process: open the connection to its parent and wait for its configuration.

    Returns:
        The connection (control line), and the message with the configuration.
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
    # Slurm may send it to all processes of a step: the trainer writes a checkpoint meanwhile.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    program = sys.argv[2]
    _log.info("process-started", f"{program} begins", program=program)
    atexit.register(_log.info, "process-ended", f"{program} ends", program=program)
    return line, config


def task_page() -> CurrentTaskPage:
    """Return the page of shared memory in which this child process publishes its current batch."""
    page = CurrentTaskPage(int(sys.argv[3]))
    page.close_descriptor()
    return page


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough: cleaning up takes a moment
    sys.exit(0)


def parent_has_gone(line: ControlLine, parent: int) -> bool:
    """Return True if the parent process is ending, or has closed the control line.

    The threads of a killed process end one after the other. Its children get their signal when the
    thread that started them ends, but its files close with the last thread. So this waits 0.2 s.

    Args:
        line: the connection to the parent.
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


def wait_for_message(line: ControlLine, seconds: float | None = None) -> Message | None:
    """Wait for the next message on a control line. Return None if its other end is closed.

    Args:
        line: connection between parent and child process.
        seconds: maximum time to wait, after which None is returned. If None, there is no maximum.
    """
    poller = select.poll()
    poller.register(line.fileno(), select.POLLIN)
    try:
        while (message := line.receive()) is None:
            if not poller.poll(None if seconds is None else 1000 * seconds):
                return None
    except EOFError:
        return None
    return message
