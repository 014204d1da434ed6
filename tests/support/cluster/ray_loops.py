"""Training loops of Ray Train, for tests. `config` has a folder, to which digests are written."""

import os
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
