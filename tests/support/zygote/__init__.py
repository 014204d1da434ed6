"""Programs of tests, forked from a process that has imported what they import.

To import PyTorch, PyG and khop takes a program three to four seconds of processor time. A fork of a
process that has done so takes a hundredth of that. After `install`, `subprocess.Popen` forks
programs of khop, of `support` and examples, and code of `-c` that begins with `# forked`. It starts
all others by exec, as it does

- where the program's environment differs from the forked process's: settings of its interpreter
  and libraries, limits, processors,
- in tests that are marked `real_exec`, such as tests of launchers and forks.

A forked program is a child of the test's process (see `server`). So waits, signals and queries of
its parent work as without forks. The workers of pytest-xdist are forked, too.
"""

import atexit
import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

TESTS = Path(__file__).parents[2]
LIGHT, TORCH, LIGHTNING = "light", "torch", "lightning"
"""Kinds of processes that are forked, by what they have imported."""

_CHILD = re.compile(r"import sys; sys\.path\[:\] = .* from khop\.[\w.]+ import main; main\(\)")
_MODULE = re.compile(
    r"support\.(cluster\.\w+|\w+_job)|guide\.job|soak\.trainer|khop\.cli\.main|"
    r"torch\.distributed\.run|khop_bench\.gpu\.\w+"
)
# Also what pytest-xdist starts its workers with.
_CODE = re.compile(
    r"\bfrom support\.cluster import|\A\n?# forked\n|"
    r"import sys;exec\(eval\(sys\.stdin\.readline\(\)\)\)\Z"
)
OPTIONS = "-u", "-B"
"""Options of the interpreter that commands may have."""
_FOLDERS = TESTS / "support", TESTS.parent / "examples", TESTS.parent / "examples" / "k8s"
_FUZZ = str(TESTS.parent / "scripts" / "fuzz")
# Variables that interpreters read when they start, and libraries when they are loaded. khop reads
# all but one of its own when it needs them.
_EARLY = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "OPENBLAS_", "MKL_"),
    *("KHOP_LOG", "CUDA", "ASAN_", "UBSAN_", "LSAN_"),
)
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
# A process that is forked has no threads.
_SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_PYTHON = sys.executable
PADDING = 8192
"""Bytes for the command line of a forked program."""


