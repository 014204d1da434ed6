"""`scripts/fuzz`: a short run finds nothing, and what there is to find is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


# Processor time that is more than an input may take, on any machine.
SLOW = "end = time.process_time() + 1.5\n      while time.process_time() < end: pass"


@pytest.mark.parametrize(
    "defect,match",
    [
        ("raise RuntimeError('a defect')", r"RuntimeError at .*a defect"),
        ("os.kill(os.getpid(), 11)", "ended with SIGSEGV"),
        ("bytes(1 << 30)", "MemoryError"),
        (SLOW, "took "),
        ("time.sleep(1000)", "did not end"),
    ],
)
def test_findings_are_found(script, tmp_path, monkeypatch, defect, match):
    """An exception, a crash, an allocation, an input that is slow, and one that hangs."""
    (tmp_path / "defective.py").write_text(
        "import os, time\n"
        "def target(root):\n"
        "  inputs = []\n"
        "  def run(random):\n"
        "    inputs.append(0)\n"
        "    if len(inputs) > 60:\n"
        f"      {defect}\n"
        "  return run\n"
        "TARGETS = {'defective': target}\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(script, "_STUCK_SECONDS", 3.0 if "sleep" in defect else 60.0)
    progress = tmp_path / "progress"
    progress.write_bytes(bytes(8))
    arguments = ["defective", "defective", "1", "0", "12", "/", str(progress)]
    result = script.supervise([sys.executable, str(SCRIPT), "--worker", *arguments], progress)
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
