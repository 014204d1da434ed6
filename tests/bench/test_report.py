"""Tables, pictures, and what is said of the machine."""

from __future__ import annotations

import subprocess

import pytest

from khop_bench import machine
from khop_bench.chart import draw
from khop_bench.idle import settle
from khop_bench.measure import Row, Turn, take_joint_turns
from khop_bench.peers import Peers
from khop_bench.report import format_number, row_lines
from khop_bench.run import slug


def rows():
    made = [Row("uniform", "khop", "ms", "edge"), Row("uniform", "peer", "ms", "edge")]
    made.append(Row("disjoint", "khop", "ms", "edge"))
    times = iter([(1, 4, 2), (1, 4, 2), (3, 8, 2)])
    return take_joint_turns(made, lambda _: [Turn(t * 1e-3, 100) for t in next(times)], 2)


def test_a_table_stands_in_line_and_is_markdown():
    lines = row_lines(rows())
    assert len({len(line) for line in lines}) == 1
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        *("**uniform**", "khop", "peer"),
        *("**disjoint**", "khop"),
    ]
    assert set(lines[1]) <= set("|:- ")
    cells = [cell.strip() for cell in lines[4].split("|")[1:-1]]
    assert cells == ["peer", "6.00 ms", "4.00 - 8.00", "80,000 ns/edge", "3.33"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (9.87, "9.87"), (12.34, "12.3"), (12345.6, "12,346")]
)
def test_figures(value, text):
    assert format_number(value) == text


def test_a_chart(tmp_path):
    pytest.importorskip("matplotlib")
    slow = [Row("first batch", "khop", "s"), Row("memory", "sampler", "MB")]
    take_joint_turns(slow, lambda _: [Turn(0.0), Turn(5e6)], 1)  # a bar without length
    draw({"kernels": rows(), "startup": slow}, "title", tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    for words in ("kernels: ns/edge", "startup: s", "startup: MB"):
        assert f"<!-- {words} -->" in text


def test_the_machine_and_its_software_are_named():
    found = machine.describe_machine()
    assert {"processor", "cores", "caches", "memory"} <= set(found)
    assert found["cores"] >= found["cores of this process"] >= 1
    software = machine.describe_software(Peers())
    assert {"khop", "commit", "Python", "torch", "PyG", "torch threads"} <= set(software)


def test_devices_are_named():
    assert machine.describe_device("emulated") == {"device": "emulated"}
    assert slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"


def test_the_commit_is_khops_own(monkeypatch, tmp_path):
    """Of a repository that khop is installed below, but not part of, no commit is told."""

    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    package = tmp_path / "khop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(machine.khop, "__file__", str(package / "__init__.py"))
    assert machine.commit() is None
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert machine.commit() is None
    git("add", ".")
    git("commit", "-q", "-m", "second")
    first = machine.commit()
    assert len(first) == 12
    (package / "__init__.py").write_text("x = 1")
    assert machine.commit() == f"{first}+"


def test_settling_ends():
    settle()
