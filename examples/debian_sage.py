"""GraphSAGE on the Debian package graph, under DDP, from a partition folder.

    khop partition debian parts --num-parts 2 --method frequency --fanout 10,10 --undirected
    torchrun --standalone --nproc-per-node=2 examples/debian_sage.py --parts parts

Each trainer loads one partition (trainer i loads partition i modulo their number), starts its own
sampler processes, and trains on its share of the training packages. Rows that its partition does
not hold come from copies of hot rows or from the other partition's server. The task: tell a
package's section of the archive from its description and its dependencies, for packages of sources
that training has not seen.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE
from tqdm import tqdm

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
    node_split,
)


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", required=True, help="partition folder")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=512, help="seeds a batch and trainer")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--num-workers", type=int, default=1, help="sampler processes a trainer")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="folder for run.json and run.png")
    return parser.parse_args()


def make_loader(dataset: DistDataset, split: str, args: argparse.Namespace, shuffle: bool):
    """This trainer's share of a split."""
    return DistNeighborLoader(
        dataset,
        args.fanout,
        node_split(split, dataset),
        batch_size=args.batch_size,
        shuffle=shuffle,
        collect_features=True,
        seed=args.seed,
        worker_options=MpDistSamplingWorkerOptions(num_workers=args.num_workers),
    )


def train_epoch(model, loader, optimizer, label: str, show: bool) -> float:
    """Mean loss of an epoch."""
    model.train()
    total = 0.0
    for batch in tqdm(loader, desc=label, disable=None if show else True, leave=False):
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / max(1, len(loader))


@torch.no_grad()
def accuracy(model, loader) -> float:
    """Share of right answers over the seeds of all trainers."""
    model.eval()
    counts = torch.zeros(2)
    for batch in loader:
        out = model.module(batch.x, batch.edge_index)[: batch.batch_size]
        counts[0] += (out.argmax(-1) == batch.y[: batch.batch_size]).sum()
        counts[1] += batch.batch_size
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def gather_shares(loader) -> list[dict[str, float]]:
    """Shares of local, cached and remote rows of each trainer."""
    shares: list = [None] * dist.get_world_size()
    dist.all_gather_object(shares, loader.stats().shares())
    return shares


def draw(history: list[dict], shares: list[dict[str, float]], file: Path) -> None:
    """The picture of a run: loss, accuracy, and where rows came from."""
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
    for kind, colour in (("local", "tab:blue"), ("cached", "tab:cyan"), ("remote", "tab:orange")):
        widths = [share[kind] for share in shares]
        axes[2].barh(names, widths, left=left, label=kind, color=colour)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes[2].set(title="Where feature rows came from", xlim=(0, 1), xlabel="share of rows")
    axes[2].legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3, frameon=False)
    figure.savefig(file, dpi=120)


def main() -> None:
    """Trains, reports, draws."""
    args = parse_arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    context = init_worker_group()
    first = context.rank == 0
    dataset = DistDataset()
    dataset.load(args.parts, partition_idx=context.rank % _num_parts(args.parts))
    train = make_loader(dataset, "train_mask", args, shuffle=True)
    validation = make_loader(dataset, "val_mask", args, shuffle=False)
    test = make_loader(dataset, "test_mask", args, shuffle=False)

    _, (width,) = dataset.node_attr("x")
    model = GraphSAGE(width, args.hidden, num_layers=len(args.fanout), out_channels=58, dropout=0.5)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    history = []
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        loss = train_epoch(model, train, optimizer, f"epoch {epoch}/{args.epochs}", first)
        seconds = time.perf_counter() - begin
        seeds = train.stats().seeds / epoch * context.world_size / seconds
        entry = {"epoch": epoch, "loss": loss, "val": accuracy(model, validation)}
        history.append({**entry, "seeds_per_second": seeds})
        if first:
            print(
                f"epoch {epoch}: loss {loss:.3f}, validation accuracy {entry['val']:.4f}, "
                f"{seeds:,.0f} seeds/s",
                flush=True,
            )
    history[-1]["test"] = accuracy(model, test)
    shares = gather_shares(train)
    if first:
        report(history, shares, args.output)
    dist.destroy_process_group()


def report(history: list[dict], shares: list[dict[str, float]], output: Path | None) -> None:
    """What the run came to."""
    for rank, share in enumerate(shares):
        print(
            f"trainer {rank}: {share['local']:.1%} of rows local, {share['cached']:.1%} cached, "
            f"{share['remote']:.1%} remote"
        )
    print(f"test accuracy: {history[-1]['test']:.4f}")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "run.json").write_text(json.dumps({"history": history, "shares": shares}))
        draw(history, shares, output / "run.png")
        print(f"picture: {output / 'run.png'}")


def _num_parts(root: str) -> int:
    from khop.partition import PartitionFolder

    return PartitionFolder(root).num_parts


if __name__ == "__main__":
    main()
