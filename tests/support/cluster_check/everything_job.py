"""Trainer of the run of everything: an epoch over parts on the host's own disk, in step with all.

python -m support.cluster_check.everything_job DISK SECONDS

DISK has the folder of parts, and gets checkpoints and digests. SECONDS are spent on each batch.
"""

import json
import os
import re
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
from khop.partition import PartitionFolder
from khop.private_folders import written_whole

FANOUTS, BATCH_SIZE, VIRTUAL_RANKS = [10, 5], 128, 24
OPTIONS = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 7}
SAVED_EVERY = 3
"""Steps between checkpoints. What is left of 96 batches is a multiple of six trainers, then."""


def digest(batch):
    """Return a digest of a batch: nodes, edges and features."""
    weights = torch.arange(1, len(batch.n_id) + 1)
    nodes = int((batch.n_id * weights).sum()) % (1 << 61)
    edges = int((batch.edge_index[0] * 31 + batch.edge_index[1]).sum())
    return f"{nodes} {edges} {batch.x.double().sum().item():.6f}"


def parts_here(folder):
    """Return the parts that this trainer loads: home first, of those on this host."""
    hosts = int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    first = int(os.environ["GROUP_RANK"]) * folder.num_parts // hosts
    here = [part for part in range(folder.num_parts) if folder.has_part(part)]
    here.sort(key=lambda part: (part - first) % folder.num_parts)
    return here[int(os.environ["LOCAL_RANK"]) :: int(os.environ["LOCAL_WORLD_SIZE"])]


def resumed_step(disk):
    """Return the last step of which all trainers have a checkpoint, or 0."""
    mine = [int(re.sub(r"\D", "", path.name)) for path in disk.glob("checkpoint-*")]
    steps = [None] * dist.get_world_size()
    dist.all_gather_object(steps, mine)
    return max(set.intersection(*map(set, steps)), default=0)


def main(disk, seconds):
    """Train, and print times and counts of the epoch."""
    context = init_worker_group(timeout=120)
    store = {"store": context.store, "rank": context.rank, "world_size": context.world_size}
    dist.init_process_group("gloo", **store)
    home, *others = parts_here(PartitionFolder(disk / "parts"))
    loader = DistNeighborLoader(
        DistDataset().load(disk / "parts", home, also_serve=others),
        FANOUTS,
        "train_mask",
        num_virtual_ranks=VIRTUAL_RANKS,
        worker_options=MpDistSamplingWorkerOptions(num_workers=1),
        **OPTIONS,
    )
    step = resumed_step(disk)
    if step:
        loader.load_state_dict(torch.load(disk / f"checkpoint-{step}")["loader"])
    digests = (disk / f"digests-{context.rank}-of-{context.world_size}").open("a")
    iterator = iter(loader)
    dist.barrier()
    if context.rank == 0:
        print(f"begun at {step}", flush=True)
    begin = time.monotonic()
    for batch in iterator:
        digests.write(f"{step} {digest(batch)}\n")
        digests.flush()
        time.sleep(seconds)
        dist.all_reduce(torch.ones(1))
        step += 1
        if context.rank == 0:
            print(f"step {step}", flush=True)
        if os.environ["LOCAL_RANK"] == "0" and step % SAVED_EVERY == 0:
            with written_whole(disk / f"checkpoint-{step}") as file:
                torch.save({"loader": loader.state_dict()}, file)
    stats = loader.stats()
    found = {"seconds": time.monotonic() - begin, "rows": stats.rows, "steps": step}
    print("epoch " + json.dumps({**found, "remote_bytes": stats.remote_bytes}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
