"""Trainer that dies once, for `test_elastic`. Arguments: partition folder, folder for results."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
)
from support.cluster import jobs


def main(parts, results):
    """Train. At the first start, the last trainer dies in an epoch, and the first is stopped."""
    has_died, has_batch = results / "died", results / "batch"
    is_again = has_died.exists()
    if is_again and os.environ["RANK"] == "1":
        time.sleep(1)  # what the first trainer finds under its rank is its predecessor's
    context = init_worker_group(timeout=30)
    dist.init_process_group(
        "gloo", store=context.store, rank=context.rank, world_size=context.world_size
    )
    value = torch.tensor(float(context.rank))
    dist.all_reduce(value)
    loader = DistNeighborLoader(
        DistDataset().load(parts, partition_idx=context.rank),
        jobs.FANOUTS,
        jobs.seeds_of_rank(context.rank),
        batch_size=32,
        worker_options=MpDistSamplingWorkerOptions(num_workers=1),
    )
    num_seeds = 0
    for batch in loader:
        num_seeds += batch.batch_size
        if not is_again:
            if context.rank == 1:
                while not has_batch.exists():  # without, it would fail, which its machine counts
                    time.sleep(0.01)
                has_died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            has_batch.touch()
            time.sleep(60)
    found = {
        "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"],
        "sum": value.item(),
        "seeds": num_seeds,
    }
    (results / f"rank-{context.rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
