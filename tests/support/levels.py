"""Levels of tests: which processes a test starts, and whether it kills them.

- `unit`: no process is started. A test that starts one fails.
- `process`: real processes, which end normally.
- `fault`: processes are killed, stopped or crash, or networks between them are cut.
- `soak`: random inputs or faults for half a minute and more.

The table has the level of a folder or file. The longest path that fits counts. A test of another
level than its file has the mark itself. A test with the parameter `{"worker_type": "process"}` is
of level `process` in any file.
"""

import contextlib
import multiprocessing.util
import os
import subprocess

import pytest

LEVELS = ("unit", "process", "fault", "soak")

TABLE = {
    "unit": [
        "",
        *("cli/test_mistakes.py", "cli/test_view.py"),
        *("distributed/test_bad_input.py", "distributed/test_bad_options.py"),
        *("distributed/test_fair_queue.py", "distributed/test_request_threads.py"),
        *("distributed/test_gpu_sharing.py", "distributed/test_handler.py"),
        *("distributed/test_hostile_files.py", "distributed/test_keys.py"),
        *("distributed/test_launchers.py", "distributed/test_limits.py"),
        *("distributed/test_leases.py", "distributed/test_listener.py"),
        *("distributed/test_lying_servers.py", "distributed/test_output_server.py"),
        *("distributed/test_process_pool.py", "distributed/test_restart_policy.py"),
        *("distributed/test_roll_call.py", "distributed/test_rows.py"),
        *("distributed/test_sampler_pool.py", "distributed/test_socket_files.py"),
        *("distributed/test_transports.py", "distributed/test_work.py"),
        "distributed/remote/test_bounded_work.py",
        *("distributed/remote/test_batch_checks.py", "distributed/remote/test_control_plane.py"),
        *("distributed/remote/test_directory.py", "distributed/remote/test_hostile_statistics.py"),
        *("distributed/remote/test_lying_to_clients.py", "distributed/remote/test_session.py"),
        *("distributed/remote/test_local_clients.py", "distributed/remote/test_statistics.py"),
    ],
    "process": [
        # The floor is built by CMake where it is not there yet.
        *("bench/test_command.py", "bench/test_floor.py", "bench/test_report.py"),
        "bench/test_gpu_runner.py",
        *("launcher/test_placement.py", "launcher/test_run.py"),
        *("kernels/test_floor.py", "cli", "distributed", "docs", "examples", "guide"),
        *("glt/test_glt_distributed.py", "partition/test_full_disk.py", "scripts"),
        "partition/test_on_ray.py",
        "plot",  # matplotlib starts a program that lists fonts, the first time
    ],
    "fault": [
        *("distributed/test_elastic.py", "distributed/test_faults.py"),
        *("launcher/test_kill_matrix.py", "launcher/test_ssh.py"),
        "partition/test_goes_on.py",
        "partition/test_upgrade.py",
        *("distributed/test_recovery.py", "distributed/remote/test_crashes.py"),
    ],
}
"""{level: folders and files, relative to the folder of tests}."""


def of_path(file, root):
    """Return the level of a file in the folder of tests `root`."""
    path = file.relative_to(root).as_posix()
    level_of = {key: level for level, keys in TABLE.items() for key in keys}
    return level_of[max((key for key in level_of if f"{path}/".startswith(_prefix(key))), key=len)]


def may_have_units(file, root):
    """Return True for a file whose tests are of level `unit`, or marked so."""
    return of_path(file, root) == "unit" or "mark.unit" in file.read_text()


def _prefix(key):
    return f"{key}/" if key else ""


def of_test(item):
    """Return the level of a collected test."""
    return next(mark.name for mark in item.iter_markers() if mark.name in LEVELS)


def mark(items, root):
    """Mark each collected test with its level.

    Args:
        items: the tests that pytest has collected.
        root: folder of tests.

    Raises:
        pytest.UsageError: a test has marks of several levels.
    """
    for item in items:
        own = {mark.name for mark in item.iter_markers() if mark.name in LEVELS}
        if len(own) > 1:
            raise pytest.UsageError(f"{item.nodeid} is marked {sorted(own)}: choose one level")
        if not own:
            item.add_marker("process" if _has_worker_processes(item) else of_path(item.path, root))


def _has_worker_processes(item):
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(p, dict) and p.get("worker_type") == "process" for p in parameters)


@contextlib.contextmanager
def no_processes():
    """Fail a test that starts a process in the block by subprocess, os or multiprocessing."""

    def refuse(*_args, **_kwargs):
        pytest.fail("a unit test starts a process: mark it 'process' or see support/levels.py")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", refuse)
        patch.setattr(multiprocessing.util, "spawnv_passfds", refuse)
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system"):
            patch.setattr(os, name, refuse)
        yield
