"""Mistakes on the command line: one line that blames what is wrong and says what to do.

All in this process, through `khop.cli.main.main`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from khop.cli.main import COMMANDS, main, parser_of_all
from khop.partition import PartitionFolder, RandomPartitioner, propagation

IDS = np.arange(10)


def folder_of(name, **arrays):
    """A folder with a ring of ten nodes, and arrays."""
    Path(name).mkdir()
    for array, values in {"edge_index": np.stack([IDS, (IDS + 1) % 10]), **arrays}.items():
        np.save(f"{name}/{array}.npy", values)


def names():
    return sorted(path.name for path in Path().iterdir())


@pytest.fixture(autouse=True)
def ring(tmp_path, monkeypatch):
    """A working directory with a graph `ring`."""
    monkeypatch.chdir(tmp_path)
    folder_of("ring", x=np.zeros((10, 2), np.float32))


@pytest.fixture
def fails(capsys):
    """Runs a command that must fail with exit code 2 and one line, which is returned."""

    def run(line):
        try:
            code = main(line.split())
        except SystemExit as ended:
            code = ended.code
        out, errors = capsys.readouterr()
        assert (code, out) == (2, "")
        assert errors.startswith("khop ")
        assert errors.count("\n") == 1
        assert "Errno" not in errors
        return errors.rstrip("\n")

    return run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--num-parts two", "--num-parts: must be a whole number (got 'two')"),
        ("--num-parts 2.5", "--num-parts: must be a whole number (got '2.5')"),
        ("--num-parts 2 --seed abc", "--seed: must be a whole number (got 'abc')"),
        ("--num-parts 2 --slack x", "--slack: must be a number (got 'x')"),
        ("--num-parts", "--num-parts: expected one argument"),
        ("", "the following arguments are required: --num-parts"),
        ("more --num-parts 2", "unrecognized arguments: more"),
        ("--num-parts 2 --option seed", "--option: must be NAME=VALUE (got 'seed')"),
        ("--num-prats 2", "no such option '--num-prats': did you mean '--num-parts'?"),
    ],
)
def test_arguments_are_refused_in_one_line(fails, options, message):
    """Without sixteen lines of usage, and in words of users."""
    line = fails(f"partition ring out {options}")
    assert line.startswith(f"khop partition: error: {message}")
    assert line.endswith(" (see khop partition --help)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--method metsi", "no method 'metsi': did you mean 'metis'? there are "),
        ("--base metsi", "no method 'metsi': did you mean 'metis'? there are "),
        ("--option seed=1", "--option is for a method's own options, which 'seed' is"),
        ("--method khop_gone:X", "khop.partitioners: cannot import 'khop_gone:X': "),
        ("--method a/b.py:X", "method 'a/b.py:X' must be written package.module:Class"),
        ("--method json:loads", "khop.partitioners: 'json:loads' must be a subclass "),
        ("--layout npz", "layout npz does not read 'ring': it reads FILE.npz"),
        ("--layout nzp", "no layout 'nzp': did you mean 'npz'? there are debian, "),
    ],
)
def test_names_that_stand_for_nothing(fails, options, message):
    """Of methods and layouts: before anything is read or written."""
    line = fails(f"partition ring out --num-parts 2 {options}")
    assert line.startswith(f"khop partition: error: {message}")
    assert not os.path.lexists("out")


@pytest.mark.parametrize("name", ["serve x --master h:1 --port a", "keygen k --clients a"])
def test_numbers_of_other_commands(fails, name):
    assert "must be a whole number (got 'a')" in fails(name)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere", "'nowhere' does not exist: a source is a file or a folder, or one of debian"),
        ("a/b.pt", "'a/b.pt' does not exist"),
        ("debain", "'debain' does not exist: did you mean 'debian'?"),
        ("ring/edge_index.npy", "is a file of a graph, not the graph: name the folder"),
    ],
)
def test_a_source_that_is_none(fails, spec, message):
    assert message in fails(f"partition {spec} out --num-parts 2")


def test_attributes_of_different_lengths(fails):
    """The one that is wrong is named: two of three have a row for each node that edges name."""
    folder_of("short", x=np.zeros((6, 2)), y=IDS, train_mask=IDS < 5)
    message = fails("partition short out --num-parts 2")
    assert "attribute 'x' of node type 'node' has 6 rows for 10 nodes" in message
    folder_of("two", x=np.zeros((6, 2)), y=IDS)
    assert "attribute 'x' of node type" in fails("partition two out --num-parts 2")
    folder_of("long", x=np.zeros((12, 2)), y=IDS)
    assert "attribute 'x' of node type" in fails("partition long out --num-parts 2")
    folder_of("few", x=np.zeros((6, 2)))
    message = fails("partition few out --num-parts 2")
    assert "edge 5 joins node 5 (of 6) and node 6 (of 6)" in message
    assert "the number of nodes is num_nodes, or that of the rows of their attributes" in message


@pytest.mark.parametrize("left", [20, 140])
def test_a_file_that_was_not_copied_to_its_end(fails, left):
    """In the header, or among the values."""
    os.truncate("ring/x.npy", left)
    message = fails("partition ring out --num-parts 2")
    assert "'ring/x.npy' cannot be read as an array of numbers" in message
    if left == 140:
        assert "it has 140 bytes, fewer than its header says; write or copy it again" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("src,dst\nalice,bob\n", "column 'src' of 'csv/edges.csv' holds text ('alice')"),
        ("src,dst,day\n0,1,2020-01-01\n", "column 'day' of 'csv/edges.csv' holds text ('2020-01-"),
        ("src;dst\n0;1\n", "separates its fields by ';', not by ','"),
        ("0;1\n1;2\n", "pandas.read_csv(file, sep=';').to_csv(file, index=False)"),
        ("src\tdst\n0\t1\n", r"separates its fields by '\\t'"),
        ("src,dst\n0,1\n1,\n", "ids run from 0, and none may be missing"),
    ],
)
def test_tables_that_hold_no_numbers(fails, text, message):
    pytest.importorskip("pandas")
    Path("csv").mkdir()
    Path("csv/edges.csv").write_text(text)
    told = fails("partition csv out --num-parts 2")
    assert message.replace("\\\\", "\\") in told
    assert ("pandas.factorize" in told) == ("holds text" in message)


def test_dates_of_parquet(fails):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    Path("dates").mkdir()
    days = pandas.to_datetime(["2020-01-01", "2020-01-02"])
    pandas.DataFrame({"src": [0, 1], "dst": [1, 0], "day": days}).to_parquet("dates/edges.parquet")
    message = fails("partition dates out --num-parts 2")
    assert "column 'day' of 'dates/edges.parquet' holds times of dtype datetime64" in message
    assert "column.astype('datetime64[s]').astype('int64')" in message


def test_places_that_cannot_be_written(fails, monkeypatch):
    """Before the graph is read: the source does not even exist."""
    Path("file").touch()
    message = fails("partition nowhere file/out --num-parts 2")
    assert "cannot write 'file/out': '" in message
    assert message.endswith("file' is not a folder")
    Path("closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("closed"))
    for command in ("partition nowhere", "repartition nowhere"):
        message = fails(f"{command} closed/a/out --num-parts 2")
        assert "cannot write 'closed/a/out': there is no permission to write in '" in message


def test_propagation_of_what_there_is_not(fails):
    assert "no partition folder" in fails("propagate nowhere --attr x --out y")
    assert main(["partition", "ring", "parts", "--num-parts", "2", "--quiet"]) == 0
    message = fails("propagate parts --attr z --out y")
    assert "node type 'node' has no attribute 'z'" in message
    message = fails("propagate parts --attr x --out y --memory 10")
    assert message.endswith("raise memory (--memory)")


@pytest.mark.parametrize("overwrite", ["", "--overwrite"])
def test_a_folder_of_something_else_is_not_offered_to_be_replaced(fails, overwrite):
    Path("home").mkdir()
    Path("home/thesis.tex").touch()
    message = fails(f"partition ring home --num-parts 2 {overwrite}")
    assert message.endswith("it will not be overwritten; choose another output folder")
    assert main(["partition", "ring", "parts", "--num-parts", "2", "--quiet"]) == 0
    if not overwrite:
        assert "--overwrite" in fails("partition ring parts --num-parts 2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("p.xyz", "the name of a picture must end with .png, .svg or .pdf (got 'p.xyz')"),
        ("nowhere/p.png", "cannot write 'nowhere/p.png': no folder '"),
    ],
)
def test_pictures_are_checked_first(fails, name, message):
    """Before anything is read: the folder does not exist."""
    assert message in fails(f"inspect nowhere --plot {name}")


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_run_that_is_ended_says_how_it_goes_on(capsys, monkeypatch, number, code, word):
    """In bounded memory it does; else nothing is left. What it says is then done."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    bounded = ["partition", "ring", "b", "--num-parts", "2", "--memory", "1MB", "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(RandomPartitioner, "assign_nodes", lambda *_: signal.raise_signal(number))
        assert main(["partition", "ring", "a", "--num-parts", "2", "--quiet"]) == code
        assert capsys.readouterr().err == f"khop partition: {word}: nothing is left of it\n"
        assert names() == ["ring"]
        assert (
            main(["partition", "ring", "b", "--num-parts", "2", "--memory", "1MB", "--quiet"])
            == code
        )
    signal.signal(signal.SIGINT, before)
    told = capsys.readouterr().err
    assert told.startswith(f"khop partition: {word}: the same command goes on where this one was")
    assert main(bounded) == 0
    assert PartitionFolder("b").num_parts == 2
    assert names() == ["b", "ring"]


