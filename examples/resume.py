"""GraphSAGE under DDP that resumes in the middle of an epoch after a trainer has died.

    khop partition debian parts --num-parts 2 --undirected
    torchrun --standalone --nproc-per-node=2 --max-restarts=2 \
        examples/resume.py --parts parts --checkpoints checkpoints --die-at 40

Every few batches, all trainers together write a checkpoint with `torch.distributed.checkpoint`. The
checkpoint contains the model, the optimizer and the losses. It also contains the state of each
trainer's loader and of each trainer's torch generator, which dropout uses.

At batch 40, the last trainer kills itself. torchrun restarts all trainers, and they load the newest
checkpoint. The loader then makes exactly the batches that were not used before. All digits of the
losses are therefore the same as in a run without `--die-at`.

With more than two trainers, the last digits of the losses may differ. The cause is DDP, not the
loader. In its first step, DDP uses other gradient buckets than later. Sums over trainers then have
other rounding errors.
"""

import argparse
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from debian_sage import predict
from debian_training import NUM_SECTIONS, accuracy, argument_parser, make_loaders, start
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from khop.distributed import DistNeighborLoader


class Training:
    """State of a run that `torch.distributed.checkpoint` saves and loads.

    Attributes:
        model: the model, in DDP.
        optimizer: the optimizer of the model.
        loader: the loader of training batches.
        losses: mean loss over trainers per batch, [num_batches of all epochs]. Zero from `step` on.
        step: number of completed batches.
    """

    def __init__(self, model: nn.Module, loader: DistNeighborLoader, args: argparse.Namespace):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        self.loader = loader
        self.losses = torch.zeros(args.epochs * len(loader))
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state. Keys of values that differ between trainers contain the rank."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "loader": self.loader.state_dict(),
            "torch": {f"rank-{dist.get_rank()}": torch.get_rng_state()},
            "losses": self.losses,
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set model, optimizer, loader, generator, losses and step to a saved state."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["torch"][f"rank-{dist.get_rank()}"])
        self.losses, self.step = state["losses"], state["step"]


class Checkpoints:
    """Folder of checkpoints. The file `newest` names the last complete checkpoint.

    If a trainer dies during a write, the previous checkpoint stays in place.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest = folder / "newest"

    def save(self, training: Training) -> None:
        """Write a checkpoint and remove the previous one. All trainers call it together."""
        folder = self._folder / f"step-{training.step}"
        dcp.save({"training": training}, checkpoint_id=folder)
        if dist.get_rank() > 0:
            return
        previous = self._newest.read_text() if self._newest.exists() else None
        written = self._folder / "newest.new"
        written.write_text(folder.name)
        written.replace(self._newest)
        if previous not in (None, folder.name):
            shutil.rmtree(self._folder / str(previous))

    def load(self, training: Training) -> None:
        """Load the newest checkpoint, if there is one. All trainers call it together."""
        if self._newest.exists():
            newest = self._newest.read_text()
            dcp.load({"training": training}, checkpoint_id=self._folder / newest)
            if dist.get_rank() == 0:
                print(f"resuming from checkpoint {newest}", flush=True)


def train(training: Training, checkpoints: Checkpoints, args: argparse.Namespace) -> None:
    """Train from the present step to the end of the last epoch."""
    while training.step < len(training.losses):
        training.model.train()
        for batch in training.loader:  # after a restart, the rest of the epoch
            loss = train_step(training, batch)
            training.losses[training.step] = loss
            training.step += 1
            if training.step % args.every == 0:
                checkpoints.save(training)
            if training.step == args.die_at:
                die_once()


def train_step(training: Training, batch: Any) -> Tensor:
    """Train on one batch and return the mean loss over trainers."""
    training.optimizer.zero_grad()
    loss = F.cross_entropy(*predict(training.model, batch))
    loss.backward()
    training.optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def die_once() -> None:
    """Kill the last trainer, unless torchrun has restarted it before."""
    is_last = dist.get_rank() == dist.get_world_size() - 1
    if is_last and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train, resume after failures, and print the losses."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of checkpoints")
    parser.add_argument("--every", type=int, default=10, help="batches between checkpoints")
    parser.add_argument("--die-at", type=int, help="batch after which the last trainer dies once")
    args = parser.parse_args()
    _, dataset = start(args)
    loaders = make_loaders(dataset, args.fanout, args)
    _, (width,) = dataset.node_attr("x")
    model = GraphSAGE(width, args.hidden, len(args.fanout), NUM_SECTIONS, dropout=0.5)
    training = Training(DistributedDataParallel(model), loaders["train"], args)
    checkpoints = Checkpoints(args.checkpoints)
    checkpoints.load(training)
    train(training, checkpoints, args)
    final = accuracy(training.model, loaders["test"], predict)
    if dist.get_rank() == 0:
        for epoch, losses in enumerate(training.losses.split(len(loaders["train"])), start=1):
            print(f"epoch {epoch}: losses", *(f"{loss:.9g}" for loss in losses.tolist()))
        print(f"test accuracy: {final:.4f}")
    del training  # PyTorch can hang if DDP is the last to hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
