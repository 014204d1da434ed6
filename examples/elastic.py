"""GraphSAGE under DDP while machines join and leave in the middle of an epoch.

    khop partition debian parts --num-parts 3 --undirected
    torchrun --nnodes=1:3 --max-restarts=9 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \
        examples/elastic.py --parts parts --checkpoints checkpoints

Run the last command on one to three machines, or several times on one machine, at any time. Set
`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` first. Otherwise torchrun of torch 2.13 keeps the addresses
of the first start, and a machine that joins later waits for them in vain. HOST is the first
machine, which must stay.

When another machine joins or ends, torchrun restarts all trainers as more or fewer. They load the
newest checkpoint and make the batches that are missing. The epoch's seeds are divided among 12
virtual ranks, whatever the number of trainers, so batches do not change. The folder must be visible
on all machines, and so must the checkpoints.

At the end of an epoch it prints how many batches were made by one, two or three trainers, and how
many seeds were used: all of them, each once. Only the last round of batches may repeat some.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from debian_training import NUM_SECTIONS, argument_parser
from resume import train_step
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from khop.distributed import DistDataset, DistNeighborLoader, init_worker_group
from khop.partition import PartitionFolder


class Training:
    """State of a run, which any number of trainers can load.

    Attributes:
        model: the model, in DDP.
        optimizer: the optimizer of the model.
        loader: the loader of training batches.
        steps: for each step of the epoch, the ids of each trainer's seeds.
    """

    def __init__(self, model: Any, loader: DistNeighborLoader, args: argparse.Namespace) -> None:
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        self.steps: list[list[list[int]]] = []
        self._file: Path = args.checkpoints / "newest.pt"

    def save(self) -> None:
        """Write a checkpoint. Trainer 0 does, because all have the same state."""
        if dist.get_rank() == 0:
            parts = {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**state, "steps": self.steps}, self._file.with_suffix(".new"))
            self._file.with_suffix(".new").replace(self._file)
        dist.barrier()

    def load(self) -> None:
        """Load the newest checkpoint, if there is one."""
        if self._file.exists():
            state = torch.load(self._file)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.loader.load_state_dict(state["loader"])
            self.steps = state["steps"]

    def train_epoch(self) -> None:
        """Train to the end of the epoch, and save after each step."""
        for batch in self.loader:
            train_step(self, batch)
            seeds: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(seeds, batch.n_id[: batch.batch_size].tolist())
            self.steps.append(seeds)
            self.save()
        if dist.get_rank() == 0:
            worlds = Counter(len(step) for step in self.steps)
            used = [seed for step in self.steps for seeds in step for seed in seeds]
            by = ", ".join(f"{n} steps by {world} trainers" for world, n in sorted(worlds.items()))
            print(f"{by}; {len(set(used))} seeds, {len(used) - len(set(used))} twice", flush=True)
        self.steps = []


def main() -> None:
    """Train, and go on after each restart."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of checkpoints")
    args = parser.parse_args()
    args.checkpoints.mkdir(parents=True, exist_ok=True)
    context = init_worker_group()
    rank, size = context.rank, context.world_size
    dist.init_process_group("gloo", store=context.store, rank=rank, world_size=size)
    num_parts = PartitionFolder(args.parts).num_parts
    parts = list(range(rank, num_parts, size)) or [rank % num_parts]
    dataset = DistDataset().load(args.parts, parts[0], also_serve=parts[1:])
    loader = DistNeighborLoader(
        dataset,
        [10, 10],
        "train_mask",  # the seeds of all trainers
        batch_size=args.batch_size,
        shuffle=True,
        seed=args.seed,
        num_virtual_ranks=12,
    )
    _, (width,) = dataset.node_attr("x")
    model = DistributedDataParallel(GraphSAGE(width, args.hidden, 2, NUM_SECTIONS))
    training = Training(model, loader, args)
    training.load()
    begun = loader.state_dict()["rank-0"]["epochs"] - bool(training.steps)
    for _ in range(begun, args.epochs):
        training.train_epoch()
    del training, model  # PyTorch can hang if DDP is the last to hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
