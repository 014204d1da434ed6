"""Trainer of a Slurm job that is put back into the queue: it saves its loader when it is to stop.

python -m support.cluster_check.requeue_job PARTS FOLDER

FOLDER gets a checkpoint, digests and, at the end, a file `done-RANK` for each trainer.
"""

import os
import sys
import time
from pathlib import Path

import torch

import khop
from khop.distributed import get_context
from khop.private_folders import written_whole
from support.cluster.launched import worker_loader


def digest(batch):
    """Return a digest of a batch's nodes and edges."""
    weights = torch.arange(1, len(batch.n_id) + 1)
    return f"{int((batch.n_id * weights).sum())} {int(batch.edge_index.sum())}"


def main(parts, folder):
    """Make an epoch, slowly. If it is to stop, save the loader's state and leave."""
    khop.stopping()  # from here on, a signal is a request
    loader = worker_loader(parts)
    rank = get_context().rank
    checkpoint = folder / f"checkpoint-{rank}"
    if checkpoint.exists():
        loader.load_state_dict(torch.load(checkpoint))
    print(f"begins, restart {os.environ.get('SLURM_RESTART_COUNT', '0')}", flush=True)
    for batch in loader:
        with (folder / f"digests-{rank}").open("a") as file:
            file.write(digest(batch) + "\n")
        time.sleep(0.1)
        if khop.stopping():
            with written_whole(checkpoint) as file:
                torch.save(loader.state_dict(), file)
            print(f"saved, {loader.stats().restarts} samplers restarted", flush=True)
            return
    (folder / f"done-{rank}").touch()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
