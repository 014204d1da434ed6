"""Recordings of loaders of graphs in memory; what is kept of requests; the files."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given, strategies as st

import khop
from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.loader.iteration import background
from khop.trace.clock import PHASES, Phase, PhaseClock, Segment
from khop.trace.events import Names, trace_events, write_events
from khop.trace.requests import Answered, RequestLog, pack_records, served_since, unpack_records
from support.formats.traces import Trace
from support.loaders import links


def record(path, loader, epochs=1, **options):
    """A trace of epochs of a loader, and the batches."""
    with khop.trace.record(path, **options):
        batches = [batch for _ in range(epochs) for batch in loader]
    return Trace(path), batches


def make_loader(kind, data, **options):
    if kind == "links":
        return LinkNeighborLoader(data, [3, 2], batch_size=200, neg_sampling="binary", **options)
    cls = {"nodes": NeighborLoader, "subgraphs": SubGraphLoader}[kind]
    return cls(data, num_neighbors=[3, 2], input_nodes=None, batch_size=30, **options)


@pytest.mark.parametrize("kind", ["nodes", "links", "subgraphs"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches(tmp_path, data, kind, num_workers):
    """Each batch is drawn, gathered and collated, in this order; the spans say how large it is."""
    loader = make_loader(kind, data, num_workers=num_workers)
    trace, batches = record(tmp_path / "out.json", loader, epochs=2)
    names = [(epoch, number) for epoch in range(2) for number in range(len(loader))]
    phases = [trace.batches(name) for name in ("sampling", "gathering", "collating")]
    for of_phase in phases:
        assert sorted(of_phase) == names
    seeds = 200 if kind == "links" else 30
    total = 1600 if kind == "links" else 200
    for name, batch in zip(names, batches, strict=True):
        (sampling,), (gathering,), (collating,) = (of_phase[name] for of_phase in phases)
        assert sampling.ended <= gathering.began
        assert gathering.ended <= collating.began
        assert collating.args["nodes"] == collating.args["rows"]["local"] == batch.num_nodes
        assert collating.args["edges"] == batch.num_edges
        assert collating.args["seeds"] == min(seeds, total - name[1] * seeds)
        assert collating.args["bytes"] == sum(
            value.nbytes for value in batch.to_dict().values() if isinstance(value, torch.Tensor)
        )
    assert set(trace.processes.values()) == {"trainer (rank 0)"}
    assert len(trace.of("consuming")) == len(batches) - 2


def test_threads(tmp_path, data):
    """Threads have names of their own; an arrow leads from each batch's making to its use."""
    loader = make_loader("nodes", data, num_workers=2)
    trace, batches = record(tmp_path / "out.json", loader)
    assert set(trace.threads.values()) <= {"trainer", "worker thread 0", "worker thread 1"}
    assert len(trace.of("waiting")) == len(trace.arrows) == len(batches)
    for arrow in trace.arrows:
        assert (arrow.source.name, arrow.target.name) == ("gathering", "collating")
        assert arrow.source.batch == arrow.target.batch
        assert arrow.source.thread.startswith("worker thread")
        assert arrow.target.thread == "trainer"
    changes = [e["args"]["batches"] for e in trace.events if e["ph"] == "C"]
    assert len(changes) == 2 * len(batches)


def test_no_workers(tmp_path, data, monkeypatch):
    """What the trainer does itself is on its own thread, and there is no waiting besides."""
    monkeypatch.setattr(background, "_WORTH_A_THREAD", 10**18)
    trace, _ = record(tmp_path / "out.json", make_loader("nodes", data))
    assert {s.thread for s in trace.spans} == {"trainer"}
    assert {s.name for s in trace.spans} == {"sampling", "gathering", "collating", "consuming"}
    assert not trace.arrows


def test_drawn_beside(tmp_path, data, monkeypatch, two_threads):
    """What is drawn beside the trainer is on a thread of its own, and at the same time."""
    monkeypatch.setattr(background, "_WORTH_A_THREAD", -1)
    trace, batches = record(tmp_path / "out.json", make_loader("nodes", data))
    assert {s.thread for s in trace.of("gathering")} == {"trainer"}
    drawn = sorted(trace.of("sampling"), key=lambda s: s.batch)
    assert [s.thread for s in drawn] == ["trainer"] + ["worker thread 0"] * (len(batches) - 1)


def test_heterogeneous(tmp_path):
    """Nodes and edges of all types are counted."""
    shop = links.make_shop()
    loader = NeighborLoader(shop, [3, 3], ("user", None), batch_size=5, num_workers=1)
    trace, batches = record(tmp_path / "out.json", loader)
    for span, batch in zip(trace.of("collating"), batches, strict=True):
        assert span.args["nodes"] == batch.num_nodes
        assert span.args["edges"] == batch.num_edges


@pytest.mark.process
def test_worker_processes(tmp_path, data):
    """Batches that torch's processes make show in the trainer alone."""
    loader = make_loader("nodes", data, num_workers=1, worker_type="process")
    trace, batches = record(tmp_path / "out.json", loader)
    assert len(trace.of("waiting")) == len(trace.of("collating")) == len(batches) == len(loader)
    assert {s.name for s in trace.spans} == {"waiting", "collating", "consuming"}


