"""VR-GCN on the Debian package graph: two neighbours per node, and the accuracy of ten by ten.

    khop partition debian parts --num-parts 2 --undirected
    torchrun --standalone --nproc-per-node=2 examples/vrgcn.py --parts parts

VR-GCN (https://arxiv.org/abs/1710.10568) keeps old activations of all nodes, and their means over
all neighbours. A layer draws few neighbours, and estimates the mean over all of them as

    mean over drawn neighbours of (new - old activation)  +  mean over all neighbours of the old one

The old activations are control variates. The estimate of a mean has no bias, and its variance is
small while activations change slowly. Tensors of a `GraphStore` have the rows, for all trainers:

- `inputs`: features, and their means over all neighbours. Computed once, so that the first layer
  needs no neighbours, and batches have one hop less.
- `h<i>`: the last activations of layer i.
- `old<i>`: activations and their means, of one time. `update_all` makes them from `h<i>`.

With `--refresh last`, `h<i>` has the activations that training computed, as in the paper. With
`--refresh exact`, all nodes are computed first. This needs no further edges, and variance is less.

The task is the same as in `debian_sage.py`.
"""

import time
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from debian_training import NUM_SECTIONS, argument_parser, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.utils import scatter

from khop.distributed import DistDataset, DistNeighborLoader, GraphStore, node_split


def with_own(mean: Tensor, own: Tensor) -> Tensor:
    """Return rows of nodes beside the means over their neighbours."""
    return torch.cat([own, mean], dim=1)


class VrGcn(nn.Module):
    """GraphSAGE layers over rows of nodes and means over neighbours, with control variates."""

    def __init__(self, sizes: list[int], store: GraphStore, dropout: float = 0.5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * a, b) for a, b in pairwise(sizes))
        self.store, self.dropout = store, dropout
        for i, size in enumerate(sizes[1:-1]):
            store.create_node_tensor(f"h{i}", shape=(size,))
            store.create_node_tensor(f"old{i}", shape=(2 * size,))

    def layer(self, i: int, rows: Tensor) -> Tensor:
        """Return activations of layer i, or logits of the last one."""
        h = self.layers[i](F.dropout(rows, self.dropout, self.training and i > 0))
        return h if i == len(self.layers) - 1 else h.relu()

    def forward(self, batch) -> Tensor:
        """Return logits of the seeds. A batch has one hop per layer but the first."""
        rows = self.store["inputs"].pull(batch.n_id)
        for i in range(len(self.layers) - 1):
            h = self.layer(i, rows)
            n_id = batch.n_id[: len(h)]
            old, old_mean = self.store[f"old{i}"].pull(n_id).chunk(2, dim=1)
            self.store[f"h{i}"].push(n_id, h.detach())
            hops = len(self.layers) - 1 - i  # that later layers read
            count = sum(batch.num_sampled_nodes[:hops])
            source, target = batch.edge_index[:, : sum(batch.num_sampled_edges[:hops])]
            change = scatter((h - old)[source], target, dim_size=count, reduce="mean")
            rows = with_own(old_mean[:count] + change, h[:count])
        return self.layer(len(self.layers) - 1, rows)

    @torch.no_grad()
    def refresh(self, nodes: Tensor | None = None) -> None:
        """Make control variates of the last activations. All trainers call it together.

        Args:
            nodes: this trainer's share of all nodes, whose activations are computed first. If None,
                the activations of training are used.
        """
        self.eval()
        rows = self.store["inputs"]
        for i in range(len(self.layers) - 1):
            if nodes is not None:
                for ids in nodes.split(1 << 14):
                    self.store[f"h{i}"].push(ids, self.layer(i, rows.pull(ids)))
                self.store.step()
            self.store.update_all(f"h{i}", f"old{i}", "mean", apply=with_own)
            rows = self.store[f"old{i}"]

    @torch.no_grad()
    def exact(self, nodes: Tensor, targets: Tensor) -> Tensor:
        """Return logits of nodes over all neighbours. All trainers call it together."""
        self.refresh(nodes)
        rows = self.store[f"old{len(self.layers) - 2}"].pull(targets)
        return self.layer(len(self.layers) - 1, rows)


def make_inputs(dataset: DistDataset, store: GraphStore) -> int:
    """Make the tensor `inputs`, and return the number of features."""
    _, (width,) = dataset.node_attr("x")
    features = store.create_node_tensor("features", shape=(width,))
    for ids in node_split(torch.arange(dataset.num_nodes), dataset).split(1 << 14):
        features.push(ids, dataset.get_tensor("node", "x", index=ids).float())
    store.step()
    store.create_node_tensor("inputs", shape=(2 * width,))
    store.update_all("features", "inputs", "mean", apply=with_own)
    store.delete("features")
    return width


def train_epoch(model: nn.Module, store: GraphStore, loader, optimizer) -> tuple[float, int]:
    """Train for an epoch. Return the mean loss and the number of drawn edges of this trainer."""
    model.train()
    total, edges = 0.0, 0
    for batch in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        store.step()
        total, edges = total + float(loss.detach()), edges + batch.num_edges
    return total / max(1, len(loader)), edges


def main() -> None:
    """Train, and print losses, edges and test accuracy."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--fanout", type=int, nargs="+", default=[2], help="per layer but one")
    parser.add_argument("--refresh", choices=["exact", "last"], default="exact")
    parser.add_argument("--every", type=int, default=2, help="epochs between refreshes")
    args = parser.parse_args()
    context, dataset = start(args)
    store = GraphStore(dataset)
    width = make_inputs(dataset, store)
    model = VrGcn([width, *[args.hidden] * len(args.fanout), NUM_SECTIONS], store)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    options = {"batch_size": args.batch_size, "seed": args.seed, "collect_features": False}
    loader = DistNeighborLoader(dataset, args.fanout, "train_mask", shuffle=True, **options)
    nodes = node_split(torch.arange(dataset.num_nodes), dataset)
    test = node_split("test_mask", dataset)
    for epoch in range(1, args.epochs + 1):
        begun = time.perf_counter()
        loss, edges = train_epoch(trained, store, loader, optimizer)
        if epoch % args.every == 0:
            model.refresh(nodes if args.refresh == "exact" else None)
        if context.rank == 0:
            seconds = time.perf_counter() - begun
            print(f"epoch {epoch}: loss {loss:.3f}, {edges:,} edges, {seconds:.1f} s", flush=True)
    right = model.exact(nodes, test).argmax(1) == dataset.get_tensor("node", "y", index=test)
    counts = torch.tensor([right.sum(), len(right)])
    dist.all_reduce(counts)
    if context.rank == 0:
        print(f"test accuracy: {float(counts[0] / counts[1]):.4f}")
    del trained  # PyTorch can hang if DDP is the last to hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
