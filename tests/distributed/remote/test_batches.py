"""Batches that come from graph servers are those of the in-memory loader, whatever happens."""

import os
import signal
import time

import numpy as np
import pytest

from khop.distributed.remote.client.batch_checks import BatchSchema
from khop.distributed.rpc.keys import JobKeys
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import PartitionUnavailableError, SamplerDiedError
from khop.loader import NeighborLoader
from khop.partition import PartitionFolder
from khop.sampler.spec import SamplingSpec
from support.cluster import jobs
from support.cluster.receiving import check_same, collect_all, training
from support.cluster.serving import client_of, serving, sessions, statistics, wait_until

SEEDS = jobs.seeds_of_rank(0)


def new_ids(folder, seeds=SEEDS):
    """[1, n] columns of seeds."""
    return folder.id_map("node")[seeds.numpy()].astype(np.int64)[None]


def spec_of(folder):
    """What batches shall be: everything."""
    sampling = SamplingSpec.create(jobs.FANOUTS, [t.name for t in folder.meta.edge_types])
    return PipelineSpec(sampling, collect_all(folder.meta, sampling))


def reference(graph, seeds=SEEDS, **options):
    """The in-memory loader."""
    common = {"batch_size": 32, "shuffle": True, "seed": 3, "stream": 0, **options}
    return NeighborLoader(graph, jobs.FANOUTS, seeds, **common)


@pytest.mark.parametrize("num_parts,num_servers,secure", [(1, 1, False), (3, 2, True)])
def test_same(graph, folder_of, num_parts, num_servers, secure):
    """Two epochs from all servers, of one partition each or several, with keys or without."""
    root = folder_of("frequency", num_parts)
    folder = PartitionFolder(root)
    keys = JobKeys.new() if secure else None
    with (
        serving(root, num_servers, keys) as served,
        training(served, spec_of(folder), servers=range(num_servers), num_workers=2) as trainer,
    ):
        for seed in (3, 4):
            epoch, plan = trainer.open(new_ids(folder), seed=seed)
            pairs = zip(trainer.run(epoch, plan), reference(graph, seed=seed), strict=True)
            assert sum(check_same(*pair) or 1 for pair in pairs) == plan.num_batches
        assert len(trainer.layouts) == 1
        with client_of(served) as client:
            made = [sessions(client, rank)[0]["batches"]["count"] for rank in range(num_servers)]
            assert sum(made) == 2 * plan.num_batches
            assert min(made) > 0
            trainer.close()
            wait_until(lambda: not any(sessions(client, r) for r in range(num_servers)))


def test_batch_without_room_in_the_arena_gets_its_own_memory(graph, folder_of):
    """Batches that find no room get memory of their own, and all of it may be kept."""
    root = folder_of("random", 1)
    folder = PartitionFolder(root)
    with (
        serving(root) as served,
        training(served, spec_of(folder), ring_bytes=80_000, buffer_bytes=1 << 16) as trainer,
    ):
        epoch, plan = trainer.open(new_ids(folder))
        kept = list(trainer.run(epoch, plan))
        for ours, theirs in zip(kept, reference(graph), strict=True):
            check_same(ours, theirs)


def test_rows_on_disk(graph, folder_of):
    """Servers and their samplers read rows past the page cache: the same batches."""
    root = folder_of("random", 2)
    folder = PartitionFolder(root)
    disk = [["x", "edge_attr"], 16 << 20, "auto"]
    with (
        serving(root, 2, disk=disk) as served,
        training(served, spec_of(folder), servers=range(2)) as trainer,
    ):
        epoch, plan = trainer.open(new_ids(folder))
        for ours, theirs in zip(trainer.run(epoch, plan), reference(graph), strict=True):
            check_same(ours, theirs)