def test_only_while_recording(tmp_path, data):
    """A loader may be older than the recording, and live on; an epoch may begin or end in it."""
    loader = make_loader("nodes", data)
    epoch = iter(loader)
    next(epoch)
    trace, batches = record(tmp_path / "first.json", [next(epoch), next(epoch)])
    assert len(batches) == 2 and not trace.spans  # made before
    with khop.trace.record(tmp_path / "second.json"):
        next(epoch)
        next(epoch)
    rest = len(list(epoch))
    assert sorted(Trace(tmp_path / "second.json").batches("sampling")) == [(0, 3), (0, 4)]
    assert rest == len(loader) - 5
    trace, _ = record(tmp_path / "third.json", loader)
    assert sorted(trace.batches("sampling")) == [(1, number) for number in range(len(loader))]


def test_failing_batch(tmp_path, data):
    """What a batch that failed had begun is no batch's time, and later ones are as they should."""
    failing = {2}

    def transform(out):
        if len(seen) in failing:
            failing.clear()
            raise KeyError("once")
        seen.append(out)
        return out

    seen = []
    loader = make_loader("nodes", data, transform_sampler_output=transform)
    with khop.trace.record(tmp_path / "out.json"):
        epoch = iter(loader)
        next(epoch), next(epoch)
        with pytest.raises(KeyError):
            next(epoch)
        time.sleep(0.5)
        number = 2 + len(list(epoch))
    assert loader.stats().batches == number == len(loader) - 1
    assert sum(loader.stats().sampler_seconds.values()) < 0.5 > loader.stats().elapsed_seconds
    assert (0, 2) not in Trace(tmp_path / "out.json").batches("collating")


def test_exception_in_the_block(tmp_path, data):
    """The file is written all the same, and another recording may follow."""
    loader = make_loader("nodes", data)
    with pytest.raises(ZeroDivisionError), khop.trace.record(tmp_path / "out.json"):
        for _ in loader:
            1 / 0  # noqa: B018
    assert len(Trace(tmp_path / "out.json").of("collating")) == 1
    assert len(record(tmp_path / "out.json", loader)[0].of("collating")) == len(loader)


def test_one_at_a_time(tmp_path):
    """A recording within a recording is refused; the outer one goes on."""
    with khop.trace.record(tmp_path / "outer.json"):
        with (
            pytest.raises(RuntimeError, match=r"outer\.json' is under way"),
            khop.trace.record(tmp_path / "inner.json"),
        ):
            pass
        assert khop.trace.recording.current() is not None
    assert Trace(tmp_path / "outer.json").spans == []
    assert not (tmp_path / "inner.json").exists()


def test_bad_arguments(tmp_path):
    """Told before anything is recorded."""
    with pytest.raises(FileNotFoundError, match="make it first"):
        khop.trace.record(tmp_path / "nowhere" / "out.json")
    with pytest.raises(ValueError, match=r"limit must be at least 1 \(got 0\)"):
        khop.trace.record(tmp_path / "out.json", limit=0)


def test_limit(tmp_path, data):
    """A long recording keeps what comes first, and says what it dropped."""
    loader = make_loader("nodes", data, num_workers=2)
    whole, _ = record(tmp_path / "whole.json.gz", loader)
    assert whole.content["otherData"]["dropped_spans"] == 0
    with pytest.warns(UserWarning, match=r"spans beyond limit=10 are missing"):
        trace, _ = record(tmp_path / "out.json", loader, limit=10)
    assert len(trace.spans) == 10
    assert trace.content["otherData"]["dropped_spans"] > 10


