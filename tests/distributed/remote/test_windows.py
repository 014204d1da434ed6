"""Sessions that keep rows of other partitions: the same batches, within the server's bound."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from khop.channel.control import U64, Op
from khop.distributed import DistNeighborLoader, RemoteDistSamplingWorkerOptions
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.server.cache_budget import CacheBudget
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.loader import NeighborLoader
from khop.partition import PartitionFolder
from khop.sampler.rows.row_cache import PLAN_BYTES
from khop.sampler.spec import SamplingSpec
from support.cluster import jobs
from support.cluster.receiving import collect_all, training
from support.cluster.servers import cluster
from support.cluster.serving import client_of, raw_session, serving, sessions, wait_until

COMMON = {"batch_size": 8, "shuffle": True, "seed": 3}
ROW_BYTES = 41  # of a node of jobs.make_graph
MB = 1 << 20


@pytest.fixture
def servers(folder_of):
    """Two servers, and this process as their only client."""
    with cluster(folder_of("random", 2), [[0], [1]]) as found, found.client():
        yield found


def remote_loader(capacity=None, lookahead=None, **workers):
    """A client's loader, whose cache has `capacity` nodes and edges. If None, by default."""
    memory = None if capacity is None else capacity * (ROW_BYTES + PLAN_BYTES)
    return DistNeighborLoader(
        None,
        jobs.FANOUTS,
        jobs.seeds_of_rank(0),
        with_edge=True,
        worker_options=RemoteDistSamplingWorkerOptions(**workers),
        cache_memory=memory,
        lookahead=lookahead,
        **COMMON,
    )


def twin():
    return NeighborLoader(jobs.make_graph(), jobs.FANOUTS, jobs.seeds_of_rank(0), **COMMON)


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize(("num_workers", "lookahead"), [(1, None), (2, 3), (1, 0)])
def test_batches_are_the_same_and_rows_are_reused(servers, shared_memory, num_workers, lookahead):
    """Two epochs, one of which is left early, from a receiver or from samplers of this machine."""
    loader = remote_loader(
        100, lookahead, num_workers=num_workers, server_rank=0, shared_memory=shared_memory
    )
    reference = twin()
    assert jobs.same_batches(loader, reference) == len(loader)
    for made in (loader, reference):
        for _ in zip(made, range(3), strict=False):
            pass
    assert jobs.same_batches(loader, reference) == len(loader)
    stats = loader.stats()
    assert min(stats.rows["reused"], stats.rows["remote"]) > 0
    assert stats.reused_bytes > 0 < stats.cache_bytes
    assert f"{stats.hit_rate:.1%} of their rows" in str(stats)


def test_a_receiver_names_the_next_batches(folder_of):
    """A server draws them before they are requested, and forgets those of a closed epoch."""
    root = folder_of("random", 2)
    spec = spec_of(root)
    options = {"session": {"cache_bytes": 8 * MB, "lookahead": [4, 4]}}
    with (
        serving(root, 2) as served,
        client_of(served) as watcher,
        training(served, spec, **options) as trainer,
    ):

        def outstanding():
            return [s["outstanding"] for found in sessions(watcher) for s in found["samplers"]]

        epoch, plan = trainer.open(np.arange(400)[None], batch_size=32)
        assert plan.num_batches == 13
        trainer.receiver.request_batches([(epoch, 0)], [(epoch, n) for n in range(1, 9)])
        first = trainer.take(epoch, 0)
        wait_until(lambda: outstanding() == [6])  # four, and two that are drawn
        trainer.ask(epoch, [1, 2])
        assert trainer.take(epoch, 1).counter("batch") == [1]
        assert trainer.take(epoch, 2).counter("batch") == [2]
        wait_until(lambda: outstanding() == [6])  # 3 to 8
        trainer.receiver.process.line.post(Op.CLOSE_EPOCH, U64.pack(epoch))
        wait_until(lambda: outstanding() == [0])
        again, _ = trainer.open(np.arange(400)[None], batch_size=32)
        trainer.ask(again, [0])
        assert (trainer.take(again, 0).named()["n0.id"][0] == first.named()["n0.id"][0]).all()


def test_any_server(servers):
    """Batches stay with the server that has drawn them."""
    loader = remote_loader(num_workers=1, server_rank=[0, 1], shared_memory=False)
    reference = twin()
    assert [jobs.same_batches(loader, reference) for _ in range(2)] == [len(loader)] * 2
    assert loader.stats().rows["reused"] > 0


