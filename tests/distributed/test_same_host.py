"""Partitions of the same host are read from their files, and batches do not change by it."""

import dataclasses
import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import khop.trace
from khop.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions
from khop.distributed.partitions.service import Claim, parts_read_by
from khop.distributed.processes.hosts import maps_same_host
from khop.distributed.remote.server.cache_budget import CacheGrant
from khop.distributed.remote.server.session_environment import SessionEnvironment
from khop.distributed.rpc.endpoint import Endpoint
from khop.loader import NeighborLoader
from khop.storage.folder import PartitionFolder
from support import recorded
from support.cluster import jobs, twins
from support.recorded import cases
from support.row_stores import ThreadRows, rows_of

EVERY = [0, 1, 2]
SEEDS = torch.arange(60)
OPTIONS = {"batch_size": 16, "seed": 4, "shuffle": True}


@pytest.mark.parametrize("mode", ["collocated", "samplers"])
def test_batches_are_those_recorded(mode, twin_root, monkeypatch):
    """All methods, options, links, walks and PyG's stores, over several parts: no bit changes."""
    monkeypatch.setenv("KHOP_SAME_HOST_READS", "1")
    found = {}
    with twins.quiet():
        for name, loader in cases.MODES[mode](twin_root):
            found[f"{mode}: {name}"] = recorded.summary(loader)
            if hasattr(loader, "shutdown"):
                loader.shutdown()
    expected = recorded.read(mode)
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_server_is_needed(graph, folder_of, num_workers):
    """No server is started, no bytes are received, and all rows count as local."""
    dataset = DistDataset().load(folder_of("random", 3), 0, also_serve=[1, 2], same_host_reads=True)
    worker_options = MpDistSamplingWorkerOptions(num_workers=num_workers)
    ours = DistNeighborLoader(dataset, [4, 3], SEEDS, worker_options=worker_options, **OPTIONS)
    reference = NeighborLoader(graph, [4, 3], SEEDS, **OPTIONS)
    assert jobs.same_batches(ours, reference) == len(reference)
    stats, service = ours.stats(), dataset.service()
    assert stats.rows["local"] > 0 == stats.rows["remote"] == stats.remote_bytes
    assert service.others == [1, 2]
    assert service.endpoints() == service.endpoint_registry.supervisor.servers == {}
    ours.shutdown()


def test_rows_of_users_stores_are_requested(graph, tmp_path):
    """Only the owner of a part reads its rows of a store. The graph is read from files."""
    khop.partition_graph(graph, tmp_path / "parts", 2)
    store = partial(ThreadRows, str(tmp_path), graph.num_nodes)
    options = {"also_serve": [1], "same_host_reads": True, "stores": {"rows": store}}
    dataset = DistDataset().load(tmp_path / "parts", 0, **options)
    loader = DistNeighborLoader(dataset, [4, 3], SEEDS, collect_features=True, **OPTIONS)
    recorded_to = tmp_path / "trace.json"
    with khop.trace.record(recorded_to):
        for batch in loader:
            assert torch.equal(batch.x, graph.x[batch.n_id])
            assert batch.rows.tolist() == rows_of(batch.n_id).tolist()
    assert dataset.service().others == [1] == [*dataset.service().endpoints()]
    assert loader.stats().rows["remote"] > 0
    served = {event["name"] for event in json.loads(recorded_to.read_text())["traceEvents"]}
    assert "fetch" in served
    assert "sample" not in served


def test_switched_off(folder_of):
    """`same_host_reads=False` requests all other parts."""
    options = {"also_serve": [1, 2], "same_host_reads": False}
    dataset = DistDataset().load(folder_of("random", 3), 0, **options)
    loader = DistNeighborLoader(dataset, [4, 3], SEEDS, **OPTIONS)
    assert len(list(loader)) == 4
    assert loader.stats().rows["remote"] > 0 < loader.stats().remote_bytes
    assert dataset.service().others == []
    assert sorted(dataset.service().endpoints()) == [1, 2]