@pytest.mark.process
def test_a_fork_does_not_write(tmp_path):
    """A process that was forked in a recording leaves the file to its parent."""
    program = (
        "import os, sys, khop.trace\n"
        "with khop.trace.record(sys.argv[1]) as recording:\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        os.waitpid(child, 0)\n"
        "        assert not os.path.exists(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "out.json")], check=False)
    assert done.returncode == 0
    assert Trace(tmp_path / "out.json").events


@pytest.mark.process
def test_a_fork_records(tmp_path, data):
    """A trainer that was forked names its own thread, not its parent's."""
    child = os.fork()
    if child == 0:
        with khop.trace.record(tmp_path / "out.json"):
            next(iter(make_loader("nodes", data)))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    spans = Trace(tmp_path / "out.json").spans
    assert {(span.process, span.thread) for span in spans} == {("trainer (rank 0)", "trainer")}


def test_merge(tmp_path):
    """Traces of several trainers become one, in which a server is named once."""
    server = {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": "server"}}
    for rank in range(2):
        track = {"pid": rank + 1, "tid": 1}
        own = {"ph": "M", "name": "process_name", "args": {"name": f"trainer {rank}"}, **track}
        thread = {"ph": "M", "name": "thread_name", "args": {"name": "trainer"}, **track}
        span = {"ph": "X", "name": "waiting", "ts": 5, "dur": 2, "args": {}, **track}
        ends = [
            {"ph": kind, "name": "request", "cat": "request", "id": "request 0", "ts": 6, **track}
            for kind in "sf"
        ]
        events = [server, own, thread, span, *ends]
        write_events(tmp_path / f"out-rank{rank}.json", events, {"rank": rank})
    khop.trace.merge([tmp_path / f"out-rank{rank}.json" for rank in range(2)], tmp_path / "all.gz")
    trace = Trace(tmp_path / "all.gz")
    assert sorted(trace.processes.values()) == ["server", "trainer 0", "trainer 1"]
    assert len(trace.spans) == len(trace.arrows) == 2
    (tmp_path / "other.json").write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="is no trace"):
        khop.trace.merge([tmp_path / "other.json"], tmp_path / "all.json")
    os.mkfifo(tmp_path / "fifo.json")
    with pytest.raises(ValueError, match="is no regular file"):
        khop.trace.merge([tmp_path / "fifo.json"], tmp_path / "all.json")


# Parts ----------------------------------------------------------------------------------------


def test_a_clock_counts_every_moment_once():
    """Phases add up to the time between the first and the last reading."""
    clock = PhaseClock()
    clock.keep_segments(True)
    clock.enter(Phase.SAMPLING, (3, 4))
    began = clock.since
    for phase in (Phase.GATHERING, Phase.REMOTE, Phase.GATHERING, Phase.OTHER, Phase.IDLE):
        clock.enter(phase)
    clock.enter(Phase.CLOSED)
    ended = clock.since
    clock.enter(Phase.CLOSED)  # counts nowhere
    made = clock.made(7, 8, 9, 1, (5, 6))
    assert sum(made[7:]) == ended - began
    assert made[:7] == (5, 6, clock.since, 7, 8, 9, 1)
    kept = [PHASES[s.phase] for s in clock.segments]
    assert kept == ["sampling", "gathering", "remote", "gathering", "idle"]
    assert all(s[1:3] == (3, 4) and s.began <= s.ended for s in clock.segments)
    assert sum(clock.made(0)[7:]) == 0


@given(st.integers(0, 700), st.integers(0, 700))
def test_records_on_their_way(num_segments, num_requests):
    """Segments and requests arrive as they were sent, in messages that a control line takes."""
    segments = [Segment(i % 5, i, 2, 2**40 + i, 2**62) for i in range(num_segments)]
    requests = [Answered(*range(i, i + 12)) for i in range(num_requests)]
    payloads = list(pack_records(segments, requests))
    assert all(len(payload) < khop.channel.control.MAX_PAYLOAD for payload in payloads)
    arrived = [unpack_records(payload) for payload in payloads]
    assert [s for first, _ in arrived for s in first] == segments
    assert [r for _, second in arrived for r in second] == requests


@pytest.mark.parametrize("served", [
    None, [], [1, 2, 3], [1, 2, 3, 4.0], [1, 2, 3, "4"], [-1, 2, 3, 4], [1, 2, 3, 2**63], {}, True,
])  # fmt: skip
def test_servers_that_say_no_or_nonsense(served):
    """The request is kept, the serving is not."""
    log = RequestLog((5, 6))
    asked = log.log_request(1, "fetch", 10)
    log.log_reply(asked, served, 99)
    (kept,) = log.answered
    assert kept[:5] == (5, 6, 1, 3, 10) and kept.nbytes == 99
    assert kept[8:] == (0, 0, 0, 0)
    names = Names(1, {1: "trainer"}, {})
    events = list(trace_events([], [((1, 1), kept)], [], names))
    assert [e["name"] for e in events if e["ph"] == "X"] == ["fetch"]
    assert not any(e["ph"] in "sf" for e in events)
    assert log.log_request(1, "rows", 10) is None  # is not recorded


def test_served_time_is_a_span_of_this_process():
    """A span by the clock of all, and who it was."""
    before = time.monotonic_ns()
    began, ended, pid, _ = served_since(before)
    assert began == before <= ended <= time.monotonic_ns()
    assert pid == os.getpid()


def test_servers_with_another_clock():
    """What they did is placed in the middle of the request, and never sticks out of it."""
    requests = [
        Answered(0, i, 2, 0, 7, sent, sent + 100, 8, began, began + lasted, 77, 78)
        for i, (sent, began, lasted) in enumerate([(1000, 5, 40), (1050, 10**15, 400)])
    ]
    names = Names(1, {1: "trainer"}, {})
    events = list(trace_events([], [((3, 3), r) for r in requests], [], names))
    spans = [e for e in events if e["ph"] == "X"]
    asked = [(e["ts"] * 1000, e["dur"] * 1000) for e in spans if e["pid"] == 3]
    served = [(e["ts"] * 1000, e["dur"] * 1000) for e in spans if e["pid"] != 3]
    assert asked == [(1000, 100), (1050, 100)]
    assert served == [(1030, 40), (1050, 100)]
    assert {e["pid"] for e in spans}.isdisjoint({77})  # may be another process of this machine
    assert len({e["tid"] for e in spans if e["pid"] == 3}) == 2  # they overlap
    assert len({e["tid"] for e in spans if e["pid"] != 3}) == 2
