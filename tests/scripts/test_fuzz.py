"""`scripts/fuzz`: a short run finds nothing, and what there is to find is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from support import script_modules
from support.fuzz import targets
from support.fuzz.mutations import bytes_changed, json_changed

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="khop is tested without its repository")


@pytest.fixture(scope="module")
def script():
    return script_modules.load("fuzz")


@pytest.mark.soak
def test_a_short_run_finds_nothing():
    command = [sys.executable, str(SCRIPT), "--inputs", "10000", "--seed", "77"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    for target in targets.TARGETS:
        assert f"| {target} |" in done.stdout


def test_each_target_has_its_share(script):
    assert set(script.WEIGHTS) == set(targets.TARGETS)


def spin():
    """Takes processor time that is more than an input may take."""
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass


def fail():
    raise RuntimeError("a defect")


@pytest.mark.parametrize(
    "defect,match",
    [
        (fail, r"RuntimeError at .*a defect"),
        (lambda: os.kill(os.getpid(), 11), "ended with SIGSEGV"),
        (lambda: os._exit(3), "ended with status 3"),
        (lambda: bytes(1 << 30), "MemoryError"),
        (spin, "took 0.2 s"),
        (lambda: time.sleep(1000), "did not end"),
    ],
    ids=["exception", "crash", "end", "allocation", "slow", "hang"],
)
def test_findings_are_found(script, tmp_path, monkeypatch, defect, match):
    """An exception, a crash, an allocation, an input that is slow, and one that hangs."""
    inputs = []

    def run(random):
        inputs.append(0)
        if len(inputs) > 60:
            defect()

    monkeypatch.setattr(script, "_STUCK_SECONDS", 3.0 if match == "did not end" else 60.0)
    monkeypatch.setattr(script, "_SLOW_SECONDS", 0.15)
    progress = tmp_path / "progress"
    progress.write_bytes(bytes(8))
    given = (lambda root: run, "defective", 1, range(11), tmp_path, progress)
    result = script.supervise(lambda: script.work(*given), progress)
    assert re.search(match, result["findings"][0]["error"]), result
    assert result["findings"][0]["input"] == 10  # after 50 that fill the caches


def test_damages_follow_from_the_seed():
    data, content = b"some bytes that are damaged", {"a": [1, 2, {"b": "c"}], "d": None}

    def damages(seed):
        random = Random(seed)
        return [
            (bytes_changed(random, data, [b"other"]), repr(json_changed(random, content)))
            for _ in range(50)
        ]

    assert damages(1) == damages(1) != damages(2)
    assert len({b for b, _ in damages(1)}) > 40
    assert content == {"a": [1, 2, {"b": "c"}], "d": None}
