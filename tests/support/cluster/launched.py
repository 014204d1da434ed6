"""A trainer that `khop run` starts in tests: epochs over two partitions, until a file appears.

python -m support.cluster.launched FOLDER STOP
"""

import os
import sys
from pathlib import Path

import torch

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_client,
    init_worker_group,
)


def worker_loader(folder):
    """Return the loader of a trainer with a partition and a sampler."""
    context = init_worker_group()
    dataset = DistDataset().load(folder, context.rank % 2)
    options = MpDistSamplingWorkerOptions(num_workers=1)
    return DistNeighborLoader(
        dataset, [4, 4], torch.arange(500), batch_size=20, seed=3, worker_options=options
    )


def client_loader():
    """Return the loader of a client of the graph servers that `khop run` has started."""
    servers, address, port = (
        os.environ[f"KHOP_{name}"] for name in ("NUM_SERVERS", "SERVERS_ADDR", "SERVERS_PORT")
    )
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    init_client(int(servers), size, rank, address, port)
    options = RemoteDistSamplingWorkerOptions(num_workers=1)
    return DistNeighborLoader(
        None, [4, 4], torch.arange(500), batch_size=20, seed=3, worker_options=options
    )


def main(folder, stop):
    """Print a digest of the first epoch, then train until the file `stop` exists."""
    loader = client_loader() if "KHOP_NUM_SERVERS" in os.environ else worker_loader(folder)
    digest = 0
    for batch in loader:
        digest = (digest * 31 + int(batch.n_id.sum())) % (1 << 61)
    key = Path(os.environ["KHOP_JOB_KEY_FILE"]) if "KHOP_JOB_KEY_FILE" in os.environ else None
    mode = None if key is None else oct(key.stat().st_mode & 0o777)
    print(f"digest {digest} key {mode}", flush=True)
    while not Path(stop).exists():
        for _ in loader:
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
