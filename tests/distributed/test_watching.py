"""A job as those see it who watch it: its metrics and its logs."""

import json
import os
import signal
import time
import urllib.request

import pytest

from khop import log, metrics
from support.cluster import jobs
from support.formats import prometheus


def scrape(page):
    """What a page of metrics says of a loader: {metric: {value of its other label: number}}."""
    with urllib.request.urlopen(page.url, timeout=10) as answer:
        read = prometheus.read(answer.read().decode())
    found = {}
    for name, (_, _, samples) in read.items():
        for (_, labels), value in samples.items():
            told = dict(labels)
            assert (told.pop("loader"), told.pop("rank")) == ("train", "0")
            found.setdefault(name, {})[next(iter(told.values()), None)] = value
    return found


def test_metrics_of_a_trainer(folder_of):
    """Read while batches are made: never less than before, in the end what `stats()` says."""
    loader = jobs.make_loader(folder_of("random", 2), 2, 1)
    seen = []
    with metrics.serve(0, lambda: metrics.of_loaders({"train": loader}, {"rank": 0})) as page:
        for number, _ in enumerate(loader):
            if number % 4 == 0:
                seen.append(scrape(page))
        last = scrape(page)
    counts = [page["khop_loader_batches_total"][None] for page in [*seen, last]]
    assert counts == sorted(counts)
    assert counts[-1] == len(loader) == loader.stats().batches
    stats = loader.stats()
    assert last["khop_loader_rows_total"] == stats.rows
    assert last["khop_loader_trainer_seconds_total"] == stats.trainer_seconds
    assert last["khop_loader_samplers"][None] == 1
    for page in seen:
        assert sum(page["khop_loader_rows_total"].values()) == page["khop_loader_nodes_total"][None]


@pytest.fixture
def events(capfd):
    """Returns events(): what khop has said so far on stderr, of all processes, as JSON."""
    log.configure("info", json=True)
    lines = []

    def events():
        lines.extend(json.loads(line) for line in capfd.readouterr().err.splitlines())
        return lines

    yield events
    log.reset()


def until(events, name, seconds=30.0):
    """Waits until an event has been told of; returns all of that name."""
    end = time.monotonic() + seconds
    while not (found := [line for line in events() if line["event"] == name]):
        assert time.monotonic() < end, name
        time.sleep(0.05)
    return found


def test_logs_of_a_job_in_trouble(folder_of, events):
    """Starts, deaths and returns, each told by whom it concerns, and by nobody for each batch."""
    before = set(jobs.khop_processes())
    loader = jobs.make_loader(folder_of("random", 2), 2, 1)
    assert sum(1 for _ in loader) == len(loader)
    started = until(events, "process-started")
    (sampler,) = (line["pid"] for line in started if line["role"] == "sampler")
    (server,) = (line["pid"] for line in started if line["role"] == "server")
    assert {sampler, server} <= set(jobs.khop_processes()) - before
    assert [line["partition"] for line in started if line["role"] == "server"] == [1]

    os.kill(server, signal.SIGKILL)
    (told,) = until(events, "server-restarted")
    assert (told["role"], told["level"], told["fields"]["pid"]) == ("trainer", "warning", server)
    assert "partition 1 was killed by SIGKILL" in told["message"]
    for name in ("partition-lost", "server-up", "partition-returned"):
        assert until(events, name)[-1]["fields"]
    (lost,) = until(events, "partition-lost")
    assert (lost["role"], lost["pid"], lost["partition"]) == ("sampler", sampler, 0)

    os.kill(sampler, signal.SIGKILL)
    assert sum(1 for _ in loader) == len(loader)
    (told,) = until(events, "sampler-restarted")
    assert (told["role"], told["fields"]["pid"], told["fields"]["restarts"]) == (
        "trainer",
        sampler,
        1,
    )
    loader.shutdown()
    until(events, "process-ended")
    assert len(events()) < 20
