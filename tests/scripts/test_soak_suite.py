"""`scripts/soak tests`: the suite again and again, until it fails."""

import sys
from dataclasses import dataclass

import pytest

from soak.suite import Plan, main, repeat

SUITE = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["KHOP_TEST_LOGS"])
(folder / "gw0.faults").write_text("Fatal Python error" if {fails} else "")
print("a test", "==== 1 test ====", sep="\\n")
sys.exit({fails})
"""


@dataclass(frozen=True)
class Suite(Plan):
    """Stands for the suite; fails with a certain seed."""

    bad: int = -1

    def command(self, seed):
        return [sys.executable, "-c", SUITE.format(fails=seed == self.bad)]


def test_runs_that_pass(tmp_path):
    """A line each; nothing is kept."""
    lines = []
    assert repeat(Suite(seed=5, runs=2, load=1), tmp_path, lines.append)
    assert [line.rsplit(" (", 1)[0] for line in lines] == ["seed 5: 1 test", "seed 6: 1 test"]
    assert list(tmp_path.iterdir()) == []


def test_the_first_failure_ends_it(tmp_path):
    """Its log and what crashed are shown and kept, with the command that repeats it."""
    lines = []
    assert not repeat(Suite(runs=9, bad=1), tmp_path, lines.append)
    assert [line.split(":")[0] for line in lines[:2]] == ["seed 0", "seed 1"]
    assert "a test\n==== 1 test ====\nFatal Python error\n\nexit status 1; again: " in lines[2]
    assert f"kept: {tmp_path / 'seed-1'}; cores go to " in lines[3]
    assert sorted(file.name for file in (tmp_path / "seed-1").iterdir()) == ["gw0.faults", "log"]


def test_time_is_up(tmp_path):
    assert repeat(Suite(hours=0), tmp_path, pytest.fail)


def test_commands():
    """pytest stops at the first failure, in the order of the seed; sanitizers have their build."""
    assert Plan().command(7)[-3:] == ["--shuffle=7", "--maxfail=1", "tests"]
    plan = Plan(sanitize="address", arguments=["tests/data"])
    assert plan.command(7) == [
        *("bash", "scripts/sanitize"),
        *("--shuffle=7", "--maxfail=1", "tests/data"),
    ]


def test_options(tmp_path):
    assert main(["--runs", "0", "--load", "--out", str(tmp_path), "tests/data", "-q"]) == 0
