"""Levels of tests: each test has one, and those of level `unit` cannot start a process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import durations, levels, order

TESTS = Path(__file__).parents[1]


def levels_of(item: pytest.Item) -> list[str]:
    return [mark.name for mark in item.iter_markers() if mark.name in levels.LEVELS]


def test_each_test_has_one_level(request: pytest.FixtureRequest) -> None:
    wrong = {item.nodeid: levels_of(item) for item in request.session.items}
    assert {name: found for name, found in wrong.items() if len(found) != 1} == {}


def test_the_table_names_what_there_is() -> None:
    paths = [path for paths in levels.TABLE.values() for path in paths]
    assert [path for path in paths if not (TESTS / path).exists()] == []
    assert len(paths) == len(set(paths))
    assert set(levels.TABLE) <= set(levels.LEVELS)


def test_durations_are_of_tests_that_there_are(request: pytest.FixtureRequest) -> None:
    """A test that is renamed takes its line along: else it goes last, and counts as fast."""
    assert len(durations.measured()) > 100
    files = {name.partition("::")[0] for name in durations.measured()}
    assert [file for file in sorted(files) if not (TESTS.parent / file).exists()] == []
    found = {durations.function_of(item.nodeid) for item in request.session.items}
    collected = {function.partition("::")[0] for function in found}
    if files <= collected:  # all tests were collected
        assert [function for function in durations.measured() if function not in found] == []


def test_the_longest_path_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"unit": [""], "process": ["a"], "fault": ["a/b.py"], "soak": ["a/c"]}
    monkeypatch.setattr(levels, "TABLE", table)
    paths = ["test_x.py", "ab/test_x.py", "a/test_x.py", "a/b.py", "a/c/test_x.py"]
    found = [levels.of_path(TESTS / path, TESTS) for path in paths]
    assert found == ["unit", "unit", "process", "fault", "soak"]


def test_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow files first; at random, tests of a file still stand together."""
    names = ["data/a", "data/b", "cli/c", "loader/d", "distributed/e"]
    items = [
        SimpleNamespace(path=TESTS / name, nodeid=f"{name}::t{i}[x]", number=i)
        for i in range(2)
        for name in names
    ]
    seconds = {"cli/c::t0": 3.0, "distributed/e::t0": 2.0, "distributed/e::t1": 2.0}
    monkeypatch.setattr(durations, "measured", lambda: seconds)
    order.arrange(items)
    assert [item.path.parent.name for item in items[:4]] == ["distributed"] * 2 + ["cli"] * 2
    orders = set()
    for seed in (1, 1, 2, 3):
        order.arrange(items, seed)
        assert [item.number for item in items] == [0, 1] * 5
        assert all(a.path == b.path for a, b in zip(items[::2], items[1::2], strict=True))
        orders.add((seed, tuple(item.path.name for item in items)))
    assert len({files for _, files in orders}) == len(orders) == 3


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["true"], check=True),
        lambda: subprocess.Popen([sys.executable, "-c", ""]).wait(),
        lambda: os.system("true"),
        lambda: os.fork(),  # noqa: PLW0108 (looked up when it is called)
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: multiprocessing.get_context("fork").Process(target=print).start(),
        lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
        lambda: multiprocessing.get_context("forkserver").Process(target=print).start(),
    ],
    ids=["run", "Popen", "system", "fork", "posix_spawn", "mp fork", "mp spawn", "mp forkserver"],
)
def test_a_unit_test_that_starts_a_process_fails(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="a unit test starts a process"):
        start()


@pytest.mark.process
def test_other_tests_start_processes() -> None:
    assert subprocess.run([sys.executable, "-c", "exit(3)"], check=False).returncode == 3
