"""What graph servers count, by many threads at once and about themselves."""

import json
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from khop.distributed.remote.server.counters import OTHER, ServerCounters
from khop.distributed.remote.statistics import SamplerState, SessionState
from khop.metrics.text import REQUEST_BUCKETS


def counters():
    return ServerCounters(2, [1, 3], "tcp://host:7")


def session(name="s/0", ring_bytes=100, client="c"):
    samplers = [SamplerState(1, 2, 3, 4)]
    return SessionState(name, "s", client, False, samplers, 2, 5, 6, ring_bytes, 0)


def test_who_and_what_the_server_is():
    """Its place, its process, and what it looked up; all of it is JSON."""
    state = [session("s/0", 100), session("s/1", 50, "b"), session("s/2", 0)]
    counted = ServerCounters(2, [1, 3], "tcp://host:7", lambda: state)
    picture = counted.snapshot()
    assert json.loads(json.dumps(picture)) == picture
    assert (picture["rank"], picture["parts"], picture["address"]) == (2, [1, 3], "tcp://host:7")
    assert picture["pid"] == os.getpid()
    assert picture["clients"] == ["b", "c"]
    assert picture["ring_bytes"] == 150
    assert [s["session"] for s in picture["sessions"]] == ["s/0", "s/1", "s/2"]
    assert picture["uptime"] >= 0


def test_a_picture_does_not_change():
    """It is a copy: what is counted later is not in it."""
    counted = counters()
    counted.count_request("a", 0.1, 1, 2)
    picture = counted.snapshot()
    before = json.dumps(picture)
    counted.count_request("a", 0.1, 1, 2)
    counted.refused("r")
    assert json.dumps(picture) == before


def test_requests():
    """Each falls into the first class whose bound it does not exceed; the last has none."""
    counted = counters()
    for seconds in (*REQUEST_BUCKETS, REQUEST_BUCKETS[-1] + 1):
        counted.count_request("a", seconds, 10, 20)
    counted.count_request("b", 0.0, 1, 2, failed=True)
    picture = counted.snapshot()
    assert picture["requests"]["a"]["buckets"] == [1] * (len(REQUEST_BUCKETS) + 1)
    assert picture["requests"]["a"]["seconds"] == sum(REQUEST_BUCKETS) + REQUEST_BUCKETS[-1] + 1
    assert picture["requests"]["b"]["failed"] == picture["requests"]["b"]["buckets"][0] == 1
    assert picture["bytes_in"] == 10 * (len(REQUEST_BUCKETS) + 1) + 1
    assert picture["bytes_out"] == 20 * (len(REQUEST_BUCKETS) + 1) + 2


def test_names_do_not_fill_memory():
    """A thousand names and reasons: 64 of each, the rest is counted together, nothing is lost."""
    counted = counters()
    for number in range(1000):
        counted.count_request(f"name {number}", 0.0, 0, 0)
        counted.refused(f"reason {number}")
        counted.count_request("name 1", 0.0, 0, 0)
    picture = counted.snapshot()
    requests = {name: answered["count"] for name, answered in picture["requests"].items()}
    assert len(requests) == len(picture["refused"]) == 65
    assert sum(requests.values()) == 2000
    assert sum(picture["refused"].values()) == 1000
    assert requests["name 1"] == 1001
    assert requests[OTHER] == 1000 - 64


def test_sessions():
    """A session's own counts go with it; sums stay. What comes after its end counts for them."""
    state = [session("s/0"), session("s/1")]
    counted = ServerCounters(0, [0], "a", lambda: state)
    for name in ("s/0", "s/1"):
        counted.session_opened(name)
        counted.batch(name, 1000, 0.25)
    counted.session_opened("s/1")  # opened again: counts go on
    counted.batch("s/1", 500, 0.25)
    first, second = (s["batches"] for s in counted.snapshot()["sessions"])
    assert first == {"count": 1, "bytes": 1000, "seconds": 0.25}
    assert second == {"count": 2, "bytes": 1500, "seconds": 0.5}
    state.pop(0)
    counted.session_ended("s/0")
    counted.session_ended("s/1", expired=True)
    counted.batch("s/0", 7, 0.0)
    counted.sampler_restarted()
    picture = counted.snapshot()
    assert picture["batches"] == {"count": 4, "bytes": 2507, "seconds": 0.75}
    assert picture["bytes_out"] == 2507
    assert picture["sessions_total"] == {"opened": 3, "closed": 1, "expired": 1}
    assert picture["sampler_restarts"] == 1
    assert picture["sessions"][0]["batches"]["count"] == 0
    assert not counted._of_sessions


def test_many_threads_count_at_once():
    """Nothing is lost, and every picture that is taken meanwhile is consistent."""
    counted, done, pictures = counters(), threading.Event(), []

    def work():
        for _ in range(1500):
            counted.count_request("a", 0.001, 1, 2)

    def look():
        while not done.is_set():
            pictures.append(counted.snapshot())

    looking = threading.Thread(target=look)
    looking.start()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    looking.join()
    assert counted.snapshot()["requests"]["a"]["count"] == 6000
    for picture in pictures:
        for answered in picture["requests"].values():
            assert answered["count"] == picture["bytes_in"] == sum(answered["buckets"])


def test_figures_of_the_process(tmp_path):
    """Descriptors and memory are those that the system reports."""
    before = counters().snapshot()
    with Path(tmp_path / "a").open("w"), Path(tmp_path / "b").open("w"):
        after = counters().snapshot()
    assert after["descriptors"] == before["descriptors"] + 2
    with mmap.mmap(-1, 64 << 20) as fresh:  # `bytearray` may get memory that is resident already
        for page in range(0, len(fresh), mmap.PAGESIZE):
            fresh[page] = 1
        assert counters().snapshot()["rss"] >= after["rss"] + len(fresh) // 2
    assert after["cpu_seconds"] > 0


@pytest.mark.process
def test_without_torch():
    code = (
        "import sys, khop.log, khop.metrics, khop.distributed.remote.server.counters as s;"
        "khop.metrics.of_server(s.ServerCounters(0, [], '').snapshot());"
        "assert not {'torch', 'zmq', 'asyncio'} & set(sys.modules)"
    )
    path = ":".join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, check=True)
