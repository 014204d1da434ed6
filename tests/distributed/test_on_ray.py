"""Graph servers and trainers on a Ray cluster of several node processes. Skipped without Ray."""

import os
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import khop
from khop.errors import RendezvousError
from khop.loader import NeighborLoader
from support import launching, ray_cluster
from support.cluster import jobs
from support.cluster.launched import COMMON, digest
from support.cluster.ray_loops import client_loop, resuming_loop, trainer_loop


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ray_cluster.started() as cluster:
        import ray

        ray.init(address="auto", log_to_driver=False)
        yield cluster


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray") / "parts"
    khop.partition_graph(jobs.make_graph(), folder, 2)
    return folder


def expected(rank):
    """Digest of the first epoch of a trainer."""
    seeds = torch.arange(500)
    return digest(NeighborLoader(jobs.make_graph(), [4, 4], seeds, stream=rank, **COMMON))


def fit(loop, folder, workers=2, strategy="PACK", **config):
    """Run a training loop in a Ray Train job, which one failure does not end."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    each = {"resources_per_worker": {"CPU": 0.2}, "placement_strategy": strategy}
    scaling = ScalingConfig(num_workers=workers, **each)
    failures = FailureConfig(max_failures=1)
    run = RunConfig(storage_path=str(folder / "storage"), name="run", failure_config=failures)
    config = {"folder": str(folder), **config}
    TorchTrainer(loop, train_loop_config=config, scaling_config=scaling, run_config=run).fit()


def digests(folder, workers=2):
    return [int((folder / f"digest-{rank}").read_text()) for rank in range(workers)]


@pytest.mark.fault
def test_trainers_with_partitions(cluster, parts, tmp_path):
    """`init_worker_group()` in a training loop, without arguments."""
    fit(trainer_loop, tmp_path, parts=str(parts))
    assert digests(tmp_path) == [expected(0), expected(1)]


@pytest.mark.fault
def test_the_node_of_a_trainer_is_killed(cluster, parts, tmp_path):
    """Ray Train starts both again, and each makes the batches that are missing."""
    ray_cluster.add_node(cluster)
    with ThreadPoolExecutor() as pool:
        config = {"parts": str(parts), "pause": 0.2}
        job = pool.submit(fit, resuming_loop, tmp_path, strategy="STRICT_SPREAD", **config)
        for rank in range(2):
            wait_for(tmp_path / f"begun-{rank}", job)
        nodes = {(tmp_path / f"begun-{rank}").read_text() for rank in range(2)}
        victim = next(node for node in cluster.worker_nodes if node.node_id in nodes)
        cluster.remove_node(victim, allow_graceful=False)
        job.result(180)
    for rank in range(2):
        twin = NeighborLoader(jobs.make_graph(), [4, 4], torch.arange(500), stream=rank, **COMMON)
        assert (tmp_path / f"digests-{rank}").read_text() == str([digest([b]) for b in twin])
        assert (tmp_path / f"resumed-{rank}").read_text() in ("5", "10", "15", "20")
    remove_folders()


@pytest.mark.fault
def test_a_node_is_killed(cluster, parts, tmp_path):
    """With server 1, in mid-epoch: Ray restarts it elsewhere, clients find it, batches stay."""
    from khop.ray import GraphServers

    with ThreadPoolExecutor() as pool, GraphServers(parts, 2, num_cpus=0.4) as servers:
        first, second = servers.nodes()
        assert first != second and "secret" not in repr(servers.address)

        other = ray_cluster.add_node(cluster)
        job = pool.submit(fit, client_loop, tmp_path, address=servers.address, pause=0.2)
        wait_for(tmp_path / "begun-0", job)
        victim = next(node for node in cluster.worker_nodes if node.node_id == second)
        cluster.remove_node(victim, allow_graceful=False)
        job.result(180)
        assert digests(tmp_path) == [expected(0), expected(1)]
        assert servers.nodes()[0] == first and servers.nodes()[1] != second
        assert other in cluster.worker_nodes
    remove_folders()


@pytest.mark.fault
def test_a_server_is_killed(cluster, parts, tmp_path):
    """And not its actor: it comes back."""
    from khop.ray import GraphServers

    with GraphServers(parts, 1, num_cpus=0.4) as servers:
        (pid,) = pids_of_servers()
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 60
        while pids_of_servers() in ([], [pid]):
            assert time.monotonic() < end
            time.sleep(0.1)
        servers.nodes()
        fit(client_loop, tmp_path, workers=1, address=servers.address, pause=0)
        assert digests(tmp_path, 1) == [expected(0)]
    assert launching.left_of(pids_of_servers(), 10) == []


def remove_folders():
    """Remove what processes that were killed have left."""
    for folder in Path(tempfile.gettempdir()).glob("khop-*"):
        shutil.rmtree(folder)


def pids_of_servers():
    text = b"khop.distributed.remote.server.main"
    below = launching.descendants(os.getpid())  # another cluster may run on this machine
    return [pid for pid, (_, line) in below.items() if text in line]


def wait_for(path, job):
    end = time.monotonic() + 120
    while not path.exists():
        assert not job.done() or job.result()
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.process
def test_mistakes(cluster, parts, tmp_path):
    from khop.ray import GraphServers

    with pytest.raises(RendezvousError, match="no room for 1 graph servers of 64 CPUs"):
        GraphServers(parts, 1, num_cpus=64, timeout=2)
    with pytest.raises(ValueError, match="must be a server"):
        GraphServers(parts, 0)
    with pytest.raises(khop.errors.FolderError):
        GraphServers(tmp_path)