CLAIM = Claim("here", "10.0.0.1", "print", 0, [0], EVERY)


@pytest.mark.parametrize("changes,parts", [
    ({}, [1]),
    ({"parts": [1, 2]}, [1, 2]),
    ({"parts": [0, 1]}, [1]),  # the home part of the reader is not another one
    ({"host": "there"}, []),  # its rows stay in that host's memory, even if the disk is shared
])  # fmt: skip
def test_parts_of_the_same_host_are_read(changes, parts):
    other = dataclasses.replace(CLAIM, **{"home": 1, "parts": [1], **changes})
    assert parts_read_by(CLAIM, [CLAIM, other]) == parts


def test_parts_that_cannot_be_read_are_requested():
    other = dataclasses.replace(CLAIM, home=1, parts=[1, 2])
    reader = dataclasses.replace(CLAIM, readable=[0, 2])
    assert parts_read_by(reader, [reader, other]) == [2]


def test_which_parts_can_be_read(folder_of, tmp_path, monkeypatch):
    """All files of a part must be here, and permit it."""
    folder = PartitionFolder(folder_of("random", 3))
    assert [folder.can_read_part(part) for part in EVERY] == [True] * 3
    denied = str(folder.root / "part-1")
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).startswith(denied))
    assert [folder.can_read_part(part) for part in EVERY] == [True, False, True]
    (tmp_path / "meta.json").write_bytes((folder.root / "meta.json").read_bytes())
    assert not PartitionFolder(tmp_path).can_read_part(0)


def test_the_variable(monkeypatch):
    monkeypatch.delenv("KHOP_SAME_HOST_READS")
    assert maps_same_host(None)
    for value, is_on in (("1", True), ("0", False)):
        monkeypatch.setenv("KHOP_SAME_HOST_READS", value)
        assert maps_same_host(None) is is_on
        assert maps_same_host(True)
        assert not maps_same_host(False)
    monkeypatch.setenv("KHOP_SAME_HOST_READS", "no")
    with pytest.raises(ValueError, match="must be 0 or 1"):
        maps_same_host(None)


def test_samplers_of_graph_servers():
    """They read parts of servers of their host, and request the others."""
    endpoints = {part: Endpoint(f"ipc://{part}") for part in range(4)}
    environment = SessionEnvironment(
        {}, [0, 1], 4, endpoints, None, lambda *_: None, lambda: None, mapped={0, 1, 2}
    )
    spec = SimpleNamespace(pipeline=SimpleNamespace(to_json=dict), timeout=1.0, concurrency=1)
    spec.num_workers = 1
    config = environment.sampler_config(spec, 1, None, CacheGrant())
    assert (config["part"], config["others"], sorted(config["endpoints"])) == (1, [0, 2], [3])
    with_stores = dataclasses.replace(environment, sampler={"stores": ["one"]})
    config = with_stores.sampler_config(spec, 0, None, CacheGrant())
    assert (config["others"], sorted(config["endpoints"])) == ([1, 2], [1, 2, 3])


def test_two_trainers(folder_of, monkeypatch):
    """Each has its home. Their batches are those of memory, and no row is requested."""
    monkeypatch.setenv("KHOP_SAME_HOST_READS", "1")
    arguments = {"root": str(folder_of("random", 2)), "homes": [0, 1], "num_workers": 1}
    for result in jobs.finish_trainers(jobs.start_trainers("compare", arguments, 2), silent=True):
        assert min(result["batches"]) > 0 == result["rows"]["remote"] < result["rows"]["local"]


def test_a_trainer_that_has_ended(folder_of, monkeypatch):
    """Its partition is read all the same."""
    monkeypatch.setenv("KHOP_SAME_HOST_READS", "1")
    arguments = {"root": str(folder_of("random", 2)), "homes": [0, 1], "num_workers": [1, None]}
    early, late = jobs.finish_trainers(jobs.start_trainers("early", arguments, 2), silent=True)
    assert early["batches"] == [1, 1]
    assert late == {"batches": [5, 5], "remote": [0, 0]}
