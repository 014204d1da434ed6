"""A trainer that `khop run` starts in tests: epochs over two partitions, until a file appears.

python -m support.cluster.launched FOLDER STOP
"""

import faulthandler
import json
import os
import sys
from pathlib import Path

import torch

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    get_context,
    init_client,
    init_worker_group,
)

COMMON = {"batch_size": 20, "seed": 3}


def digest(loader):
    """Return a digest of the nodes of an epoch's batches."""
    result = 0
    for batch in loader:
        weights = torch.arange(1, len(batch.n_id) + 1)
        result = (result * 31 + int((batch.n_id * weights).sum())) % (1 << 61)
    return result


def worker_loader(folder):
    """Return the loader of a trainer with a partition and a sampler."""
    context = init_worker_group()
    dataset = DistDataset().load(folder, context.rank % 2)
    options = MpDistSamplingWorkerOptions(num_workers=1)
    return DistNeighborLoader(dataset, [4, 4], torch.arange(500), worker_options=options, **COMMON)


def client_loader():
    """Return the loader of a client of the graph servers that `khop run` has started."""
    init_client()
    options = RemoteDistSamplingWorkerOptions(num_workers=1)
    return DistNeighborLoader(None, [4, 4], torch.arange(500), worker_options=options, **COMMON)


def key_of_job():
    """Return the mode of this trainer's key file, and whether the job's store has the secret."""
    if "KHOP_JOB_KEY_FILE" not in os.environ:
        return "none"
    path = Path(os.environ["KHOP_JOB_KEY_FILE"])
    pair = json.loads(path.read_text())["client"]
    published = get_context().members.wait_for("service-0/key", [0], "make the job's key")[0]
    assert published["public"] == pair["public"] and pair["secret"]
    secret = "a secret" if published["secret"] else "no secret"
    return f"{oct(path.stat().st_mode & 0o777)} {secret}"


def main(folder, stop):
    """Print a digest of the first epoch, then train until the file `stop` exists."""
    faulthandler.dump_traceback_later(50)  # trainers wait for each other for 60 s: what for?
    loader = client_loader() if "KHOP_NUM_SERVERS" in os.environ else worker_loader(folder)
    faulthandler.cancel_dump_traceback_later()
    print(f"digest {digest(loader)} key {key_of_job()}", flush=True)
    while not Path(stop).exists():
        for _ in loader:
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