def test_propagation_that_is_terminated_goes_on(capsys, monkeypatch):
    assert main(["partition", "ring", "parts", "--num-parts", "2", "--quiet"]) == 0
    command = ["propagate", "parts", "--attr", "x", "--out", "y", "--quiet"]
    with monkeypatch.context() as patch:
        reads = lambda *_: signal.raise_signal(signal.SIGTERM)  # noqa: E731
        patch.setattr(propagation._Run, "_read", reads)
        assert main(command) == 143
    told = capsys.readouterr().err
    assert told.startswith("khop propagate: terminated: the same command goes on where this one")
    assert len(names()) == 4
    assert main([*command, "--clean"]) == 0
    assert list(PartitionFolder("parts").meta.node_types[0].attrs) == ["x", "y"]
    assert names() == ["parts", "ring"]


def test_descriptions_keep_their_capitals():
    commands = parser_of_all()._subparsers._group_actions[0].choices
    for name, text in COMMANDS.items():
        assert commands[name].description == text[0].upper() + text[1:] + "."
    assert "as text, JSON or a picture" in commands["inspect"].description


def test_help_has_examples_and_groups(capsys):
    for words, groups in (
        (["--help"], ["examples:", "khop partition debian parts --num-parts 2"]),
        (
            ["partition", "--help"],
            ["examples:", "\nthe cut:", "\nwhat the folder holds:", "\nwhat is done and printed:"],
        ),
    ):
        with pytest.raises(SystemExit):
            main(words)
        shown = capsys.readouterr().out
        assert all(text in shown for text in groups)
        examples = shown.partition("examples:")[2].split("\n\n")[0].strip().splitlines()
        assert len(examples) == 3
