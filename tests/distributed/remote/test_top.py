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

import numpy as np
import pytest

from khop import log
from khop.cli import poller
from khop.cli.main import main
from khop.cli.poller import Poller
from khop.distributed import DistNeighborLoader, RemoteDistSamplingWorkerOptions
from khop.distributed.remote.addresses import Servers
from khop.distributed.rpc.keys import JobKeys
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import PartitionUnavailableError
from khop.partition import PartitionFolder
from khop.sampler.spec import SamplingSpec
from support.cluster import jobs, receiving, serving
from support.cluster.servers import cluster
from support.formats import prometheus


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


def spec_of(root):
    """Batches with everything."""
    meta = PartitionFolder(root).meta
    sampling = SamplingSpec.create(jobs.FANOUTS, [t.name for t in meta.edge_types])
    return PipelineSpec(sampling, receiving.collect_all(meta, sampling))


def looks(watcher, accept, seconds=20.0):
    """Looks until what is seen is as wanted; returns it."""
    end = time.monotonic() + seconds
    while not accept(look := watcher.poll(0.5)):
        assert time.monotonic() < end, look
        time.sleep(0.1)
    return look


def lost_of(look):
    """Ranks of the servers that are lost."""
    return [server.rank for server in look.servers if server.lost]


@pytest.fixture
def said(capfd):
    """Returns said(levels): (event, role) of all that was logged, at these levels alone."""
    log.configure("info", json=True)

    def said(levels):
        told = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
        assert {line["level"] for line in told} <= levels
        return {(line["event"], line["role"]) for line in told}

    yield said
    log.reset()


def test_servers_at_work(root, said):
    """What loaders and clients have on servers, as JSON, as a table, and as pages of metrics."""
    page = jobs.free_port()
    with (
        serving.serving(root, 2, num_clients=1) as graph,
        serving.client_of(graph, 0, num_clients=1),
        receiving.training(graph, spec_of(root), servers=[1], num_workers=2) as trainer,
    ):
        graph.end(0)
        graph.start(0, metrics_port=page)
        seeds = np.arange(160)[None]
        batches = list(trainer.run(*trainer.open(seeds)))
        assert len(batches) == 5
        code, out, _ = top(graph, "--json", "--once", "--interval", "0.5")
        assert code == 0
        (told,) = [json.loads(line) for line in out.splitlines()]
        for rank in (0, 1):
            server = told["servers"][str(rank)]
            assert server["entry"]["addresses"]["tcp"] == graph.addresses[rank]["tcp"]
            assert server["picture"]["pid"] == graph.processes[rank].pid
            assert server["rates"]["requests"] > 0  # those of the command itself
            assert server["lost"] is None
        assert told["clients"]["0"]["name"] == "client 0"
        picture = told["servers"]["1"]["picture"]
        (session,) = picture["sessions"]
        assert session["client"] == "trainer"
        assert session["batches"]["count"] == picture["batches"]["count"] == 5
        assert session["batches"]["bytes"] == picture["batches"]["bytes"] > 5 * 32 * 8
        assert len(session["samplers"]) == 2

        code, out, err = top(graph, "--interval", "0.2")
        assert (code, err) == (0, "")
        assert "2 of 2 servers, 1 trainer" in out
        assert all(line.isprintable() for line in out.splitlines())
        row = next(line for line in out.splitlines() if session["loader"][:12] in line)
        assert row.split()[1:4:2] == ["trainer", "1"]

        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=10) as answer:
            read = prometheus.read(answer.read().decode())
        requests = read["khop_server_request_seconds"][2]
        assert any(("op", "fetch") in labels for _, labels in requests)  # of server 1's samplers
        assert read["khop_server_clients"]
        trainer.close()
        with Poller(graph.servers, 10.0) as watcher:
            looks(
                watcher,
                lambda look: look.servers[1].snapshot and not look.servers[1].snapshot.sessions,
            )
    assert {
        ("metrics-served", "server"),
        ("server-registered", "server"),
        ("client-registered", "server"),
        ("process-started", "receiver"),
        ("session-opened", "server"),
        ("session-open", "receiver"),
        ("process-started", "sampler"),
        ("session-closed", "server"),
    } <= said({"info"})


@pytest.fixture
def impatient(monkeypatch):
    """A second of silence is enough."""
    monkeypatch.setattr(poller, "LOST_AFTER", 1.0)


@pytest.mark.usefixtures("impatient")
def test_servers_that_go_and_come_back(root):
    """A killed server is lost until it is started again; the others are seen as before."""
    with serving.serving(root, 2) as graph, Poller(graph.servers, 10.0) as watcher:
        first = looks(watcher, lambda look: [bool(s.snapshot) for s in look.servers] == [True] * 2)
        assert (lost_of(first), first.directory) == ([], None)
        graph.kill(1)
        look = looks(watcher, lost_of)
        assert (lost_of(look), look.directory) == ([1], None)
        assert look.servers[1].lost.seconds > 1
        graph.start(1)
        back = looks(watcher, lambda look: not lost_of(look))
        before, after = first.servers[1].snapshot, back.servers[1].snapshot
        assert after.pid == graph.processes[1].pid != before.pid

        graph.kill(0)  # and with it the directory
        look = looks(watcher, lambda look: look.directory and lost_of(look))
        assert lost_of(look) == [0]  # the other is asked where it was
        graph.start(0)
        looks(watcher, lambda look: look.directory is None and not lost_of(look))


