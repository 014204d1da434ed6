"""GraphSAGE on the Debian package graph, with batches that trainers share.

    khop partition debian parts --num-parts 2 --method stream --undirected
    torchrun --standalone --nproc-per-node=2 examples/cooperative.py --parts parts

Each trainer loads one partition. `CooperativeLoader` makes one batch for all trainers. Each trainer
holds the nodes of the batch that belong to its partition, and reads their features from that
partition. In each layer, it gets the activations of other nodes from the other trainers. The task
is the same as in `debian_sage.py`.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv

from khop.distributed import CooperativeLoader, DistDataset, init_worker_group


class Sage(nn.Module):
    """GraphSAGE whose layers fetch activations that other trainers have computed."""

    def __init__(self, width: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(width, hidden), SAGEConv(hidden, num_classes)])

    def forward(self, batch) -> torch.Tensor:
        """Return the logits of this trainer's seeds."""
        x = batch.x
        for conv, layer in zip(self.convs, batch.layers, strict=True):
            x = conv((layer.sources(x), x[: layer.num_dst]), layer.edge_index)
            if conv is not self.convs[-1]:
                x = F.dropout(x.relu(), 0.5, self.training)
        return x


def run_epoch(model, loader, optimizer=None) -> tuple[float, float]:
    """Return mean loss and accuracy over the seeds of all trainers."""
    model.train(optimizer is not None)
    sums = torch.zeros(3)
    with torch.set_grad_enabled(optimizer is not None):
        for batch in loader:
            logits, y = model(batch), batch.y[: batch.batch_size]
            loss = F.cross_entropy(logits, y, reduction="sum")
            sums += torch.tensor([float(loss.detach()), (logits.argmax(1) == y).sum(), len(y)])
            if optimizer is not None:
                optimizer.zero_grad()
                # DDP averages over trainers. The gradient of the batch is a sum over trainers.
                (loss * dist.get_world_size() / batch.num_seeds).backward()
                optimizer.step()
    dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def main() -> None:
    """Train, and print losses and test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", required=True, help="partition folder with one part per trainer")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=512, help="seeds per batch and trainer")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    context = init_worker_group()
    dist.init_process_group(
        "gloo", store=context.store, rank=context.rank, world_size=context.world_size
    )
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dataset = DistDataset().load(args.parts, partition_idx=context.rank)
    train, test = (
        CooperativeLoader(
            dataset, [10, 10], f"{name}_mask", args.batch_size, name == "train", seed=args.seed
        )
        for name in ("train", "test")
    )
    _, (width,) = dataset.node_attr("x")
    model = DistributedDataParallel(Sage(width, args.hidden, 58))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        begun = time.perf_counter()
        loss, _ = run_epoch(model, train, optimizer)
        if context.rank == 0:
            print(
                f"epoch {epoch}: loss {loss:.3f}, {time.perf_counter() - begun:.1f} s", flush=True
            )
    _, accuracy = run_epoch(model.module, test)
    if context.rank == 0:
        print(f"test accuracy: {accuracy:.4f}")
    del model  # PyTorch can hang if DDP is the last to hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
