"""Two trainers that multiprocessing starts.

python -m support.cluster.fork_jobs METHOD HOW_THE_FIRST_ENDS FOLDER PORT

METHOD is the start method of the first. The second is forked. Prints the exit status of both as
JSON.
"""

import json
import multiprocessing
import os
import sys
import time

import torch

from khop.distributed import DistDataset, DistNeighborLoader, init_worker_group

SECONDS = 200


def train(rank, ending, root, port, gate, has_begun):
    """Run a trainer with one partition. The second continues when the first is at its end."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    init_worker_group(timeout=10 * SECONDS)
    loader = DistNeighborLoader(
        DistDataset().load(root, rank), [3], torch.arange(100), batch_size=10, seed=0
    )
    batches = iter(loader)
    next(batches)
    if rank == 0:
        assert has_begun.wait(SECONDS)  # it needs this one's partition for that
        if ending == "fail":
            raise KeyError("a failure of the user's")
        gate.set()
        if ending == "exit":
            sys.exit(0)
        return
    has_begun.set()
    assert gate.wait(SECONDS)
    time.sleep(0.5)
    assert sum(batch.batch_size for batch in batches) == 90


def main(method, ending, root, port):
    contexts = multiprocessing.get_context(method), multiprocessing.get_context("fork")
    if method == "forkserver":
        contexts[0].set_forkserver_preload(["torch", "khop.distributed", "khop.partition"])
    common = ending, root, port, contexts[0].Event(), contexts[0].Event()
    trainers = [
        context.Process(target=train, args=(rank, *common)) for rank, context in enumerate(contexts)
    ]
    for trainer in trainers:
        trainer.start()
    trainers[0].join(SECONDS)
    if ending == "fail":  # it has not waited for the other one, which waits for it
        trainers[1].kill()
    trainers[1].join(SECONDS)
    print(json.dumps([trainer.exitcode for trainer in trainers]), flush=True)
    for trainer in trainers:
        trainer.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
