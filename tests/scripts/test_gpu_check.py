"""`scripts/gpu_check`, as far as it goes without a GPU: arguments, and stages in a dry run."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys

import pytest

from support import script_modules

runner = pytest.importorskip("khop_bench.gpu.runner")


@pytest.fixture(scope="module")
def script():
    module = script_modules.load("gpu_check")
    yield module
    sys.modules.pop("khop_gpu_check")


@pytest.fixture
def begun(script, monkeypatch, tmp_path):
    """Stages that only note their names and seconds; in the end, those that were begun."""
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    noted = []

    def note(stage):
        noted.append((stage.name, round(stage.left)))
        stage.run("note", ["true"])

    for name, (_, seconds) in script.STAGES.items():
        monkeypatch.setitem(script.STAGES, name, (note, seconds))
    return noted


def test_some_stages_in_their_order_with_their_seconds(script, begun, tmp_path):
    assert script.main(["kernels=33", "build"]) == 0
    assert begun == [("build", 200), ("kernels", 33)]
    files = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert files == ["build.json", "gpu_check.log", "kernels.json"]


def test_no_stage_gets_more_than_is_left_of_all(script, begun):
    script.main(["build", "kernels", "--limit", "100"])
    assert begun == [("build", 100), ("kernels", 100)]


def test_all_stages(script, begun):
    assert script.main(["--limit", "9999"]) == 0
    assert [name for name, _ in begun] == list(script.STAGES)


@pytest.mark.parametrize(
    ("argument", "message"),
    [("benhc", "no stage 'benhc': there are build, doctor, "), ("build=x", "'x' is no number of")],
)
def test_bad_arguments(script, begun, capsys, argument, message):
    with pytest.raises(SystemExit):
        script.main([argument])
    assert begun == []
    assert message in capsys.readouterr().err


def test_a_stage_that_fails_stops_no_other_one(script, begun, monkeypatch):
    def fail(stage):
        raise FileNotFoundError("no ncu")

    monkeypatch.setitem(script.STAGES, "build", (fail, 10))
    assert script.main(["build", "doctor"]) == 1
    assert [name for name, _ in begun] == ["doctor"]


def test_calls_fit_ten_minutes_and_have_each_stage_once(script):
    """Those that the script's docstring names; a call brings eight files back at most."""
    calls = re.findall(r"^    \d   scripts/gpu_check (.*)$", script.__doc__, re.MULTILINE)
    stages = [[word for word in call.split() if word in script.STAGES] for call in calls]
    assert sorted(itertools.chain(*stages)) == sorted(script.STAGES)
    for named in stages:
        assert sum(script.STAGES[name][1] for name in named) <= 580
        reports = {"bench-small", "training", "sampling", "gathers"}
        assert 1 + len(named) + len(reports & {*named}) + ("build" in named) <= 8


def code_of(words, limit, environment, log):
    """A command's exit code; the program is forked, which one in a group of its own is not."""
    streams = {"stdout": log, "stderr": subprocess.STDOUT}
    environment = {**os.environ, "PYTHONPATH": environment["PYTHONPATH"]}
    return subprocess.run(
        words, cwd=runner.ROOT, env=environment, timeout=limit, check=False, **streams
    ).returncode


def test_a_dry_run(script, tmp_path, monkeypatch):
    """Programs of stages run, with tiny inputs, on the emulated device."""
    monkeypatch.setattr(runner, "_code_of", code_of)  # tests/bench/test_gpu_runner.py has its own
    arguments = ["--dry-run", "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    stages = ["doctor", "kernel-times", "steps", "random", "node-group", "partitions", "methods"]
    assert script.main([*stages, *arguments]) == 0
    found = {name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in stages}
    for name, content in found.items():
        assert (content["stage"], content["passed"], content["device"]) == (name, True, "emulated")
    assert found["random"]["found"]["different"] == {}
    assert found["random"]["found"]["tried"] > 0
    for trainer in found["node-group"]["found"]:
        assert trainer["shards"]["replicated"] > 0
        assert trainer["name"] == "emulated"
        assert trainer.keys() >= {"device", "peer", "host"}
    for trainer in found["partitions"]["found"]:
        assert (trainer["batches that differ"], trainer["calls"]) == (0, 4 * 3 + 3)
        assert trainer["backend"] == "gloo"
        assert trainer["MB received"] > trainer["attributes, MB"] > 0
    same = found["steps"]["dependent launch 1"]["batches that differ"]
    assert (same["padded"], same["captured"], same["captured, compared"]) == (0, 0, 3)
    assert {method["differing"] for method in found["methods"]["found"].values()} == {0}
    ways = found["kernel-times"]["found"]
    steps = [step["step"] for step in ways["khop, device"]["steps"]]
    assert steps[0] == "seeds"
    assert "hop 3, append" in steps
    assert (tmp_path / "out" / "gpu_check.log").exists()
