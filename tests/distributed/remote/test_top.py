"""`khop top` and pages of metrics, of real graph servers."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.request

import jobs
import pytest
import serving

import prometheus
from khop.cli.look import Watcher
from khop.distributed.keys import ServerKeys, write_keys
from khop.distributed.remote.connection import Servers
from khop.errors import PartitionUnavailableError


@pytest.fixture
def root(folder_of):
    return folder_of("random", 2)


def command(*words):
    """A command line of khop's, and its environment."""
    path = ":".join(entry for entry in sys.path if entry)
    line = [sys.executable, "-m", "khop.cli.main", *map(str, words)]
    return line, {**os.environ, "PYTHONPATH": path}


def top(graph, *options):
    """What `khop top` prints, and its exit code."""
    line, environment = command("top", graph.master, *options)
    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def looks(watcher, accept, seconds=20.0):
    """Looks until what is seen is as wanted; returns it."""
    end = time.monotonic() + seconds
    while not accept(look := watcher.look(0.5)):
        assert time.monotonic() < end, look
        time.sleep(0.1)
    return look


def test_as_json(root):
    """Everything that servers know, for programs: entries, pictures, rates, clients."""
    with serving.serving(root, 2) as graph, serving.client_of(graph, 0, num_clients=0):
        code, out, _ = top(graph, "--json", "--once", "--interval", "0.5")
        assert code == 0
        (told,) = [json.loads(line) for line in out.splitlines()]
        for rank in (0, 1):
            server = told["servers"][str(rank)]
            assert server["entry"]["addresses"]["tcp"] == graph.addresses[rank]["tcp"]
            assert server["picture"]["pid"] == graph.processes[rank].pid
            assert server["rates"]["requests"] > 0  # those of the command itself
            assert server["lost"] is None


def test_without_a_terminal(root):
    """One table, without what steers terminals."""
    with serving.serving(root, 2) as graph:
        code, out, err = top(graph, "--interval", "0.2")
    assert (code, err) == (0, "")
    assert "2 of 2 servers" in out
    assert "SERVER" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_servers_that_go_and_come_back(root):
    """A killed server is lost until it is started again; the others are seen as before."""
    with serving.serving(root, 2) as graph, Watcher(graph.servers, 10.0) as watcher:
        first = looks(watcher, lambda look: len(look.pictures) == 2)
        assert (first.lost, first.directory) == ({}, None)
        graph.kill(1)
        lost = looks(watcher, lambda look: look.lost)
        assert set(lost.lost) == {1}
        assert lost.lost[1].seconds > 3
        graph.start(1)
        back = looks(watcher, lambda look: not look.lost)
        assert back.pictures[1]["pid"] == graph.processes[1].pid != first.pictures[1]["pid"]


def test_the_directory_goes_and_comes_back(root):
    """Without it, the others are still asked where they were."""
    with serving.serving(root, 2) as graph, Watcher(graph.servers, 10.0) as watcher:
        looks(watcher, lambda look: len(look.pictures) == 2)
        graph.kill(0)
        lost = looks(watcher, lambda look: look.directory)
        assert 1 not in lost.lost
        assert 0 in looks(watcher, lambda look: look.lost).lost
        graph.start(0)
        looks(watcher, lambda look: look.directory is None and not look.lost)


def test_nobody_is_there():
    with pytest.raises(PartitionUnavailableError, match="did not answer 'lookup' in"):
        Watcher(Servers(f"127.0.0.1:{jobs.free_port()}"), 0.5)


def test_keys(root, tmp_path):
    """Whoever has a key file of the job may look; others see nothing."""
    write_keys(tmp_path / "keys")
    content = json.loads((tmp_path / "keys" / "server.key").read_text())
    with serving.serving(root, 1, keys=ServerKeys.from_json(content)) as graph:
        for name in ("client.key", "server.key"):
            with_key = ("--once", "--interval", "0.1", "--key-file", tmp_path / "keys" / name)
            code, out, _ = top(graph, *with_key)
            assert code == 0
            assert "1 of 1 servers" in out
        with pytest.raises(PartitionUnavailableError):
            Watcher(Servers(graph.master), 1.0)
        assert top(graph, "--key-file", tmp_path / "none")[0] == 2


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:x", ":5", "h:99999"])
def test_bad_addresses(address):
    line, environment = command("top", address)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is no HOST:PORT of graph server 0" in done.stderr


@contextlib.contextmanager
def in_a_terminal(*words):
    """Runs a command in a terminal of its own: the process, and what is seen through `until`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    line, environment = command(*words)
    process = subprocess.Popen(
        line, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    seen = bytearray()

    def until(text, seconds=20.0):
        end = time.monotonic() + seconds
        while text not in seen:
            assert time.monotonic() < end, seen
            if select.select([ours], [], [], 0.2)[0]:
                seen.extend(os.read(ours, 1 << 16))
        return bytes(seen)

    try:
        yield process, until, ours, theirs
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda process, ours: os.write(ours, b"q"), 0),
        (lambda process, ours: process.send_signal(signal.SIGINT), 0),
        (lambda process, ours: process.send_signal(signal.SIGTERM), 143),
    ],
    ids=["q", "Ctrl-C", "SIGTERM"],
)
def test_live(root, end, code):
    """It draws until it is ended; then the terminal is as it was."""
    with (
        serving.serving(root, 1) as graph,
        in_a_terminal("top", graph.master, "--interval", "0.2") as (process, until, ours, theirs),
    ):
        before = termios.tcgetattr(theirs)
        seen = until(b"statistics")  # the second picture: it has asked before
        assert seen.startswith(b"\x1b[?1049h")
        end(process, ours)
        assert process.wait(10) == code
        until(b"\x1b[?1049l")
        after = termios.tcgetattr(theirs)
        assert after[3] & termios.ICANON
        assert after[3] & termios.ECHO
        assert len(before) == len(after)


def test_a_page_of_metrics(root):
    """`khop serve --metrics-port`; what it tells is what the server says of itself."""
    port, page = jobs.free_port(), jobs.free_port()
    line, environment = command(
        *("serve", root, "--master", f"127.0.0.1:{port}", "--metrics-port", page)
    )
    with subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        assert server.stdout.readline().startswith(b"serving at")
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=10) as answer:
            read = prometheus.read(answer.read().decode())
        (info,) = read["khop_server_info"][2]
        assert dict(info[1])["parts"] == "0,1"
        server.terminate()
        told = server.stderr.read().decode()
        assert server.wait(20) == 0
    assert "metrics-served" in told
    assert "server-ready" in told
    assert "server-ended" in told
