"""GraphSAGE on the Debian package graph, in memory, with any sampling method.

    python examples/methods.py --method labor
    python examples/methods.py --method saint-walk --epochs 5
    python examples/methods.py --list

The same model trains with every method. Batches differ:

- Methods that draw neighbourhoods put the seeds first, and the loss is over the seeds. With
  `ToLayers`, each layer computes only the nodes that the next layer reads.
- Methods that choose a subgraph train on all training packages in the subgraph. If batches have
  `node_norm`, `node_norm` weights the losses.
- ShaDow makes one subgraph per root. `root_n_id` holds the positions of the roots.

If batches have `edge_norm`, `edge_norm` weights the messages. Test accuracy is computed over all
neighbours, so that methods differ in training only. `ppr` and `pinsage` are exceptions, because
they make their own edges. Their test uses these edges.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv

from khop.datasets import DebianPackages
from khop.loader import (
    ClusterData,
    ClusterLoader,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    NeighborLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
    ToLayers,
)
from khop.sampler import Hgt, Labor, Ladies, NeighborSampling, PinSage, PoissonLadies, Ppr

FANOUTS = [10, 10]
LAYERS = ToLayers()


def neighborhoods(
    method: Any, split: ToLayers | None = LAYERS
) -> Callable[[Data, argparse.Namespace], NeighborLoader]:
    """Return a function that makes a loader of neighbourhoods of the training packages."""

    def make(data: Data, args: argparse.Namespace) -> NeighborLoader:
        options = {"batch_size": args.batch_size, "shuffle": True, "seed": args.seed}
        return NeighborLoader(data, method, data.train_mask, transform=split, **options)

    return make


def saint(loader: Any, share: float, *sizes: int) -> Callable[[Data, argparse.Namespace], Any]:
    """Return a function that makes a GraphSAINT loader. A batch draws `share` x num_nodes."""

    def make(data: Data, args: argparse.Namespace) -> Any:
        steps = -(-int(data.train_mask.sum()) // args.batch_size)
        options = {"num_steps": steps, "sample_coverage": 20, "log": False, "seed": args.seed}
        return loader(data, int(share * data.num_nodes), *sizes, **options)

    return make


def clusters(data: Data, args: argparse.Namespace) -> ClusterLoader:
    """Return a loader of twelve METIS clusters per batch. Without METIS, clusters are id ranges."""
    try:
        parts = ClusterData(data, 600, log=False)
    except ImportError:
        blocks = torch.arange(data.num_nodes) * 600 // data.num_nodes
        parts = ClusterData(data, 600, assignment=blocks)
    return ClusterLoader(parts, batch_size=12, shuffle=True, seed=args.seed)


def shadow(data: Data, args: argparse.Namespace) -> ShaDowKHopSampler:
    """Return a loader of one subgraph per root."""
    options = {"batch_size": args.batch_size, "shuffle": True, "seed": args.seed}
    return ShaDowKHopSampler(data, 2, 5, data.train_mask, **options)


def random_nodes(data: Data, args: argparse.Namespace) -> RandomNodeLoader:
    """Return a loader of random nodes and the edges between them."""
    return RandomNodeLoader(data, num_parts=8, shuffle=True, seed=args.seed)


OWN_EDGES = {"ppr": Ppr(20, eps=1e-3), "pinsage": PinSage(10, num_random_walks=20)}
"""Methods that make their own edges. Models train and are tested on these edges."""

METHODS: dict[str, Callable[[Data, argparse.Namespace], Any]] = {
    "uniform": neighborhoods(FANOUTS),
    "uniform-layers": neighborhoods(NeighborSampling(FANOUTS, layer_wise=True)),
    "labor": neighborhoods(Labor(FANOUTS)),
    "labor-1": neighborhoods(Labor(FANOUTS, importance=1, sequential=False, edge_norm="hajek")),
    "labor-*": neighborhoods(Labor(FANOUTS, importance=-1, sequential=False, edge_norm="hajek")),
    "labor-dependent": neighborhoods(Labor(FANOUTS, batch_dependency=32)),
    "poisson-ladies": neighborhoods(PoissonLadies([2000, 4000])),
    "ladies": neighborhoods(Ladies([2000, 4000])),
    "hgt": neighborhoods(Hgt([3000, 3000]), None),
    **{name: neighborhoods(method, None) for name, method in OWN_EDGES.items()},
    "shadow": shadow,
    "saint-node": saint(GraphSAINTNodeSampler, 0.15),
    "saint-edge": saint(GraphSAINTEdgeSampler, 0.06),
    "saint-walk": saint(GraphSAINTRandomWalkSampler, 0.05, 2),
    "cluster": clusters,
    "random-node": random_nodes,
}
"""Function of each method that makes its loader."""


Step = tuple[Tensor, Tensor | None, tuple[int, int]]
"""Edges of a layer, their weights, and the counts of sources and destinations."""


class Sage(nn.Module):
    """GraphSAGE with weighted messages: a mean of weight x neighbour, plus the node itself."""

    def __init__(self, width: int, hidden: int, num_classes: int, num_layers: int) -> None:
        super().__init__()
        sizes = [width, *[hidden] * (num_layers - 1), num_classes]
        self.layers = nn.ModuleList(GraphConv(a, b, aggr="mean") for a, b in pairwise(sizes))

    def forward(self, x: Tensor, steps: list[Step]) -> Tensor:
        """Return logits of the last layer's destinations, [num_nodes, num_classes]."""
        for layer, (edge_index, weight, size) in zip(self.layers, steps, strict=True):
            x = layer((x, x[: size[1]]), edge_index, weight)
            if layer is not self.layers[-1]:
                x = F.dropout(x.relu(), 0.5, self.training)
        return x


