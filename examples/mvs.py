"""Minimal variance sampling on the Debian package graph: gradients give the chances of seeds.

    python examples/mvs.py
    python examples/mvs.py --uniform  # the same training with uniform seeds

Gradients of a batch vary for two reasons: the loader draws neighbours, and it draws seeds. MVS-GNN
(https://arxiv.org/abs/2006.13866) reduces the variance from seeds. The chance of each seed is
proportional to the norm of its gradient in an earlier step. The loss of a seed is divided by its
chance. A step's gradient therefore has no bias and less variance.

This example uses the norm of the gradient of the loss with respect to the logits. `ByGradient` is
a `batch_sampler` of khop's loader. A batch has the positions of its seeds in `input_id`.
"""

import argparse
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GraphSAGE

from khop.datasets import DebianPackages
from khop.loader import NeighborLoader


class ByGradient:
    """Batches of seeds drawn with replacement, in proportion to weights that training updates.

    Args:
        num_seeds: number of seeds.
        batch_size: number of seeds per batch.
        explore: share of uniform draws, which gives every seed a chance.
        generator: random generator of the draws. The loader saves its state to resume epochs.
    """

    def __init__(
        self, num_seeds: int, batch_size: int, explore: float, generator: torch.Generator
    ) -> None:
        self.norms = torch.ones(num_seeds)
        self.batch_size, self.explore, self.generator = batch_size, explore, generator

    def chances(self) -> Tensor:
        """Return the chance of each seed in a draw."""
        shares = self.norms / self.norms.sum()
        return self.explore / len(shares) + (1 - self.explore) * shares

    def __len__(self) -> int:
        return max(1, len(self.norms) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            drawn = torch.multinomial(
                self.chances(), self.batch_size, True, generator=self.generator
            )
            yield drawn.tolist()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uniform", action="store_true", help="draw seeds uniformly instead")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--explore", type=float, default=0.5, help="share of uniform draws")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train, and print the spread of gradients and the test accuracy."""
    args = parse_arguments()
    torch.manual_seed(args.seed)
    data = DebianPackages(undirected=True)[0]
    seeds = data.train_mask.nonzero().view(-1)
    explore = 1.0 if args.uniform else args.explore
    generator = torch.Generator().manual_seed(args.seed)
    plan = ByGradient(len(seeds), args.batch_size, explore, generator)
    loader = NeighborLoader(data, [10, 10], seeds, batch_sampler=plan, seed=args.seed)
    model = GraphSAGE(data.num_features, args.hidden, 2, int(data.y.max()) + 1, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        begun, spread = time.perf_counter(), []
        model.train()
        for batch in loader:
            own = batch.input_id  # positions of the seeds in `seeds`
            weight = 1 / (len(seeds) * plan.chances()[own])
            optimizer.zero_grad()
            logits = model(batch.x, batch.edge_index)[: batch.batch_size]
            losses = F.cross_entropy(logits, batch.y[: batch.batch_size], reduction="none")
            (losses * weight).mean().backward()
            optimizer.step()
            with torch.no_grad():
                errors = logits.softmax(1)
                errors[torch.arange(len(own)), batch.y[: batch.batch_size]] -= 1
                norms = errors.norm(dim=1)
                plan.norms[own] = norms
                spread.append(float((norms * weight).std() / (norms * weight).mean()))
        print(
            f"epoch {epoch}: gradient norms spread by {sum(spread) / len(spread):.2f} of the mean, "
            f"{time.perf_counter() - begun:.1f} s",
            flush=True,
        )
    model.eval()
    with torch.no_grad():
        right = model(data.x, data.edge_index).argmax(1) == data.y
    print(f"test accuracy: {float(right[data.test_mask].float().mean()):.4f}")


if __name__ == "__main__":
    main()