def test_lists_of_servers(graph, folder_of):
    """Of a plan with lists of seeds, list i is made by server i, and by no other."""
    root = folder_of("random", 2)
    folder = PartitionFolder(root)
    with (
        serving(root, 2) as served,
        training(served, spec_of(folder), servers=[1, 0]) as trainer,
        client_of(served) as client,
    ):
        lists = [100, len(SEEDS) - 100]
        epoch, plan = trainer.open(new_ids(folder), lists=lists, shuffle=False)
        for received in trainer.run(epoch, plan):
            del received
        made = [sessions(client, rank)[0]["batches"]["count"] for rank in (1, 0)]
        assert made == [-(-size // 32) for size in lists]


def test_closing_epochs(graph, folder_of):
    """What is not wanted any more is dropped everywhere; the next epoch is as it should be."""
    root = folder_of("random", 1)
    folder = PartitionFolder(root)
    with serving(root) as served, training(served, spec_of(folder)) as trainer:
        for _ in range(5):
            epoch, plan = trainer.open(new_ids(folder))
            trainer.ask(epoch, range(4))
            trainer.take(epoch, 0)
            trainer.receiver.process.line.post(3, epoch.to_bytes(8, "little"))  # CLOSE_EPOCH
        epoch, plan = trainer.open(new_ids(folder))
        for ours, theirs in zip(trainer.run(epoch, plan), reference(graph), strict=True):
            check_same(ours, theirs)


def test_bad_seeds_and_pipelines(folder_of):
    """What a server refuses is the batch's error, with its type, server and words."""
    root = folder_of("random", 1)
    folder = PartitionFolder(root)
    spec = spec_of(folder)
    with serving(root) as served:
        with training(served, spec) as trainer:
            epoch, _ = trainer.open(np.full((1, 40), 10_000), shuffle=False)
            trainer.ask(epoch, [0])
            with pytest.raises(IndexError, match=r"10000(.|\n)*graph server 0"):
                trainer.take(epoch, 0)
        collect = collect_all(folder.meta, spec.sampling)
        collect.node_attrs[0].append("secret")
        schema = BatchSchema.create(folder.meta, spec)
        with training(served, PipelineSpec(spec.sampling, collect), schema=schema) as trainer:
            epoch, _ = trainer.open(new_ids(folder))
            trainer.ask(epoch, [0, 1])
            for batch in (0, 1):
                with pytest.raises(Exception, match="secret"):
                    trainer.take(epoch, batch)


def test_killed_sampler(graph, folder_of):
    """A server's sampler that is killed is started again; beyond `max_restarts` it is an error."""
    root = folder_of("random", 1)
    folder = PartitionFolder(root)
    with (
        serving(root) as served,
        training(served, spec_of(folder), max_restarts=1) as trainer,
        client_of(served) as client,
    ):
        epoch, plan = trainer.open(new_ids(folder))
        running = trainer.run(epoch, plan)
        for i, theirs in enumerate(reference(graph)):
            check_same(next(running), theirs)
            if i == 0:
                os.kill(sessions(client)[0]["samplers"][0]["pid"], signal.SIGKILL)
        # Of batches that were made before it was killed the server may have none to miss.
        wait_until(lambda: statistics(client)["sampler_restarts"] == 1)
        os.kill(sessions(client)[0]["samplers"][0]["pid"], signal.SIGKILL)
        epoch, _ = trainer.open(new_ids(folder))
        trainer.ask(epoch, [0, 1])
        for batch in (0, 1):
            with pytest.raises(SamplerDiedError, match="SIGKILL"):
                trainer.take(epoch, batch)


@pytest.mark.parametrize("same_address", [True, False])
def test_restarted_server(graph, folder_of, same_address):
    """A server that was killed and comes back, here or elsewhere, goes on where it was."""
    root = folder_of("random", 2)
    folder = PartitionFolder(root)
    with (
        serving(root, 2) as served,
        training(served, spec_of(folder), servers=[1]) as trainer,
    ):
        port = int(served.addresses[1]["tcp"].rpartition(":")[2])
        epoch, plan = trainer.open(new_ids(folder), batch_size=8)
        running = trainer.run(epoch, plan)
        for i, theirs in enumerate(reference(graph, batch_size=8)):
            check_same(next(running), theirs)
            if i == 2:
                served.kill(1)
                served.start(1, port=port if same_address else None)


def test_samplers_find_a_server_that_moved(graph, folder_of):
    """A server's samplers hear where another server is that was killed and came back elsewhere."""
    root = folder_of("random", 2)
    folder = PartitionFolder(root)
    with serving(root, 2) as served, training(served, spec_of(folder)) as trainer:
        epoch, plan = trainer.open(new_ids(folder), batch_size=8)
        running = trainer.run(epoch, plan)
        for i, theirs in enumerate(reference(graph, batch_size=8)):
            check_same(next(running), theirs)
            if i == 2:
                served.kill(1)
                served.start(1)


def test_restarted_master(graph, folder_of):
    """Server 0, which keeps the directory, may be killed, too; nothing that was told is lost."""
    root = folder_of("random", 2)
    folder = PartitionFolder(root)
    with (
        serving(root, 2) as served,
        client_of(served, 0) as client,
        training(served, spec_of(folder), servers=[0, 1]) as trainer,
    ):
        client.publish("n", [1, 2])
        epoch, plan = trainer.open(new_ids(folder), batch_size=8)
        running = trainer.run(epoch, plan)
        for i, theirs in enumerate(reference(graph, batch_size=8)):
            check_same(next(running), theirs)
            if i == 2:
                served.kill(0)
                served.start(0)

        wait_until(lambda: client.wait_for("n", [0], 1.0) == {0: [1, 2]})
        wait_until(lambda: len(client.table.servers) == 2)


def test_lost_server(graph, folder_of):
    """Batches of a server that is lost for good are another's, or fail when time is over."""
    root = folder_of("random", 1)
    folder = PartitionFolder(root)
    with (
        serving(root, 2, parts=[0]) as served,
        training(served, spec_of(folder), servers=[1], timeout=3.0) as bound,
        training(served, spec_of(folder), servers=[1, 0]) as free,
    ):
        epochs = {trainer: trainer.open(new_ids(folder)) for trainer in (bound, free)}
        for trainer, (epoch, _) in epochs.items():
            trainer.ask(epoch, [0])
            trainer.take(epoch, 0)
        served.kill(1)
        for ours, theirs in zip(free.run(*epochs[free]), reference(graph), strict=True):
            check_same(ours, theirs)
        epoch, _ = epochs[bound]
        began = time.monotonic()
        bound.ask(epoch, [1, 2])
        for batch in (1, 2):
            with pytest.raises(
                PartitionUnavailableError, match=r"graph server 1 at (ipc|tcp)://.* unreachable"
            ):
                bound.take(epoch, batch)
        assert 2.5 < time.monotonic() - began < 15


def test_missing_partition(graph, folder_of):
    """A server whose samplers cannot reach a partition says so, and begins when they can."""
    root = folder_of("random", 2)
    folder = PartitionFolder(root)
    with (
        serving(root, 1, num_servers=2) as served,
        training(served, spec_of(folder), timeout=3.0) as trainer,
    ):
        epoch, plan = trainer.open(new_ids(folder))
        trainer.ask(epoch, [0])
        with pytest.raises(PartitionUnavailableError, match=r"registered partition\(s\) \[1\]"):
            trainer.take(epoch, 0)
        served.start(1)
        for ours, theirs in zip(trainer.run(epoch, plan), reference(graph), strict=True):
            check_same(ours, theirs)
