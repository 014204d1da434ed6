"""Process that is forked: it has imported what programs import, and has a single thread.

A fork is made by clone(CLONE_PARENT): the program is a child of the test's process, not of this
one. It gets the descriptors, environment, folder, session and command line that exec would have
given it, and runs in a new `__main__`. It ends without taking its modules apart, after threads and
exit handlers. Before it runs, it forks a process that is to fork its own children.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import platform
import random
import re
import runpy
import signal
import socket
import sys
import tempfile
import threading
import weakref
from pathlib import Path

from support import zygote

_TORCH = (
    *("torch", "torch.distributed.run", "torch_geometric.loader", "torch_geometric.nn"),
    *("khop.loader", "khop.partition", "khop.distributed", "khop.distributed.inference"),
    *("khop.glt", "khop.nn", "khop.optim"),
)
_MODULES = {
    zygote.LIGHT: (
        "khop.distributed.sampling.worker",
        "khop.distributed.rpc.partition_client",
        "khop.distributed.rpc.partition_server",
        "khop.distributed.remote.client.receiver",
        "khop.distributed.remote.server.main",
    ),
    zygote.TORCH: _TORCH,
    zygote.LIGHTNING: (*_TORCH, "lightning.pytorch", "khop.lightning"),
}
# Programs that start no others.
_STARTS_NONE = re.compile(r"khop\.distributed\.\S+\.(worker|receiver|partition_server) import main")
_CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
_CLONE_PARENT, _CLONE_NEWNET = 0x8000, 0x40000000
_PR_SET_PDEATHSIG, _PR_GET_TID_ADDRESS = 1, 40
_MAX_REQUEST = 1 << 20
_FIRST_PARKED = 512  # descriptors wait here for their places
_libc, _libc_with_gil = ctypes.CDLL(None), ctypes.PyDLL(None)


def serve(descriptor, kind):
    """Fork programs until the test's process closes the channel or ends.

    Returns:
        In a fork: its program, to be called where no frame of this module is left.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test and its programs
    for name in _MODULES[kind]:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()) if name.startswith("khop.") else ():
            getattr(module, public)  # khop's packages import a module when a name of it is used
    _drop_exit_handlers()
    own = [str(zygote.TESTS), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    paths = [path for path in sys.path if path not in ("", *own)]
    gc.collect()
    gc.freeze()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lack threads"
    return _fork_programs(socket.socket(fileno=descriptor), paths)


def _drop_exit_handlers():
    """Drop what PyTorch, once imported, does when a process ends: 0.06 s of each program's time."""
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False
    if "torch._dynamo.utils" in sys.modules:
        atexit.unregister(sys.modules["torch._dynamo.utils"].dump_compile_times)


def _fork_programs(channel, paths):
    """Fork programs that the channel requests. In a fork, return its program."""
    with channel:
        while True:
            message, descriptors, *_ = socket.recv_fds(channel, _MAX_REQUEST, 64)
            if not message:
                os._exit(0)
            request = json.loads(message)
            if _fork_sibling() == 0:
                break
            for received in descriptors:
                os.close(received)
        _show_command_line(request["argv"])  # those who know of the process find it
        channel.send(str(os.getpid()).encode())
    _place(descriptors, request["targets"])
    _begin(request)
    if not _STARTS_NONE.search(" ".join(request["argv"])):
        ours, theirs = zygote.channel()
        if os.fork() == 0:
            ours.close()
            _show_command_line(["support.zygote"])
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with Path(os.devnull).open("r+b") as nothing:
                for standard in range(3):
                    os.dup2(nothing.fileno(), standard)
            for passed in request["targets"][3:]:
                os.close(passed)
            return _fork_programs(theirs, paths)
        theirs.close()
        kinds = {zygote.LIGHT, request["kind"]}
        zygote.install(dict.fromkeys(kinds, ours))
    return _program(request["argv"], paths)


def _fork_sibling():
    """Fork as `os.fork` does, but the child's parent is this process's parent."""
    api, thread_id = ctypes.pythonapi, ctypes.c_void_p()
    if _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(thread_id)) != 0:
        raise OSError("this kernel does not tell where the C library keeps a thread's id")
    api.PyOS_BeforeFork()
    child = _libc_with_gil.syscall(
        _CLONE, ctypes.c_long(_CLONE_PARENT | signal.SIGCHLD), 0, 0, 0, 0
    )
    if child == 0:
        ctypes.c_int.from_address(thread_id.value).value = os.getpid()
        api.PyOS_AfterFork_Child()
        threading.main_thread()._set_native_id()
        return 0
    api.PyOS_AfterFork_Parent()
    if child < 0:
        raise OSError("clone failed")
    return child


def _place(descriptors, targets):
    """Give descriptors the numbers that the program expects."""
    first = max(_FIRST_PARKED, *(target + 1 for target in targets))
    parked = [fcntl.fcntl(d, fcntl.F_DUPFD_CLOEXEC, first) for d in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, target in zip(parked, targets, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)


def _begin(request):
    """Give this process the state that exec would have given it."""
    if request["new_session"]:
        os.setsid()
    if request["namespace"]:
        with Path("/var/run/netns", request["namespace"]).open() as namespace:
            if _libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(f"no network namespace {request['namespace']}")
    if request["ends_with_test"]:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    _open_standard_streams()
    random.seed()
    sys.modules["numpy"].random.seed()
    tempfile.tempdir = None
    if "torch" in sys.modules:
        cores = len(os.sched_getaffinity(0))
        sys.modules["torch"].set_num_threads(int(os.environ.get("OMP_NUM_THREADS", cores)))


def _program(argv, paths):
    path = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *paths]
    sys.orig_argv = argv
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    words = argv[1:]
    while words[0] in zygote.OPTIONS:
        if words.pop(0) == "-u":
            sys.stdout.reconfigure(write_through=True)
    kind = words.pop(0) if words[0] in ("-c", "-m") else ""
    name, *rest = words

    def run():
        if kind == "-m":
            sys.argv, sys.path[:] = ["-m", *rest], [str(Path.cwd()), *path]
            runpy._run_module_as_main(name)
        elif kind == "-c":
            sys.argv, sys.path[:] = ["-c", *rest], ["", *path]
            exec(compile(name, "<string>", "exec"), main)
        else:
            sys.argv, sys.path[:] = [name, *rest], [str(Path(name).parent.resolve()), *path]
            main["__file__"] = name
            exec(compile(Path(name).read_bytes(), name, "exec"), main)

    return lambda: _end(run)


def _end(run):
    """Run a program, and end the process as the interpreter does, except for its last step."""
    code = 0
    try:
        run()
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)


def _show_command_line(argv):
    """Show the program's command line in /proc."""
    start, end = map(int, Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[45:47])
    line = b"\0".join(map(os.fsencode, argv))[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def _open_standard_streams():
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        stream = open(  # noqa: SIM115
            descriptor,
            "w" if descriptor else "r",
            encoding=before.encoding,
            errors=before.errors,
            closefd=False,
        )
        if descriptor:
            stream.reconfigure(line_buffering=descriptor == 2 or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