def steps_of(batch: Any) -> list[Step]:
    """Return the input of each layer: its own edges, or all edges of the batch."""
    weight = batch.edge_norm if "edge_norm" in batch else batch.get("edge_weight")
    if "adjs" not in batch:
        size = batch.num_nodes, batch.num_nodes
        step = batch.edge_index, scaled(weight, batch.edge_index[1], size[1]), size
        return [step] * len(FANOUTS)
    steps = []
    for (edge_index, _, size), edge_range in zip(batch.adjs, batch.edge_ranges, strict=True):
        own = None if weight is None else weight[edge_range]
        steps.append((edge_index, scaled(own, edge_index[1], size[1]), size))
    return steps


def scaled(weight: Tensor | None, rows: Tensor, num_rows: int) -> Tensor | None:
    """Return weights of edges, scaled so that the sum per row is its number of edges."""
    if weight is None:
        return None
    sums = torch.zeros(num_rows).index_add_(0, rows, weight)
    counts = torch.bincount(rows, minlength=num_rows)
    return weight * (counts / sums.clamp(min=1e-12))[rows]


def batch_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of a batch of any method."""
    logits = model(batch.x, steps_of(batch))
    if "root_n_id" in batch:
        return F.cross_entropy(logits[batch.root_n_id], batch.y)
    if "batch_size" in batch:
        return F.cross_entropy(logits[: batch.batch_size], batch.y[: batch.batch_size])
    own = batch.train_mask
    if "node_norm" not in batch:
        return F.cross_entropy(logits[own], batch.y[own])
    losses = F.cross_entropy(logits[own], batch.y[own], reduction="none")
    return (losses * batch.node_norm[own]).sum() / batch.node_norm[own].sum()


def train_epoch(model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer) -> float:
    """Train for an epoch and return the mean loss."""
    model.train()
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        loss = batch_loss(model, batch)
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / max(1, len(loader))


@torch.no_grad()
def accuracy(model: nn.Module, data: Data, mask: Tensor, method: str, seed: int = 0) -> float:
    """Return the share of correct predictions, over all neighbours or the method's own edges."""
    model.eval()
    if method not in OWN_EDGES:
        right = model(data.x, steps_of(data)).argmax(1) == data.y
        return float(right[mask].float().mean())
    right, total = 0, 0
    for batch in NeighborLoader(data, OWN_EDGES[method], mask, batch_size=4096, seed=seed):
        logits = model(batch.x, steps_of(batch))[: batch.batch_size]
        right += int((logits.argmax(1) == batch.y[: batch.batch_size]).sum())
        total += batch.batch_size
    return right / total


def make_model(data: Data, args: argparse.Namespace) -> tuple[Sage, torch.optim.Optimizer]:
    """Return the model that all methods train, and its optimizer."""
    torch.manual_seed(args.seed)
    model = Sage(data.num_features, args.hidden, int(data.y.max()) + 1, len(FANOUTS))
    return model, torch.optim.Adam(model.parameters(), lr=args.lr)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=METHODS, default="labor", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the methods' names")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=512, help="seeds per batch")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main() -> None:
    """Train, and print losses and accuracies."""
    args = parse_arguments()
    if args.list:
        print("\n".join(METHODS))
        return
    data = DebianPackages(undirected=True)[0]
    loader = METHODS[args.method](data, args)
    model, optimizer = make_model(data, args)
    for epoch in range(1, args.epochs + 1):
        begun = time.perf_counter()
        loss = train_epoch(model, loader, optimizer)
        seconds = time.perf_counter() - begun
        value = accuracy(model, data, data.val_mask, args.method)
        print(
            f"epoch {epoch}: loss {loss:.3f}, validation accuracy {value:.4f}, {seconds:.1f} s",
            flush=True,
        )
    stats = loader.stats()
    print(f"{stats.nodes / stats.batches:,.0f} nodes per batch")
    print(f"test accuracy: {accuracy(model, data, data.test_mask, args.method):.4f}")


if __name__ == "__main__":
    main()
