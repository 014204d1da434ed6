"""`benchmarks/run.py`: tiny runs of every suite, as a user starts them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import khop
from khop_bench import floor
from khop_bench.command import main
from khop_bench.device import PARTS
from khop_bench.settings import DEFAULT, SUITES, default_cache

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "run.py"
TINY = ("--scale", "0.001", "--repeat", "1", "--batches", "1")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def bench(cache, tmp_path, monkeypatch, capsys):
    """Runs the command in an empty directory; returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        assert main([*arguments, *TINY, "--cache", str(cache)]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def program(tmp_path):
    """Runs `benchmarks/run.py ARGUMENTS...` in an empty directory, in a process of its own."""
    # Where khop is imported from a source tree, the child needs the way to it.
    path = [str(Path(khop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, str(PROGRAM), *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    return run


def error_of(done):
    """The line of a run that must fail for bad input, before it does anything."""
    assert (done.returncode, done.stdout) == (2, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("benchmarks/run.py: error: ")
    return line


GROUPS = {
    "kernels": {"uniform", "weighted", "temporal", "disjoint", "heterogeneous"},
    "gather": {"rows of a batch"},
    "loaders": {"end to end"},
    "small": {"in process", "1 sampler"},
    "startup": {"first batch", "private memory"},
    "growth": {
        *("sampling", "gather", "in process", "2 samplers", "first batch", "private memory")
    },
    "partitions": {
        "a batch",
        *(f"sampler, {what}" for what in ("sampling", "gathering", "remote", "idle", "other")),
        *("server, drawing", "server, copying rows"),
        *("trainer, waiting", "trainer, collating", "trainer, consuming"),
    },
}


def check_report(report, suites):
    """The schema that `khop_bench.report.to_json` promises."""
    assert set(report) == {
        *("schema", "settings", "machine", "software", "suites", "goals", "notes", "left_out")
    }
    assert report["schema"] == 1
    assert report["settings"] == {"scale": 0.001, "repeat": 1, "batches": 1}
    assert list(report["suites"]) == list(suites)
    for rows in report["suites"].values():
        for row in rows:
            keys = {"group", "name", "unit", "median", "min", "max", "ratio", "values"}
            if "work_unit" in row:
                keys |= {"work_unit", "work", "per_work"}
                assert len(row["work"]) == 1
            assert set(row) == keys
            assert len(row["values"]) == 1
            assert row["min"] <= row["median"] <= row["max"]
    assert {goal["suite"] for goal in report["goals"]} <= set(suites)
    assert {goal["verdict"] for goal in report["goals"]} <= {"met", "missed", "not measured"}


@pytest.mark.timeout(400)  # the floor may have to be built first
@pytest.mark.parametrize(
    "suites", [("kernels", "gather"), ("loaders", "startup"), ("small", "partitions"), ("growth",)]
)
def test_suites(bench, suites, tmp_path):
    traced = ("--trace", "t.json") if "loaders" in suites else ()
    out = bench(*suites, *traced)
    if traced:
        events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
        names = {e["args"]["name"] for e in events if e.get("name") == "process_name"}
        assert len(names) > 1  # the trainer, and its samplers
        (tmp_path / "t.json").unlink()
    name = f"bench-scale0.001-{'-'.join(suites)}"
    report = json.loads((tmp_path / f"{name}.json").read_text())
    check_report(report, suites)
    for suite in suites:
        assert {row["group"] for row in report["suites"][suite]} == GROUPS[suite]
    table = (tmp_path / f"{name}.md").read_text()
    assert table.count("\n## ") == len(suites) + 2  # and goals, and notes
    for line in report["left_out"]:
        assert line in out
        assert line in table
    chart = importlib.util.find_spec("matplotlib") is not None
    assert (tmp_path / f"{name}.png").exists() == chart
    assert out.count("written to ") == 2 + chart


def test_a_floor_that_cannot_be_built(bench, monkeypatch, tmp_path):
    """Its rows are left out, with a line that says why; goals against it are not measured."""

    def load():
        raise floor.FloorError("no compiler")

    monkeypatch.setattr("khop_bench.bench.load_floor", load)
    out = bench("kernels", "gather")
    report = json.loads((tmp_path / "bench-scale0.001-kernels-gather.json").read_text())
    assert out.count("floor is left out: no compiler\n") == 1
    assert "floor is left out: no compiler" in report["left_out"]
    names = {row["name"] for rows in report["suites"].values() for row in rows}
    assert "khop" in names
    assert "floor" not in names
    verdicts = [goal["verdict"] for goal in report["goals"] if goal["against"] == "floor"]
    assert verdicts == ["not measured"] * 2


@pytest.mark.timeout(400)
def test_the_floor_is_measured(bench, tmp_path):
    """In groups of one edge type, and where rows are copied."""
    try:
        floor.load_floor()
    except floor.MissingToolsError as error:
        pytest.skip(str(error))
    bench("kernels", "gather")
    report = json.loads((tmp_path / "bench-scale0.001-kernels-gather.json").read_text())
    groups = [
        row["group"]
        for suite in ("kernels", "gather")
        for row in report["suites"][suite]
        if row["name"] == "floor"
    ]
    assert groups == ["uniform", "weighted", "temporal", "disjoint", "rows of a batch"]


def test_suites_of_details(bench, tmp_path):
    bench("draws", "options", "draws")
    (file,) = tmp_path.glob("*.json")
    assert file.stem == "bench-scale0.001-options-draws"  # in order, and once
    report = json.loads(file.read_text())
    assert report["goals"] == []
    options = {row["group"] for row in report["suites"]["options"]}
    assert {"uniform", "by weight", "induced", "bidirectional", "latest"} <= options
    degrees = {row["group"] for row in report["suites"]["draws"]}
    assert degrees == {"degree 20", "degree 200", "degree 2,000"}


def test_the_suite_of_devices_on_an_emulated_one(bench, tmp_path):
    """Its times are nobody's goals; shares of rows and the equality of batches are."""
    out = bench("--device", "emulated", "--configurations", "20")
    report = json.loads((tmp_path / "bench-scale0.001-device-emulated.json").read_text())
    settings = report.pop("settings")
    assert (settings.pop("device"), settings.pop("configurations")) == ("emulated", 20)
    check_report({**report, "settings": settings}, ["device"])
    assert report["machine"]["device"] == "emulated"
    assert {row["group"] for row in report["suites"]["device"]} == {
        *("batch equality", "kernels for a batch", "hot cache", "sampling, emulated"),
        *("sampled edges, emulated", "training, emulated"),
        *("gather, device memory, emulated", "gather, host memory, emulated"),
    }
    verdicts = {goal["group"]: goal["verdict"] for goal in report["goals"]}
    for group in ("sampling", "sampled edges", "gather, device memory", "training"):
        assert verdicts[group] == "not measured"
    found = {(row["group"], row["name"]): row["median"] for row in report["suites"]["device"]}
    assert verdicts["batch equality"] == "met"
    assert found["batch equality", "different"] == 0
    assert found["batch equality", "all"] == 20
    # The hottest fifth serves more than a fifth, and hotness says so.
    assert 20 < found["hot cache", "rows from the device"] < 100
    assert verdicts["hot cache"] == "met"
    assert "its times say nothing of a GPU's" in out


def test_what_was_measured_is_kept_when_the_run_ends_early(cache, tmp_path, monkeypatch):
    """The report is written after each suite, and after each part of the suite of devices."""
    monkeypatch.chdir(tmp_path)

    def interrupt(*_):
        raise KeyboardInterrupt

    common = (*TINY, "--cache", str(cache))
    monkeypatch.setattr("khop_bench.draws.run", interrupt)
    assert main(["gather", "draws", *common]) == 130
    (report,) = (json.loads(file.read_text()) for file in tmp_path.glob("*.json"))
    check_report(report, ["gather"])
    monkeypatch.setitem(PARTS, "sampling", interrupt)
    arguments = ["--device", "emulated", "--configurations", "3", "--output", "devices"]
    assert main([*arguments, *common]) == 130
    (report,) = (json.loads(file.read_text()) for file in tmp_path.glob("devices/*.json"))
    assert {row["group"] for row in report["suites"]["device"]} == {"batch equality"}


def test_some_parts_of_the_suite_of_devices(bench, tmp_path):
    bench("--device", "emulated", "--part", "gathering")
    (report,) = (json.loads(file.read_text()) for file in tmp_path.glob("*.json"))
    assert report["settings"]["parts"] == ["gathering"]
    groups = {row["group"] for row in report["suites"]["device"]}
    assert groups == {"gather, device memory, emulated", "gather, host memory, emulated"}


def test_the_cache_is_reused_and_peers_that_are_not_there_are_named(bench, cache, monkeypatch):
    for name in ("pyg_lib", "torch_sparse", "graphlearn_torch", "dgl", "dgl.graphbolt"):
        monkeypatch.setitem(sys.modules, name, None)
    bench("gather")
    kept = {p: p.stat().st_mtime_ns for p in (cache / "v1").iterdir() if p.is_dir()}
    out = bench("gather")
    assert "making" not in out
    assert kept == {p: p.stat().st_mtime_ns for p in (cache / "v1").iterdir() if p.is_dir()}
    for name in ("pyg-lib", "torch-sparse", "GLT", "GraphBolt"):
        assert f"{name} is left out: " in out


def test_without_matplotlib(bench, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    hidden = lambda name: None if name == "matplotlib" else find(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert "no chart: matplotlib is not installed" in bench("draws")
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".md"]


def test_reports_go_beside_the_benchmarks_or_where_they_are_asked_for(bench, tmp_path):
    (tmp_path / "benchmarks").mkdir()
    assert "written to benchmarks/results/bench-scale0.001-draws.json" in bench("draws")
    assert "written to deep/er/bench-scale0.001-draws.json" in bench("draws", "--output", "deep/er")


def test_the_default_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/khop/bench")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "khop" / "bench"


def test_help_names_the_suites(program):
    done = program("--help")
    assert done.returncode == 0
    for name, text in SUITES.items():
        assert f"{name:8s} {text}" in done.stdout
    assert f"(default: {' '.join(DEFAULT)})" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel"], "no suite 'kernel': there are kernels, gather,"),
        (["--scale", "0"], "--scale must be in 0.0005 ... 100 (got 0)"),
        (["--scale", "nan"], "--scale must be in"),
        (["--repeat", "0"], "--repeat must be 1 or more (got 0)"),
        (["gather", "--trace", "t.json"], "--trace records the suite 'loaders', which is not of"),
        (["loaders", "--trace", "no/t.json"], "--trace: 'no' is no folder: make it first"),
        (["--batches", "0"], "--batches must be 1 or more (got 0)"),
        (["device"], "the suite 'device' and --device need each other: benchmarks/run.py device"),
        (["gather", "--device", "emulated"], "the suite 'device' and --device need each other"),
        (["--device", "gpu"], "--device must be 'cuda', 'cuda:N' or 'emulated' (got 'gpu')"),
        (["--device", "cuda:99"], "--device cuda:99 cannot be used ("),
        (["--device", "emulated", "--configurations", "0"], "--configurations must be 1 or more"),
        (
            ["--device", "emulated", "--part", "all"],
            "no part 'all': there are batch equality, ",
        ),
        (["--part", "training"], "--part is of the suite 'device': pass --device, too"),
    ],
)
def test_bad_arguments(program, arguments, message, tmp_path):
    assert message in error_of(program(*arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_output_that_cannot_be_written(program, tmp_path, cache):
    tmp_path.chmod(0o500)
    done = program("draws", *TINY, "--output", "out", "--cache", cache)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
