"""How batches come to where they shall be: one ahead of the trainer, errors in their turn."""

import gc
import shutil
import time

import pytest
import torch

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    shutdown_worker_group,
)
from khop.distributed.loaders.device_transfer import DeviceTransfer, TargetDevice
from khop.errors import FolderError
from khop.loader import NeighborLoader
from khop.partition import RandomPartitioner
from khop.typing import NODE
from support.cluster import jobs, twins

SEEDS = jobs.seeds_of_rank(0)


def make_loader(source, devices="cpu", to_device="emulated", seeds=SEEDS, batch_size=16):
    """A loader of one sampler."""
    return DistNeighborLoader(
        source if isinstance(source, DistDataset) else DistDataset().load(source, 0),
        jobs.FANOUTS,
        seeds,
        batch_size=batch_size,
        with_edge=True,
        collect_features=True,
        device=to_device,
        seed=5,
        worker_options=MpDistSamplingWorkerOptions(1, worker_devices=devices),
    )


def wait_until_made(iterator, batch):
    """Until the samplers have made a batch."""
    end = time.monotonic() + 10
    while not iterator._loader._backend.has_arrived(iterator._source._epoch, batch):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("devices", ["cpu", "emulated"])
def test_one_batch_is_on_its_way_ahead(graph, folder_of, devices):
    """Of a device, when it is made; an epoch that is left early gives it back."""
    loader = make_loader(folder_of("random", 1), devices)
    iterator = iter(loader)
    first = next(iterator)
    wait_until_made(iterator, 2)
    second = next(iterator)
    assert iterator._prefetched is not None
    twin = NeighborLoader(graph, jobs.FANOUTS, SEEDS, batch_size=16, seed=5)
    for ours, theirs in zip((first, second), twin, strict=False):
        assert torch.equal(ours.n_id, theirs.n_id)
    del first, second, ours, iterator
    gc.collect()
    twin = NeighborLoader(graph, jobs.FANOUTS, SEEDS, batch_size=16, seed=5)
    list(twin)
    assert jobs.same_batches(loader, twin) == len(loader)
    loader.shutdown()


def test_no_batch_is_ahead_on_the_cpu(folder_of):
    """A copy there would only take the trainer's own time earlier."""
    loader = make_loader(folder_of("random", 1), to_device="cpu")
    iterator = iter(loader)
    for batch in range(3):
        next(iterator)
        wait_until_made(iterator, batch + 1)
        assert iterator._prefetched is None
    loader.shutdown()


@pytest.mark.parametrize("to_device", ["emulated", "cpu"])
def test_an_error_comes_in_its_turn(tmp_path, to_device):
    """What goes wrong with the batch that is sent ahead is raised when it is asked for.

    It ends the epoch, sent ahead or not, and the batch stays due. The last node's label is missing:
    the batch with that node cannot be put together.
    """
    graph = jobs.make_graph()
    del graph.y
    RandomPartitioner.from_data(graph, tmp_path / "parts", 1, edge_dir="in").partition()
    dataset = DistDataset().load(tmp_path / "parts", 0)
    dataset.node_labels = {NODE: torch.arange(graph.num_nodes - 1)}
    seeds = torch.tensor([490, 491, graph.num_nodes - 1])  # isolated ones
    loader = make_loader(dataset, to_device=to_device, seeds=seeds, batch_size=1)
    iterator = iter(loader)
    assert next(iterator).y.tolist() == [490]
    wait_until_made(iterator, 2)
    assert next(iterator).y.tolist() == [491]
    assert isinstance(iterator._prefetched, IndexError) == (to_device == "emulated")
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        next(iterator)
    assert list(iterator) == []
    (state,) = loader.state_dict().values()
    assert state["delivered"] == 2
    loader.shutdown()


def test_a_device_that_fails(folder_of, tmp_path):
    """The trainer hears of it with the sampler's traceback, and of each batch again."""
    root = tmp_path / "broken"
    shutil.copytree(folder_of("random", 1), root)
    (root / "part-0/node/node/half.npy").write_bytes(b"short")
    loader = make_loader(root, "emulated")
    for _ in range(2):
        with pytest.raises(
            FolderError, match=r"half.npy(.|\n)*sampler process 0(.|\n)*device.collect"
        ):
            list(loader)
    loader.shutdown()


@pytest.mark.parametrize(("to_device", "device", "where"), [
    (None, None, None),
    ("cpu", None, torch.device("cpu")),
    ("emulated", "emulated:0", torch.device("cpu")),
    ("emulated:7", "emulated:7", torch.device("cpu")),
    (torch.device("cpu"), None, torch.device("cpu")),
])  # fmt: skip
def test_destinations(to_device, device, where):
    destination = TargetDevice(to_device)
    assert (destination.device, destination.torch_device) == (device, where)
    assert destination.is_device == (device is not None)
    batch = jobs.make_graph(20, 40)
    mover = DeviceTransfer(destination)
    assert mover.finish(mover.start(batch)).x.tolist() == batch.x.tolist()
    assert mover.mark() == []
    mover.close()


def test_destinations_that_are_none():
    with pytest.raises(ValueError, match="device must be"):
        TargetDevice("emulated:x")
    with pytest.raises(RuntimeError, match="Expected one of"):
        TargetDevice("gpu")


@pytest.mark.parametrize("num_workers", [None, 1])
def test_a_dataset_is_used_again_after_its_job_was_left(folder_of, num_workers):
    """The servers of its first loader have ended: the next loader has new ones, and no wait."""
    dataset = DistDataset().load(folder_of("random", 2), 0, also_serve=[1], same_host_reads=False)
    first, second = (None, num_workers) if num_workers else (num_workers, None)
    for workers in (first, second):
        options = twins.workers(workers)
        loader = DistNeighborLoader(dataset, [3], SEEDS, batch_size=50, worker_options=options)
        assert len(list(loader)) == len(loader)
        loader.shutdown()
        shutdown_worker_group()
