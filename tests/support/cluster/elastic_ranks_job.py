"""Trainer of virtual ranks, for `test_elastic`. Arguments: partition folder, folder for results.

Trainers save the loader and the batches so far after each step. Until there were three, they stop
after some steps until torchrun restarts them. Three go on when the test says so. After that they
end the epoch.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from khop.distributed import DistDataset, DistNeighborLoader, init_worker_group
from support.cluster import jobs, resume_jobs

NUM_RANKS, NUM_PARTS = 6, 3
STEPS = 4
OPTIONS = {"batch_size": 4, "shuffle": True, "seed": 5}
FANOUTS = [4, 3]


def main(root, results):
    """Train a part of the first epoch, from the last checkpoint on."""
    jobs.publish(results / f"pid-{os.environ['MACHINE']}", str(os.getpid()))
    context = init_worker_group(timeout=60)
    rank, world = context.rank, context.world_size
    dist.init_process_group("gloo", store=context.store, rank=rank, world_size=world)
    parts = list(range(rank, NUM_PARTS, world)) or [rank % NUM_PARTS]
    loader = DistNeighborLoader(
        DistDataset().load(root, parts[0], also_serve=parts[1:]),
        FANOUTS,
        "train_mask",
        num_virtual_ranks=NUM_RANKS,
        exchange="all_to_all",
        **OPTIONS,
    )
    checkpoint, made = results / "checkpoint.pt", []
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        loader.load_state_dict(saved["loader"])
        made = saved["made"]
    for steps, batch in enumerate(loader, start=1):
        step = [None] * world
        dist.all_gather_object(step, resume_jobs.virtual_digests([batch])[0])
        made.append(step)
        if rank == 0:
            torch.save({"loader": loader.state_dict(), "made": made}, results / "new.pt")
            (results / "new.pt").rename(checkpoint)
            jobs.publish(results / f"steps-of-{world}", str(steps))
        dist.barrier()
        if steps == STEPS and not (results / "steps-of-3").exists():
            time.sleep(120)  # torchrun restarts this trainer when the third one comes
        while steps == STEPS and world == 3 and not (results / "killed").exists():
            time.sleep(0.02)
    jobs.publish(results / f"done-{rank}", "")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
