"""Kill matrix of `khop run`: whatever is killed, nothing is left, and the cause is named."""

import os
import signal
import time

import pytest

from support import launching

SIGNALS = ("TERM", "KILL", "HUP")
CASES = [
    *((role, name) for role in ("launcher", "transport", "stage", "trainer") for name in SIGNALS),
    ("guard", "KILL"),  # it ignores the others
]
ENDED_WITHIN = 5.0
# A trainer with a child in a session of its own, as samplers are. Neither reacts to SIGTERM, and
# one exits as if by itself.
TRAINER = """
import os, signal, subprocess, sys, time
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", ignore], start_new_session=True)
print("begun", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """All cases at once: {(role, signal): (status, what is left, standard error)}."""
    folder = tmp_path_factory.mktemp("matrix")
    (folder / "train.py").write_text(TRAINER)
    started = {}
    for case in CASES:
        words = ("--rsh", launching.RSH, "--hosts", "a:2,b", "--grace", 1, "--", "train.py")
        started[case] = launching.start(*words, folder=folder)
    found, killed_at = {}, {}
    for (role, name), job in started.items():
        for _ in range(3):
            assert job.stdout.readline().endswith(": begun\n"), job.stderr.read()
        found[role, name] = launching.roles(job.pid)
        os.kill(found[role, name][role][-1], getattr(signal, f"SIG{name}"))
        killed_at[role, name] = time.monotonic()
    results = {}
    for case, job in started.items():
        pids = [pid for pids in found[case].values() for pid in pids]
        left = launching.left_of(pids, killed_at[case] + ENDED_WITHIN - time.monotonic())
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        error = job.communicate()[1]
        results[case] = job.returncode, found[case], left, error
    return results


@pytest.mark.fault
@pytest.mark.parametrize(("role", "name"), CASES)
def test_nothing_is_left(ends, role, name):
    """Within 5 s, of any of two stages, two guards, three trainers and their children."""
    status, found, left, error = ends[role, name]
    assert {r: len(pids) for r, pids in found.items()} == {
        "launcher": 1, "transport": 2, "stage": 2, "guard": 2, "trainer": 3, "child": 3
    }  # fmt: skip
    assert left == [], error
    signals = {"TERM": 15, "KILL": 9, "HUP": 1}
    if role == "launcher":
        assert status == (-9 if name == "KILL" else 128 + signals[name])
        assert name == "KILL" or f"ended by SIG{name}" in error
    elif role == "trainer":
        assert status == 128 + signals[name]
        assert f"b/2 (process {found['trainer'][-1]}) was killed by SIG{name}" in error
    else:
        assert status == 1
        cause = {
            "transport": f"host b was lost: its transport was killed by SIG{name}",
            "stage": "the stage was killed" if name == "KILL" else f"stage was ended by SIG{name}",
            "guard": "the stage's guard was killed",
        }
        assert cause[role] in error
