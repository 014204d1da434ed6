"""GraphSAGE under DDP that goes on where it was when a trainer dies in the middle of an epoch.

    khop partition debian parts --num-parts 2 --undirected
    torchrun --standalone --nproc-per-node=2 --max-restarts=2 \
        examples/resume.py --parts parts --checkpoints checkpoints --die-at 40

Every few batches all trainers write one checkpoint with `torch.distributed.checkpoint`: model,
optimizer, the losses so far, and of each trainer its loader and the state of torch's generator
(which dropout asks). At batch 40 the last trainer kills itself, torchrun starts all of them again,
and they load the newest checkpoint. The losses are, digit for digit, those of a run without
`--die-at`: the loader makes exactly the batches that had not been used.

(With more than two trainers the last digits may differ, not because of the loader: DDP cuts
gradients into other buckets in its first step, so that sums over trainers are rounded otherwise.)
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
    """Everything that a checkpoint holds; `torch.distributed.checkpoint` asks it for its state.

    Attributes:
        model: the model, in DDP.
        optimizer: its optimizer.
        loader: of training batches.
        losses: [number of batches of all epochs], the mean over trainers, as far as there are any.
        step: number of batches so far.
    """

    def __init__(self, model: nn.Module, loader: DistNeighborLoader, args: argparse.Namespace):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        self.loader = loader
        self.losses = torch.zeros(args.epochs * len(loader))
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        """The state; what differs between trainers is under keys that do, too."""
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
        """Goes on from there."""
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
    """A folder of checkpoints; the file `newest` names the last one that all trainers have written.

    Whoever is killed while writing one leaves the one before it in place.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest = folder / "newest"

    def save(self, training: Training) -> None:
        """Called by all trainers."""
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
        """Called by all trainers; does nothing if there is no checkpoint yet."""
        if self._newest.exists():
            newest = self._newest.read_text()
            dcp.load({"training": training}, checkpoint_id=self._folder / newest)
            if dist.get_rank() == 0:
                print(f"going on from checkpoint {newest}", flush=True)


def train(training: Training, checkpoints: Checkpoints, args: argparse.Namespace) -> None:
    """Trains to the end of the last epoch, from wherever training has come to."""
    while training.step < len(training.losses):
        training.model.train()
        for batch in training.loader:  # of an epoch that was interrupted, what is left
            loss = train_step(training, batch)
            training.losses[training.step] = loss
            training.step += 1
            if training.step % args.every == 0:
                checkpoints.save(training)
            if training.step == args.die_at:
                die_once()


def train_step(training: Training, batch: Any) -> Tensor:
    """One batch; returns the mean loss of all trainers."""
    training.optimizer.zero_grad()
    loss = F.cross_entropy(*predict(training.model, batch))
    loss.backward()
    training.optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def die_once() -> None:
    """Kills the last trainer, if torchrun has not started it again before."""
    is_last = dist.get_rank() == dist.get_world_size() - 1
    if is_last and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Trains, whatever happens; prints the losses."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for them")
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
        for number, epoch in enumerate(training.losses.split(len(loaders["train"])), start=1):
            print(f"epoch {number}: losses", *(f"{loss:.9g}" for loss in epoch.tolist()))
        print(f"test accuracy: {final:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