def test_top_of_unreachable_servers_fails():
    with pytest.raises(PartitionUnavailableError, match="did not answer 'lookup' in"):
        Poller(Servers(f"127.0.0.1:{jobs.free_port()}"), 0.5)


def test_keys(root, tmp_path):
    """Whoever has a key file of the job may look; others see nothing."""
    keys = JobKeys.new()
    (tmp_path / "keys").mkdir(mode=0o700)
    for name, of in (("server", keys.for_servers()), ("client", keys.for_client())):
        file = tmp_path / "keys" / f"{name}.key"
        file.write_text(json.dumps({"format": "khop-keys", "version": 2, **of.to_json()}))
        file.chmod(0o600)
    with serving.serving(root, 1, keys=keys) as graph:
        for name in ("client.key", "server.key"):
            with_key = ("--once", "--interval", "0.1", "--key-file", tmp_path / "keys" / name)
            code, out, _ = top(graph, *with_key)
            assert code == 0
            assert "1 of 1 servers" in out
        with pytest.raises(PartitionUnavailableError):
            Poller(Servers(graph.master), 1.0)
        assert top(graph, "--key-file", tmp_path / "none")[0] == 2


def test_servers_beyond_this_machine_are_asked_with_keys(monkeypatch, capsys):
    """Nothing is sent to them without, unless `--insecure` says so."""
    asked = []

    def note(servers, timeout):
        asked.append(servers)
        raise PartitionUnavailableError("nobody is there")

    monkeypatch.delenv("KHOP_KEY_FILE", raising=False)
    monkeypatch.setattr(poller, "Poller", note)
    assert main(["top", "10.0.0.1:7"]) == 2
    assert "graph server 0 at '10.0.0.1' could be reached by anybody" in capsys.readouterr().err
    assert not asked
    main(["top", "10.0.0.1:7", "--insecure"])
    assert asked == [Servers("10.0.0.1:7")]


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:x", ":5", "h:99999"])
def test_bad_addresses(address, capsys):
    assert main(["top", address]) == 2
    assert "is no HOST:PORT of graph server 0" in capsys.readouterr().err


@contextlib.contextmanager
def in_a_terminal(*words):
    """Runs a command in a terminal of its own: the process, and what is seen through `until`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    line, environment = command(*words)
    process = subprocess.Popen(
        line, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    seen, poll = bytearray(), select.poll()
    poll.register(ours, select.POLLIN)

    def until(text, seconds=20.0):
        end = time.monotonic() + seconds
        while text not in seen:
            assert time.monotonic() < end, seen
            if poll.poll(200):
                seen.extend(os.read(ours, 1 << 16))
        return bytes(seen)

    try:
        yield process, until
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("ending", "code"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 143)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_live(root, ending, code):
    """It draws until it is ended; then the terminal is as it was."""
    with (
        serving.serving(root, 1) as graph,
        in_a_terminal("top", graph.master, "--interval", "0.2") as (process, until),
    ):
        seen = until(b"statistics")  # the second screen: it has asked before
        assert seen.startswith(b"\x1b[?1049h")
        process.send_signal(ending)
        assert process.wait(10) == code
        until(b"\x1b[?1049l")


def test_serve_with_a_page_of_metrics(root):
    """`khop serve --metrics-port`, and what it logs."""
    port, page = jobs.free_port(), jobs.free_port()
    line, environment = command(
        *("serve", root, "--master", f"127.0.0.1:{port}", "--metrics-port", page)
    )
    environment["KHOP_LOG"] = "json:info"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, env=environment, **pipes) as server:
        assert server.stdout.readline().startswith(b"serving at")
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=10) as answer:
            read = prometheus.read(answer.read().decode())
        (info,) = read["khop_server_info"][2]
        assert dict(info[1])["parts"] == "0,1"
        server.terminate()
        told = [json.loads(line) for line in server.stderr.read().splitlines()]
        assert server.wait(20) == 0
    events = {line["event"]: line for line in told}
    assert {"metrics-served", "server-ready", "server-ended"} <= set(events)
    assert events["server-ready"]["role"] == "server"
    assert events["server-ready"]["rank"] == 0


def test_metrics_and_logs_of_a_client(root, said):
    """A trainer whose batches come from servers counts and speaks as any other."""
    try:
        with cluster(root, [[0, 1]], 1) as servers, servers.client():
            loader = DistNeighborLoader(
                None,
                jobs.FANOUTS,
                jobs.seeds_of_rank(0),
                batch_size=32,
                worker_options=RemoteDistSamplingWorkerOptions(num_workers=1),
            )
            count = sum(1 for _ in loader)
            page = prometheus.read(loader.stats().prometheus({"rank": 0}))
            (batches,) = page["khop_loader_batches_total"][2].values()
            assert batches == count == len(loader)
            with Poller(Servers(f"{servers.host}:{servers.port}"), 10.0) as watcher:
                look = looks(watcher, lambda look: look.servers[0].snapshot)
            assert look.servers[0].snapshot.sessions[0].direct  # they are on one machine
            loader.shutdown()
    finally:
        log.identify("trainer")
    assert {
        ("client-joined", "client"),
        ("process-started", "server"),
        ("client-registered", "server"),
        ("sampler-lent", "server"),
        ("process-started", "sampler"),
    } <= said({"info"})
