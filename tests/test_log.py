"""Events: who says what, how it is written, and that nothing is said unasked."""

import io
import json
import logging
import re
import subprocess
import sys

import pytest

from khop import log
from khop.distributed.processes.child import ChildProcess, wait_for_message

EVENTS = log.get("khop.some.module")


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Leaves the tree of loggers and the process's identity as they were; tests are a trainer's."""
    monkeypatch.setattr(log, "_ORIGIN", {**log._ORIGIN, "role": "trainer"})
    root = logging.getLogger()
    before = list(root.handlers), root.level
    yield
    log.reset()
    assert (list(root.handlers), root.level) == before


def said(level="info", json_lines=True, say=lambda: None):
    """What is written while `say` runs."""
    stream = io.StringIO()
    log.configure(level, json=json_lines, stream=stream)
    say()
    return stream.getvalue()


def run(code, **environment):
    """Stderr of a fresh interpreter that runs the code."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(p for p in sys.path if p), **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stderr


def test_a_line_of_json():
    """Everything is there by name, values of fields as they are."""
    log.identify("server", rank=3, partition=1)
    line = said(say=lambda: EVENTS.info("session-opened", "a session", loader="l", samplers=2))
    read = json.loads(line)
    assert line.count("\n") == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", read.pop("time"))
    assert read.pop("pid") > 0
    assert read == {
        "level": "info",
        "logger": "khop.some.module",
        "message": "a session",
        "role": "server",
        "rank": 3,
        "partition": 1,
        "number": None,
        "event": "session-opened",
        "fields": {"loader": "l", "samplers": 2},
    }


def test_a_line_of_text():
    log.identify("server", rank=3, partition=1)
    line = said(json_lines=False, say=lambda: EVENTS.error("lost", "a session", loader="l"))
    assert re.fullmatch(
        r"[-\d]{10} [:\d]{8}\.\d{3} ERROR server, rank 3, part 1, pid \d+: "
        r"lost: a session \(loader=l\)\n",
        line,
    )


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[2Jb", "a\rb", "a\u2028b", "a\x9bb"])
def test_line_ends_and_terminal_codes_are_escaped(text):
    """Line ends and what steers terminals come out escaped, in both formats."""
    for json_lines in (False, True):
        line = said(json_lines=json_lines, say=lambda: EVENTS.info("e", text, field=text))
        assert line.endswith("\n")
        assert line[:-1].isprintable()


def test_percent_signs_are_text():
    assert json.loads(said(say=lambda: EVENTS.info("e", "100 %s %d")))["message"] == "100 %s %d"


def test_levels():
    def say():
        for each in (EVENTS.debug, EVENTS.info, EVENTS.warning, EVENTS.error):
            each("e", "m")

    counts = [said(level, say=say).count("\n") for level in ("debug", "info", "warning", "error")]
    assert counts == [4, 3, 2, 1]
    with pytest.raises(ValueError, match="'loud'; there are debug, info"):
        log.configure("loud")


def test_an_exception_comes_with_its_traceback():
    def say():
        try:
            raise KeyError("k")
        except KeyError:
            logging.getLogger("khop.x").exception("plain logging")

    read = json.loads(said(say=say))
    assert read["event"] is None
    assert "KeyError: 'k'" in read["traceback"]
    assert "KeyError: 'k'" in said(json_lines=False, say=say)


def test_a_traceback_steers_no_terminal():
    """An exception's text may come from the network."""

    def say():
        try:
            raise ValueError("\x1b]0;pwned\x07\n\x1b[2Jforged")
        except ValueError:
            logging.getLogger("khop.x").exception("it failed")

    lines = said(json_lines=False, say=say).splitlines()
    assert lines[-2:] == ["ValueError: \\x1b]0;pwned\\x07", "\\x1b[2Jforged"]


def test_applications_see_events_in_their_own_handlers(caplog):
    """Unconfigured, records reach the root's handlers, with attributes and the caller's place."""
    EVENTS.warning("sampler-restarted", "again", sampler=1)
    (record,) = caplog.records
    assert (record.event, record.fields, record.role) == (
        "sampler-restarted",
        {"sampler": 1},
        "trainer",
    )
    assert record.funcName == "test_applications_see_events_in_their_own_handlers"


def test_configured_twice_says_once_and_reset_forgets():
    first = io.StringIO()
    log.configure("info", stream=first)
    assert said(say=lambda: EVENTS.info("e", "m")).count("\n") == 1
    assert first.getvalue() == ""
    log.reset()
    tree = logging.getLogger("khop")
    assert (tree.handlers, tree.propagate, tree.level) == ([], True, logging.NOTSET)


SPEAK = "from khop import log; e = log.get('khop.x'); e.info('i', 'm'); e.warning('w', 'm')"


@pytest.mark.process
def test_below_warning_khop_keeps_still():
    assert run(SPEAK) == "m\n"  # Python's own last resort


@pytest.mark.process
def test_the_environment():
    """KHOP_LOG asks it to speak; a value that means nothing is told of, and means 'info'."""
    assert run(SPEAK, KHOP_LOG="info").count("\n") == 2
    assert run(SPEAK, KHOP_LOG="ERROR") == ""
    for value in ("json", "json:info"):
        events = [json.loads(line)["event"] for line in run(SPEAK, KHOP_LOG=value).splitlines()]
        assert events == ["i", "w"]
    wrong = run(SPEAK, KHOP_LOG="json:loud").splitlines()
    assert [json.loads(line)["event"] for line in wrong] == ["bad-setting", "i", "w"]


CHILD = """
import sys
from khop import log
from khop.distributed.processes.child import start_up

def main():
    line, message = start_up()
    assert not {"torch", "zmq"} & set(sys.modules)
    log.get("khop.child").warning("here", "a child speaks")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("speak", "events"),
    [
        (None, ["here"]),
        ("warning", ["here"]),
        ("info", ["process-started", "here", "process-ended"]),
    ],
)
def test_processes_that_are_started(speak, events, tmp_path, capfd, monkeypatch):
    """They say who they are, on stderr, as much as the one that started them."""
    (tmp_path / "worker.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    log.identify("trainer", rank=2)
    if speak is not None:
        log.configure(speak, json=True)
    child = ChildProcess("worker", {"part": 4, "number": 1})
    assert wait_for_message(child.line) is None  # it has ended
    assert child.exit_status() == "exited with status 0"
    child.close()
    lines = capfd.readouterr().err.splitlines()
    if speak is None:
        assert len(lines) == 1
        assert f"WARNING sampler 1, rank 2, part 4, pid {child.pid}: here: a child" in lines[0]
        return
    read = [json.loads(line) for line in lines]
    assert [line["event"] for line in read] == events
    for line in read:
        who = [line[name] for name in ("role", "rank", "partition", "number", "pid")]
        assert who == ["sampler", 2, 4, 1, child.pid]


def test_configuration_is_no_operation_of_its_own():
    """What children hear travels with their configuration."""
    settings = log.of_child("khop.distributed.rpc.partition_server", {"part": 1})
    assert json.loads(json.dumps(settings)) == settings
    assert settings["who"]["role"] == "server"


def test_values_of_others_are_cut_before_they_are_written_out():
    """Twelve lists of nine times the one before: 9^12 entries if it were written out."""
    nested = "x"
    for _ in range(12):
        nested = [nested] * 9
    for value in (nested, {"a": nested}, "x" * 10**6, [1] * 10**6, {i: i for i in range(99)}):
        assert len(log.shown(value)) <= 80
    assert log.shown([1, "a\n", None]) == r"[1, 'a\n', None]"
    assert log.shown({"a": 1.5}) == "{'a': 1.5}"
