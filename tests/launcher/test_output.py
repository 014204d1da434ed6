"""Output of a job: origin and control characters, files that are rotated, and slow readers."""

import sys
import time

import pytest

from khop.launcher import output as module, session
from khop.launcher.output import Output
from khop.launcher.session import Message, Session, receive_all
from support import launching


def test_lines(capsys):
    """Colours pass, and nothing else that controls a terminal."""
    output = Output(None)
    output.write("a/0", "\x1b[31mred\x1b[0m\tx\x1b]0;title\x07\r")
    output.write("b/1", "plain")
    output.close(None)
    shown = capsys.readouterr().out
    assert shown == "a/0: \x1b[31mred\x1b[0m\tx\\x1b]0;title\\x07\\r\nb/1: plain\n"
    assert output.last_lines("b/1") == ["plain"] and output.last_lines("c/2") == []


def test_files_are_rotated(tmp_path, monkeypatch, capsys):
    """A file is at most as long as the limit and a line; one earlier file is kept."""
    monkeypatch.setattr(module, "_MAX_LOG_BYTES", 1000)
    output = Output(tmp_path / "logs")
    lines = [f"line {i:03}" for i in range(300)]
    for line in lines:
        output.write("a/0", line)
    output.close(None)
    earlier, last = ((tmp_path / "logs" / f"a-0.log{end}").read_text() for end in (".1", ""))
    assert 0 < len(last) <= 1009 and 1000 < len(earlier) <= 1009
    kept = (earlier + last).split("\n")[:-1]
    assert kept == lines[-len(kept) :]
    assert capsys.readouterr().out.count("a/0: ") == 300


def test_full_disk(tmp_path, monkeypatch, capsys):
    """Output goes on without files, and is no reason to end a job. Too little room is an error."""
    (tmp_path / "a-0.log").symlink_to("/dev/full")
    output = Output(tmp_path)
    for line in ("one", "two"):
        output.write("a/0", line)
    output.close(None)
    shown = capsys.readouterr()
    assert shown.out == "a/0: one\na/0: two\n" and output.error is None
    assert shown.err.startswith("khop run: no more log files are written: [Errno 28] No space left")
    assert shown.err.count("\n") == 1
    monkeypatch.setattr(module, "_MAX_LOG_BYTES", 1 << 62)
    with pytest.raises(OSError, match="MiB are free for logs"):
        Output(tmp_path)


@pytest.mark.process
def test_reader_that_waits(tmp_path):
    """For longer than the lease: the job waits, as for any pipe, and nothing is lost."""
    (tmp_path / "t.py").write_text(
        "for i in range(60_000): print(f'{i:07}', 'x' * 60)\nprint('end', flush=True)\n"
    )
    words = ("--rsh", launching.RSH, "--hosts", "a", "--lease", 5, "--", "t.py")
    job = launching.start(*words, folder=tmp_path)
    job.stdout.readline()
    time.sleep(6)
    assert job.poll() is None
    lines = job.stdout.read().splitlines()
    assert job.wait() == 0, job.stderr.read()
    assert len(lines) == 60_000 and lines[-1] == "a/0: end"
    assert [int(line.split()[1]) for line in lines[:-1]] == list(range(1, 60_000))
    job.stdout.close()
    job.stderr.close()


@pytest.mark.process
def test_host_that_has_ended_is_read_to_its_end(monkeypatch):
    """It is not lost while output of it is still read, however late or slowly."""
    monkeypatch.setattr(session, "_LOST_SECONDS", 0.2)
    monkeypatch.setattr(session, "_CHUNK", 4000)
    out = '{"out": [0, "' + "x" * 80 + '"]}'
    program = f"print({session._MAGIC.decode()!r} + 100 * {out + chr(10)!r})"
    host = Session("a", [sys.executable, "-c", program], Message)
    assert not host.is_lost
    host._process.wait()
    for _ in range(9):
        time.sleep(0.05)
        host.excuse()
        assert not host.is_lost
    messages = []
    while len(messages) < 100:
        messages += receive_all([host], print)
        assert not host.is_lost
        time.sleep(0.15)
    while not host.is_lost:
        receive_all([host], print)
    host.close(1)