def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
    """Start a program as `subprocess.Popen` does, by a fork where that is possible."""
    _, _, shell, *pipes, _, gid, gids, uid, umask, new_session = rest[:15]
    plain = not shell and executable is preexec_fn is None and close_fds
    same_user = gid is gids is uid is None and umask == -1 and rest[15:] in ((), (-1,))
    namespace, command = _namespace(args)
    kind = _kind(command) if plain and same_user else None
    if kind is None or not _templates.fit(kind, env, cwd):
        _exec(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
        return
    p2cread, _, _, c2pwrite, _, errwrite = pipes
    ends = enumerate((p2cread, c2pwrite, errwrite))
    standard = [standard if end == -1 else end for standard, end in ends]
    self.pid = _templates.fork(
        kind,
        {
            "argv": [os.fspath(word) for word in command],
            "namespace": namespace,
            "environment": dict(os.environ if env is None else env),
            "folder": str(Path.cwd()) if cwd is None else os.fspath(cwd),
            "new_session": new_session,
            "targets": [0, 1, 2, *pass_fds],
        },
        [*standard, *pass_fds],
    )
    self._child_created = True
    self._close_pipe_fds(*pipes)


def _namespace(args):
    """Return the network namespace of an `ip netns exec` command, if any, and the rest."""
    if isinstance(args, (str, bytes, os.PathLike)):
        return None, [args]
    is_elsewhere = list(args[:3]) == ["ip", "netns", "exec"]
    return (args[3], args[4:]) if is_elsewhere else (None, args)


def _kind(args):
    """Return the kind of process that forks for a command. None: the command is started by exec."""
    if args[0] != _PYTHON:
        return None
    first, second, *_ = [word for word in args[1:5] if word not in OPTIONS] + ["", ""]
    if first == "-c" and _CHILD.fullmatch(second):
        return LIGHT
    if first == "-m":
        is_known = _MODULE.fullmatch(second)
    elif first == "-c":
        is_known = _CODE.search(second)
    elif Path(first).name == "lightning_job.py":
        return LIGHTNING
    else:
        is_known = str(first).endswith(".py") and Path(first).parent in _FOLDERS
        is_known |= first == _FUZZ
    return TORCH if is_known else None


class _Templates:
    """The processes that are forked, each started when it is first needed."""

    _owner = None

    def begin(self, channels):
        """Use these connections to processes that have been started, or start them when needed."""
        self._owner = os.getpid()
        self._may_start = not channels
        self._lock = threading.Lock()
        self._processes, self._channels = [], channels
        self._log = tempfile.TemporaryFile(dir="/tmp")  # noqa: SIM115
        self._began = _surroundings(os.environ)
        self.enabled = True

    def inherited(self):
        """Return True in a fork with connections of its own. Other kinds are started for it.

        So are light ones: what it has got forks processes with PyTorch.
        """
        if self._owner != os.getpid():
            return False
        self._channels.pop(LIGHT)
        self._may_start = True
        return True

    def fit(self, kind, environment, folder):
        """Return True if a program would find the same environment in a fork."""
        # The system ends the process that is forked with the thread that has started it.
        may_start = self._may_start and threading.current_thread() is threading.main_thread()
        return (
            self.enabled
            and os.getpid() == self._owner
            and (may_start or kind in self._channels)
            and (folder is None or Path(folder).is_dir())
            and _surroundings(os.environ if environment is None else environment) == self._began
        )

    def fork(self, kind, request, descriptors):
        """Fork a program, and return its process id."""
        with self._lock:
            if kind not in self._channels:
                self._channels[kind] = self._start(kind)
            end = self._channels[kind]
            # Children of khop see to their end themselves.
            request |= {"kind": kind, "ends_with_test": kind != LIGHT and self._may_start}
            socket.send_fds(end, [json.dumps(request).encode()], descriptors)
            reply = end.recv(64)
        if not reply:
            self._log.seek(0)
            raise RuntimeError(f"the process that forks programs has ended: {self._log.read()!r}")
        return int(reply)

    def _start(self, kind):
        ours, theirs = channel()
        code = (
            f"import sys; sys.path.insert(0, {str(TESTS)!r}); "
            f"from support.zygote.server import serve; serve({theirs.fileno()}, {kind!r})()"
        )
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", code, "-" * PADDING],
                env={**os.environ, **_SINGLE_THREADED},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
        self._processes.append(process)
        return ours

    def close(self):
        """End the processes that are forked."""
        if os.getpid() == self._owner:
            for end in self._channels.values():
                end.close()
            for process in self._processes:
                process.wait()


def _surroundings(environment):
    """Return the settings that a process gets at its start and cannot change."""
    early = {k: v for k, v in environment.items() if k.startswith(_EARLY) and k != "PYTHONPATH"}
    return early, os.sched_getaffinity(0), [resource.getrlimit(limit) for limit in _LIMITS]


_exec = subprocess.Popen._execute_child
_templates = _Templates()


def channel():
    """Return both ends of a connection to a process that is forked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ours, theirs


def install(channels=()):
    """Let this process fork programs from now on.

    Args:
        channels: connections to processes that are forked, by kind. If there are none, processes
            are started, except for those that a worker of pytest-xdist has from its own fork.
    """
    if not channels and _templates.inherited():
        return
    _templates.begin(dict(channels))
    subprocess.Popen._execute_child = _execute_child
    atexit.register(_templates.close)


@contextlib.contextmanager
def real_exec():
    """Start all programs of the block by exec."""
    before, _templates.enabled = _templates.enabled, False
    try:
        yield
    finally:
        _templates.enabled = before
