"""Training loops of Ray Train, for tests. `config` has a folder, to which digests are written."""

import os
import tempfile
import time
from pathlib import Path

import torch

from khop.distributed import (
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
    shutdown_client,
    shutdown_worker_group,
)
from support.cluster.launched import COMMON, digest, worker_loader


def client_loop(config):
    """Training loop of a client: an epoch, which begins a file at its fifth batch."""
    rank = int(os.environ["RANK"])
    config["address"].init_client(rank)
    options = RemoteDistSamplingWorkerOptions(num_workers=1, prefetch_size=2)
    loader = DistNeighborLoader(None, [4, 4], torch.arange(500), worker_options=options, **COMMON)

    def batches():
        for index, batch in enumerate(loader):
            if index == 5:
                Path(config["folder"], f"begun-{rank}").touch()
            time.sleep(config["pause"])
            yield batch

    Path(config["folder"], f"digest-{rank}").write_text(str(digest(batches())))
    shutdown_client()


def trainer_loop(config):
    """Training loop of a trainer with a partition."""
    loader = worker_loader(config["parts"])
    rank = int(os.environ["RANK"])
    Path(config["folder"], f"digest-{rank}").write_text(str(digest(loader)))
    shutdown_worker_group()


def resuming_loop(config):
    """Training loop of a trainer with a partition, which goes on from its checkpoint.

    It saves its loader after every fifth batch, and begins a file with its node at the twelfth.
    """
    import ray.train

    rank = int(os.environ["RANK"])
    file, loader = f"rank-{rank}", worker_loader(config["parts"])
    digests, begun = [], Path(config["folder"], f"begun-{rank}")
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, file))
        loader.load_state_dict(state["loader"])
        digests = state["digests"]
        Path(config["folder"], f"resumed-{rank}").write_text(str(len(digests)))
    for batch in loader:
        digests.append(digest([batch]))
        time.sleep(config["pause"])
        if len(digests) % 5 == 0 and len(digests) < len(loader):
            with tempfile.TemporaryDirectory() as folder:
                torch.save({"loader": loader.state_dict(), "digests": digests}, Path(folder, file))
                ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))
        if len(digests) == 12:
            begun.write_text(ray.get_runtime_context().get_node_id())
    Path(config["folder"], f"digests-{rank}").write_text(str(digests))
    shutdown_worker_group()
