"""Common code of the Debian examples: arguments, loaders, training, accuracy, and report."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from khop.distributed import (
    DistContext,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
    node_split,
)
from khop.partition import PartitionFolder

NUM_SECTIONS = 58

Predict = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""Function from a model and a batch to logits and labels of the batch's seeds."""


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that the examples share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--parts", required=True, help="partition folder")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=512, help="seeds per batch and trainer")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--num-workers", type=int, default=1, help="sampler processes per trainer")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="folder for run.json and run.png")
    return parser


def start(args: argparse.Namespace) -> tuple[DistContext, DistDataset]:
    """Join the trainers and open a partition: trainer i opens i modulo the number of partitions."""
    context = init_worker_group()
    # After a restart, torchrun's own store still has addresses of the previous trainers.
    dist.init_process_group(
        "gloo", store=context.store, rank=context.rank, world_size=context.world_size
    )
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    part = context.rank % PartitionFolder(args.parts).num_parts
    return context, DistDataset().load(args.parts, partition_idx=part)


def make_loaders(
    dataset: DistDataset, fanouts: Any, args: argparse.Namespace, node_type: str | None = None
) -> dict[str, DistNeighborLoader]:
    """Return one loader per split, over this trainer's share of the seeds.

    Args:
        dataset: the trainer's partition.
        fanouts: neighbours per hop, or per edge type and hop.
        args: options of `argument_parser`.
        node_type: node type of the seeds. If None, the graph is homogeneous.
    """
    loaders = {}
    for name in ("train", "val", "test"):
        seeds = node_split(f"{name}_mask", dataset, node_type=node_type)
        loaders[name] = DistNeighborLoader(
            dataset,
            fanouts,
            seeds if node_type is None else (node_type, seeds),
            batch_size=args.batch_size,
            shuffle=name == "train",
            seed=args.seed,
            worker_options=MpDistSamplingWorkerOptions(num_workers=args.num_workers),
        )
    return loaders


def fit(
    model: DistributedDataParallel,
    loaders: dict[str, DistNeighborLoader],
    predict: Predict,
    context: DistContext,
    args: argparse.Namespace,
    others: Sequence[torch.optim.Optimizer] = (),
) -> None:
    """Train, print loss and accuracy of each epoch, and report the run.

    `others` are optimisers beside Adam, of what are no parameters of the model.
    """
    optimizers = [torch.optim.Adam(model.parameters(), lr=args.lr), *others]
    train, first = loaders["train"], context.rank == 0
    history = []
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        label = f"epoch {epoch}/{args.epochs}"
        loss = train_epoch(model, train, predict, optimizers, label, first)
        seconds = time.perf_counter() - begin
        entry = {"epoch": epoch, "loss": loss, "val": accuracy(model, loaders["val"], predict)}
        seeds = train.stats().seeds / epoch * context.world_size / seconds
        history.append({**entry, "seconds": seconds, "seeds_per_second": seeds})
        if first:
            print(
                f"epoch {epoch}: loss {loss:.3f}, validation accuracy {entry['val']:.4f}, "
                f"{seconds:.1f} s, {seeds:,.0f} seeds/s",
                flush=True,
            )
    history[-1]["test"] = accuracy(model, loaders["test"], predict)
    shares = gather_shares(train)
    if first:
        report(history, shares, args.output)


def train_epoch(model, loader, predict: Predict, optimizers, label: str, show: bool) -> float:
    """Return the mean loss of an epoch."""
    model.train()
    total = 0.0
    for batch in tqdm(loader, desc=label, disable=None if show else True, leave=False):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.cross_entropy(*predict(model, batch))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        total += float(loss.detach())
    return total / max(1, len(loader))


@torch.no_grad()
def accuracy(model, loader, predict: Predict) -> float:
    """Return the share of correct predictions over the seeds of all trainers."""
    model.eval()
    counts = torch.zeros(2)
    for batch in loader:
        out, y = predict(model.module, batch)
        counts += torch.tensor([(out.argmax(-1) == y).sum(), len(y)])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def gather_shares(loader) -> list[dict[str, float]]:
    """Return the shares of local, cached, reused and remote rows of each trainer."""
    shares: list = [None] * dist.get_world_size()
    dist.all_gather_object(shares, loader.stats().shares())
    return shares


def report(history: list[dict], shares: list[dict[str, float]], output: Path | None) -> None:
    """Print shares of rows and test accuracy, and write run.json and run.png to `output`."""
    for rank, share in enumerate(shares):
        print(
            f"trainer {rank}: {share['local']:.1%} of rows local, {share['cached']:.1%} cached, "
            f"{share['reused']:.1%} reused, {share['remote']:.1%} remote"
        )
    print(f"test accuracy: {history[-1]['test']:.4f}")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "run.json").write_text(json.dumps({"history": history, "shares": shares}))
        draw(history, shares, output / "run.png")
        print(f"chart: {output / 'run.png'}")


def draw(history: list[dict], shares: list[dict[str, float]], file: Path) -> None:
    """Write a chart of a run: loss, accuracy, and origin of rows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    epochs = [entry["epoch"] for entry in history]
    axes[0].plot(epochs, [entry["loss"] for entry in history], marker="o")
    axes[0].set(title="Training loss", xlabel="epoch", xticks=epochs)
    axes[1].plot(epochs, [entry["val"] for entry in history], marker="o", color="tab:green")
    axes[1].axhline(history[-1]["test"], linestyle="--", color="tab:gray", label="test, at the end")
    axes[1].set(title="Validation accuracy", xlabel="epoch", xticks=epochs)
    axes[1].legend(loc="lower right")
    left = [0.0] * len(shares)
    names = [f"trainer {rank}" for rank in range(len(shares))]
    colours = {"local": "tab:blue", "cached": "tab:cyan", "reused": "tab:green"}
    for origin, colour in {**colours, "remote": "tab:orange"}.items():
        widths = [share[origin] for share in shares]
        axes[2].barh(names, widths, left=left, label=origin, color=colour)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes[2].set(title="Origin of feature rows", xlim=(0, 1), xlabel="share of rows")
    axes[2].legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=4, frameon=False)
    figure.savefig(file, dpi=120)
