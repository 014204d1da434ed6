"""Recordings of loaders of partitioned graphs: samplers, servers and the trainer."""

import os
import signal

import numpy as np
import pytest

import khop
from khop.channel.message import pack, unpack
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import PROTOCOL
from khop.partition import PartitionFolder
from khop.storage.part import Part
from support.cluster import jobs
from support.formats.traces import Trace


def record(path, loader):
    """A trace of an epoch, and the batches."""
    with khop.trace.record(path):
        batches = list(loader)
    return Trace(path), batches


def check_batches(trace, batches, epoch=0):
    """Each is drawn, gathered and collated, in this order; spans say how large it is."""
    phases = [trace.batches(name) for name in ("sampling", "gathering", "collating")]
    for of_phase in phases:
        assert sorted(of_phase) == [(epoch, number) for number in range(len(batches))]
    for number, batch in enumerate(batches):
        sampling, gathering, (collating,) = (of_phase[epoch, number] for of_phase in phases)
        assert sampling[-1].ended <= gathering[0].began
        assert gathering[-1].ended <= collating.began
        assert collating.args["seeds"] == batch.batch_size
        assert sum(collating.args["rows"].values()) == collating.args["nodes"] == batch.num_nodes
        assert collating.args["edges"] == batch.num_edges


def check_servings(trace):
    """Each request has its serving, which lies within; rows and bytes agree. Returns requests."""
    arrows = [a for a in trace.arrows if a.name == "request"]
    requests = [s for s in trace.spans if s.thread == "requests"]
    places = {(r.track, r.began) for r in requests}
    assert {(a.source.track, a.source.began) for a in arrows} == places
    assert len(arrows) == len(places) == len(requests)
    for asked, served in ((a.source, a.target) for a in arrows):
        assert asked.name == served.name
        assert asked.began <= served.began <= served.ended <= asked.ended
        assert asked.args["rows"] == served.args["rows"] > 0
        assert asked.args["bytes"] == served.args["bytes"] > 0
        assert served.process == f"server of partition {asked.args['partition']}"
    return requests


@pytest.mark.parametrize("num_workers", [None, 2])
def test_partitions(folder_of, tmp_path, num_workers):
    """Three processes and two servers on one time line."""
    loader = jobs.make_loader(folder_of("random", 3), 3, num_workers)
    trace, batches = record(tmp_path / "out.json", loader)
    check_batches(trace, batches)
    requests = check_servings(trace)
    assert {r.name for r in requests} == {"sample", "fetch"}
    assert {r.args["partition"] for r in requests} == {1, 2}
    makers = {"trainer (rank 0)"} if num_workers is None else {"sampler 0", "sampler 1"}
    assert {r.process for r in requests} == makers
    assert {s.process for s in trace.of("sampling")} == makers
    servers = {"server of partition 1", "server of partition 2"}
    assert set(trace.processes.values()) == {"trainer (rank 0)"} | makers | servers
    # What a batch asks for lies between the begin of its drawing and its use.
    drawn, used = trace.batches("sampling"), trace.batches("collating")
    for request in requests:
        assert drawn[request.batch][0].began <= request.began
        assert request.ended <= used[request.batch][0].began
    fetched = sum(r.args["rows"] for r in requests if r.name == "fetch")
    assert fetched >= loader.stats().rows["remote"]
    assert sum(r.args["bytes"] for r in requests) == loader.stats().remote_bytes
    delivered = [a for a in trace.arrows if a.name == "batch"]
    assert len(delivered) == (0 if num_workers is None else len(batches))
    for arrow in delivered:
        assert arrow.source.batch == arrow.target.batch
        assert (arrow.source.name, arrow.target.name) == ("gathering", "collating")


def test_a_partition_alone(folder_of, tmp_path):
    """No requests; an older loader, a recording in the middle of an epoch, and a second one."""
    loader = jobs.make_loader(folder_of("random", 1), 1, 1)
    epoch = iter(loader)
    next(epoch)
    with khop.trace.record(tmp_path / "first.json"):
        batches = [next(epoch) for _ in range(3)]
    rest = len(list(epoch))
    assert len(batches) + rest == len(loader) - 1
    first = Trace(tmp_path / "first.json")
    assert sorted(first.batches("collating")) == [(0, 1), (0, 2), (0, 3)]
    second, batches = record(tmp_path / "second.json", loader)
    check_batches(second, batches, epoch=1)
    assert not [s for s in second.spans if s.thread == "requests"]
    assert set(second.processes.values()) == {"trainer (rank 0)", "sampler 0"}
    assert not loader._backend._pool.samplers[0].process.line.has_unsent


def test_batches_are_the_same(folder_of, graph, tmp_path):
    """Recorded or not."""
    loaders = [
        jobs.make_loader(folder_of("random", 2), 2, 2, seed=4, shuffle=True) for _ in range(2)
    ]
    _, batches = record(tmp_path / "out.json", loaders[0])
    assert jobs.same_batches(batches, loaders[1]) == len(batches)


def test_a_sampler_is_killed(folder_of, tmp_path):
    """Its successor is recorded as well, and the trace is as well-formed as ever."""
    loader = jobs.make_loader(folder_of("random", 2), 2, 2)
    with khop.trace.record(tmp_path / "out.json"):
        epoch = iter(loader)
        next(epoch)
        os.kill(loader.workers[0].pid, signal.SIGKILL)
        list(epoch)
        batches = list(loader)
    trace = Trace(tmp_path / "out.json")
    check_servings(trace)
    assert sorted(trace.batches("collating"))[len(loader) :] == [
        (1, number) for number in range(len(batches))
    ]
    made = {key for key in trace.batches("gathering") if key[0] == 1}
    assert len(made) == len(batches)


def test_servers_speak_of_their_time_when_asked(folder_of):
    """And not otherwise."""
    part = Part(PartitionFolder(folder_of("random", 2)), 1)
    low = part.meta.node_types[0].bounds[1]
    common = {
        "protocol": PROTOCOL,
        "id": 1,
        "part": 1,
        "op": "fetch",
        "element": "node",
        "index": 0,
    }
    for timed in (True, False, None, 1):
        request = pack({**common, "names": ["id"], "timed": timed}, [np.array([low])])
        reply, _ = unpack(RequestHandler(part)(request))
        assert ("served" in reply) == (timed is True)
    began, ended, pid, thread = unpack(
        RequestHandler(part)(pack({**common, "names": ["id"], "timed": True}, [np.array([low])]))
    )[0]["served"]
    assert 0 < began <= ended and pid == os.getpid() and thread > 0


def test_two_trainers(folder_of, tmp_path):
    """Each writes a file of its own; joined, each server has what it did for the other."""
    arguments = {
        "root": str(folder_of("random", 2)),
        "homes": [0, 1],
        "num_workers": 1,
        "path": str(tmp_path / "out.json"),
    }
    paths = [tmp_path / f"out-rank{rank}.json" for rank in range(2)]
    results = jobs.finish_trainers(jobs.start_trainers("trace", arguments, 2))
    assert [r["path"] for r in results] == list(map(str, paths))
    for rank, path in enumerate(paths):
        trace = Trace(path)
        names = {f"trainer (rank {rank})", f"sampler 0 (rank {rank})"}
        assert set(trace.processes.values()) == names | {f"server of partition {1 - rank}"}
        assert check_servings(trace)
    khop.trace.merge(paths, tmp_path / "all.json")
    whole = Trace(tmp_path / "all.json")
    assert len(whole.processes) == 6
    assert len(check_servings(whole)) == sum(len(check_servings(Trace(p))) for p in paths)
