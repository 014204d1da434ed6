"""Stages of `scripts/gpu_check`: limits, and what is kept whatever becomes of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from khop_bench.gpu.runner import Options, Stage, environment_of, run_stages

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def options(tmp_path):
    return Options(tmp_path / "out", tmp_path / "build", tmp_path / "cache", is_dry=True)


def found_by(options, name):
    return json.loads((options.out / f"{name}.json").read_text())


def test_commands_are_recorded_whatever_becomes_of_them(options):
    """One that passes, one that fails, one that cannot be started."""
    stage = Stage("some", options, 60, ENVIRONMENT)
    stage.run("good", ["sh", "-c", "echo fine"])
    assert stage.passed
    assert found_by(options, "some")["passed"]
    stage.run("bad", ["sh", "-c", "echo broken; exit 3"])
    stage.run("absent", ["no-such-command"])
    steps = found_by(options, "some")["steps"]
    assert [(step["name"], step["code"], step["passed"]) for step in steps] == [
        *(("good", 0, True), ("bad", 3, False), ("absent", None, False))
    ]
    assert steps[1]["last_lines"] == ["broken"]
    assert not found_by(options, "some")["passed"]
    log = (options.out / "gpu_check.log").read_text()
    assert "== some, good: sh -c echo fine\nfine\n" in log
    assert "broken\n" in log


def test_a_command_ends_at_its_limit_with_all_it_started(options):
    begin = time.monotonic()
    stage = Stage("endless", options, 0.5 + 1, ENVIRONMENT)
    step = stage.run("wait", ["sh", "-c", "echo begun; sleep 60 & sleep 60"])
    assert time.monotonic() - begin < 20
    assert (step.code, step.passed, step.last_lines) == (None, False, ["begun"])
    step = stage.run("next", ["true"])
    assert (step.code, step.last_lines) == (None, ["no time was left"])


def test_no_stage_is_begun_without_time(options):
    stages = {"late": (lambda stage: stage.run("true", ["true"]), 100.0)}
    late = Options(options.out, options.build, options.cache, limit=0.0)
    (stage,) = run_stages(stages, late, ENVIRONMENT)
    assert not stage.passed
    assert found_by(options, "late")["steps"][0]["last_lines"] == ["no time was left"]


def test_an_error_of_the_check_itself_is_recorded(options):
    def fail(stage):
        stage.run("first", ["true"])
        raise FileNotFoundError("ncu is not there")

    stages = {"broken": (fail, 10.0), "whole": (lambda stage: stage.run("true", ["true"]), 10.0)}
    broken, whole = run_stages(stages, options, ENVIRONMENT)
    assert (broken.passed, whole.passed) == (False, True)
    steps = found_by(options, "broken")["steps"]
    assert [step["passed"] for step in steps] == [True, False]
    assert "ncu is not there" in steps[1]["last_lines"][0]


KILLED = """
import sys, time
from pathlib import Path
from khop_bench.gpu.runner import Options, run_stages

def stage(stage):
    stage.run("first", ["echo", "kept"])
    stage.run("second", ["sh", "-c", "echo half; sleep 5"])

out = Path(sys.argv[1])
options = Options(out, out, out)
run_stages({"one": (stage, 50.0)}, options, {"PATH": "/usr/bin:/bin"})
"""


def test_whoever_is_killed_keeps_what_was_found(options):
    """Files of results and the log, as far as it was printed."""
    environment = environment_of({**ENVIRONMENT})
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(options.out)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    log = options.out / "gpu_check.log"
    try:
        deadline = time.monotonic() + 60
        # A whole line: the command's own heading, written first, says "half" too.
        while not (log.exists() and log.read_text().endswith("\nhalf\n")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        program.kill()
        program.wait(30)
    assert [step["last_lines"] for step in found_by(options, "one")["steps"]] == [["kept"]]
    assert log.read_text().endswith("\nhalf\n")


def test_commands_find_this_checkout():
    path = environment_of({"PYTHONPATH": "/elsewhere"})["PYTHONPATH"].split(":")
    # Sources alone, without an extension, would hide the khop that is installed.
    names = [Path(folder).name for folder in path if Path(folder).name != "src"]
    assert names == ["benchmarks", "elsewhere"]
