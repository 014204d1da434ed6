"""Cooperative batches: the trainers' shares together are the batch of one process."""

import signal

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data

from khop.distributed import CooperativeLoader, DistDataset
from khop.errors import RendezvousError
from khop.loader import NeighborLoader
from khop.partition import RandomPartitioner
from support import cooperative_job
from support.cluster import jobs


def start(job, root, num_parts, **arguments):
    """Partition the job's graph, and start a trainer for each part."""
    RandomPartitioner.from_data(cooperative_job.graph(), root, num_parts).partition()
    arguments = {"root": str(root), **arguments}
    return jobs.start_trainers(job, arguments, num_parts, program=cooperative_job.__name__)


@pytest.mark.parametrize("num_parts,on_device", [(2, False), (3, False), (3, True)])
def test_shares_are_the_batch_of_one_process(tmp_path, num_parts, on_device):
    """Nodes, edges and their attributes, loss and gradients, of two epochs."""
    trainers = start("compare", tmp_path / "parts", num_parts, on_device=on_device)
    jobs.finish_trainers(trainers, silent=True)


@pytest.mark.fault
def test_a_trainer_that_is_killed(tmp_path):
    """The others get an error that names it, and end as they like."""
    done = str(tmp_path / "done")
    trainers = start("ends_early", tmp_path / "parts", 3, killed=2, done=done)
    first, second = jobs.finish_trainers(trainers[:2])
    assert trainers[2].wait() == -signal.SIGKILL
    for result in (first, second):
        assert "trainer(s) [2] have ended" in result["error"]


def test_a_trainer_that_leaves_an_epoch_early(tmp_path):
    """The others are told in the batch that it does not take, long before their timeout."""
    done = str(tmp_path / "done")
    trainers = start("ends_early", tmp_path / "parts", 3, leaves=1, done=done)
    first, left, last = jobs.finish_trainers(trainers)
    assert left == {"error": None}
    for result in (first, last):
        assert "trainer 1, which has left this epoch after 2 batch(es)" in result["error"]
        assert result["after"] < 60


@pytest.fixture
def alone(tmp_path):
    """The only trainer of a job: its dataset, of a path of six nodes."""
    edge_index = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    graph = Data(x=torch.arange(6.0).view(-1, 1), edge_index=edge_index)
    RandomPartitioner.from_data(graph, tmp_path / "parts", 1).partition()
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield graph, DistDataset().load(tmp_path / "parts", 0)
    dist.destroy_process_group()


def test_repeated_seeds(alone):
    """Each is a node of its own, as in memory."""
    graph, dataset = alone
    seeds = torch.tensor([5, 5, 5, 2])
    batch = next(iter(CooperativeLoader(dataset, [2, 2], seeds, batch_size=4)))
    whole = next(iter(NeighborLoader(graph, [2, 2], seeds, batch_size=4)))
    assert batch.n_id.tolist() == whole.n_id.tolist() == [5, 5, 5, 2, 4, 1, 3, 0]
    assert torch.equal(batch.layers[0].edge_index, whole.edge_index)
    assert torch.equal(batch.layers[0].e_id, whole.e_id)
    assert batch.batch_size == batch.num_seeds == whole.batch_size == 4


def test_what_is_shut_down_exchanges_no_more(alone):
    """Its process group has ended; batches that are left say so."""
    _, dataset = alone
    num_groups = len(dist.distributed_c10d._world.pg_map)
    loader = CooperativeLoader(dataset, [2], batch_size=3)
    batch = next(iter(loader))
    loader.shutdown()
    assert len(dist.distributed_c10d._world.pg_map) == num_groups
    with pytest.raises(RendezvousError, match="has been shut down"):
        batch.layers[0].sources(batch.x)
    with pytest.raises(ValueError, match="timeout must be positive"):
        CooperativeLoader(dataset, [2], timeout=0)
    dataset.load(dataset.opened.root, 0, graph_mode="CPU")
    with pytest.raises(ValueError, match=r"'ZERO_COPY' or 'CUDA' \(got 'CPU'\)"):
        CooperativeLoader(dataset, [2], device="emulated")


def test_a_group_is_needed(tmp_path):
    RandomPartitioner.from_data(cooperative_job.graph(), tmp_path / "parts", 1).partition()
    dataset = DistDataset().load(tmp_path / "parts", 0)
    with pytest.raises(RuntimeError, match="init_process_group"):
        CooperativeLoader(dataset, [2], torch.arange(3))