def test_no_cache(servers):
    loader = remote_loader(num_workers=1, server_rank=0, shared_memory=False)
    without = DistNeighborLoader(
        None, jobs.FANOUTS, jobs.seeds_of_rank(0), with_edge=True, cache_memory=0,
        worker_options=RemoteDistSamplingWorkerOptions(server_rank=0, shared_memory=False),
        **COMMON,
    )  # fmt: skip
    assert jobs.same_batches(loader, without) == len(loader)
    stats = without.stats()
    assert (stats.rows["reused"], stats.cache_bytes) == (0, 0)
    assert stats.rows["remote"] > loader.stats().rows["remote"] > 0


@pytest.mark.parametrize("victim", ["server", "sampler", "receiver"])
def test_processes_that_are_killed(servers, victim):
    """With batches that were drawn ahead and not requested."""
    loader = remote_loader(100, num_workers=2, server_rank=0, shared_memory=False)
    address = Servers(f"{servers.host}:{servers.port}")
    with client_of(SimpleNamespace(servers=address)) as watcher:
        compared = 0
        for number, (a, b) in enumerate(zip(loader, twin(), strict=True)):
            assert (a.x == b.x).all()
            assert (a.e_id == b.e_id).all()
            compared += 1
            if number == 2 and victim == "server":
                servers.kill(0)
                servers.restart(0)
            elif number == 2 and victim == "receiver":
                os.kill(loader.workers[0].pid, signal.SIGKILL)
            elif number == 2:
                (session,) = wait_until(lambda: sessions(watcher))
                os.kill(session["samplers"][0]["pid"], signal.SIGKILL)
        assert compared == len(loader)
    assert loader.stats().rows["reused"] > 0


def spec_of(root):
    meta = PartitionFolder(root).meta
    sampling = SamplingSpec.create([4, 4], [t.name for t in meta.edge_types])
    return PipelineSpec(sampling, collect_all(meta, sampling))


def test_the_server_bounds_the_bytes(folder_of):
    """Each session gets half of what is left, and what it had comes back when it ends."""
    root = folder_of("random", 2)
    asked = {"cache_bytes": 1 << 40, "lookahead": [0, 4]}
    with serving(root, 2, cache_limit=64 * MB) as served, client_of(served) as watcher:
        pipeline = spec_of(root).to_json()
        with (
            raw_session(served, pipeline, name="a", **asked) as first,
            raw_session(served, pipeline, name="b", **asked) as second,
            raw_session(served, pipeline, name="c", cache_bytes=MB) as third,
        ):
            opened = first.open()
            assert (opened["cache_bytes"], opened["lookahead"]) == (16 * MB, 4 + 2)
            assert "64.0 MiB for rows of other partitions (--cache-limit)" in opened["reduced"]
            assert second.open()["cache_bytes"] == 8 * MB
            assert third.open() == {
                "id": 1, "held": [], "lookahead": 0, "cache_bytes": MB, "reduced": None
            }  # fmt: skip
            assert [s["cache_bytes"] for s in sessions(watcher)] == [16 * MB, 8 * MB, MB]
            assert first.open()["cache_bytes"] == 16 * MB  # the same session
            first.send("close")
            first.reply()
            assert first.open()["cache_bytes"] == (64 - 16 - 8) * MB // 4


def test_batches_that_are_only_drawn_are_not_sent(folder_of):
    """They come once they are requested. Cancelled and superfluous ones are forgotten."""
    root = folder_of("random", 2)
    with serving(root, 2) as served:
        options = {"cache_bytes": 8 * MB, "lookahead": [4, 4]}
        with raw_session(served, spec_of(root).to_json(), **options) as session:
            assert session.open()["lookahead"] == 6
            for number in range(9):
                session.ask(number, np.arange(9) + number, ahead=True)
            session.send("cancel", ids=[1, 8])
            for number in (4, 0, 1, 8):
                session.ask(number, np.arange(9) + number)
            session.finish(4)
            assert sorted(session.done) == [0, 1, 4, 8]
            assert session.failed == {}
            for number, received in session.done.items():
                ids = received.named()["n0.id"][0]
                assert np.array_equal(np.sort(ids[:9]), np.sort(np.unique(ids[:9])))
                assert received.counter("batch") == [number]


def test_a_budget():
    """The least share is a MiB: less is not worth its plan."""
    budget = CacheBudget(4 * MB)
    first, second, third = budget.take(3 * MB, 1), budget.take(MB // 2, 3), budget.take(5, 1)
    assert first[:2] == (MB, MB)
    assert second == (MB // 2, MB // 2, None)
    assert third[:2] == (0, 0)
    assert "this one keeps 1.0 MiB and not 3.0 MiB" in first.reason
    assert "3.0 MiB of this graph server's 4.0 MiB" in third.reason
    budget.give_back(first)
    assert budget.take(0, 1) == (0, 0, None)
    assert budget.take(5, 1) == (5, 3 * MB // 2 - 5, None)
    wide = CacheBudget()
    assert [wide.take(256 * MB, 2)[:2] for _ in range(2)] == [(256 * MB, 128 * MB)] * 2
