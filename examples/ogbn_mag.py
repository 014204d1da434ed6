"""A heterogeneous GraphSAGE on ogbn-mag, with PyG's NeighborLoader or khop's: one import differs.

    python examples/ogbn_mag.py --root dataset --loader khop
    python examples/ogbn_mag.py --root dataset --loader pyg     # needs pyg-lib or torch-sparse

The settings are the same as in PyG's own example. `to_hetero` makes two layers of `SAGEConv`
heterogeneous. The hidden size is 64. Each hop draws 10 neighbours per edge type. Batches have 1,024
papers. The graph gets reverse edges.

Only papers have features. PyG's example downloads embeddings for the other node types. This example
learns these embeddings, 1.2 million rows. A batch reads about ten thousand rows. Their gradients
are sparse, and `SparseAdam` updates only the rows of the batch. OGB downloads the data (0.4 GB) to
--root.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from ogb_data import load_ogb
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv, Sequential, to_hetero
from torch_geometric.transforms import ToUndirected
from tqdm import tqdm


class Network(nn.Module):
    """Features or learned rows, two convolutions, and logits for the seeds.

    Args:
        data: the graph.
        seed_type: node type of the seeds.
        hidden: size of hidden states.
        num_classes: number of classes.
    """

    def __init__(self, data, seed_type: str, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.seed_type = seed_type
        width = data[seed_type].num_features
        rows = {t: data[t].num_nodes for t in data.node_types if "x" not in data[t]}
        self.rows = nn.ModuleDict(
            {t: nn.Embedding(count, width, sparse=True) for t, count in rows.items()}
        )
        for table in self.rows.values():
            nn.init.xavier_uniform_(table.weight)
        layers = [
            (SAGEConv((width, width), hidden), "x, edge_index -> x"),
            nn.ReLU(inplace=True),
            (SAGEConv((hidden, hidden), hidden), "x, edge_index -> x"),
            nn.ReLU(inplace=True),
        ]
        self.convolve = to_hetero(Sequential("x, edge_index", layers), data.metadata(), aggr="sum")
        self.classify = nn.Linear(hidden, num_classes)

    def forward(self, batch) -> Tensor:
        """Return logits of the seeds, float32 [batch_size, num_classes]."""
        x = batch.x_dict | {t: table(batch[t].n_id) for t, table in self.rows.items()}
        x = self.convolve(x, batch.edge_index_dict)[self.seed_type]
        return self.classify(x[: batch[self.seed_type].batch_size])


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loader", choices=["khop", "pyg"], default="khop")
    parser.add_argument("--root", default="dataset", help="folder of OGB data sets")
    parser.add_argument("--name", default="ogbn-mag", help="a heterogeneous OGB data set")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanout", type=int, nargs=2, default=[10, 10])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def labels_of(batch, seed_type: str) -> Tensor:
    """Return labels of the seeds, the first nodes of a batch."""
    return batch[seed_type].y[: batch[seed_type].batch_size]


def train_epoch(model, loader, optimizers, device, label: str) -> float:
    """Return the mean loss of an epoch."""
    model.train()
    total = 0.0
    for batch in tqdm(loader, desc=label, disable=None, leave=False):
        batch = batch.to(device)  # noqa: PLW2901
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), labels_of(batch, model.seed_type))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        total += float(loss.detach())
    return total / len(loader)


@torch.no_grad()
def accuracy(model, loader, device) -> float:
    """Return the share of correct predictions."""
    model.eval()
    right = count = 0
    for batch in loader:
        batch = batch.to(device)  # noqa: PLW2901
        y = labels_of(batch, model.seed_type)
        right += int((model(batch).argmax(-1) == y).sum())
        count += len(y)
    return right / count


def main() -> None:
    """Train, evaluate and print results."""
    args = parse_arguments()
    if args.loader == "khop":
        from khop.loader import NeighborLoader
    else:
        from torch_geometric.loader import NeighborLoader

    torch.manual_seed(args.seed)
    data, num_classes = load_ogb(args.name, args.root)
    data = ToUndirected()(data)
    (seed_type,) = (t for t in data.node_types if "y" in data[t])  # papers in ogbn-mag
    loaders = {
        name: NeighborLoader(
            data,
            args.fanout,
            (seed_type, data[seed_type][f"{name}_mask"]),
            batch_size=args.batch_size,
            shuffle=name == "train",
            num_workers=args.num_workers,
            persistent_workers=args.num_workers > 0,
        )
        for name in ("train", "val", "test")
    }
    model = Network(data, seed_type, args.hidden, num_classes).to(args.device)
    tables = list(model.rows.parameters())
    dense = [p for name, p in model.named_parameters() if not name.startswith("rows.")]
    optimizers = [torch.optim.Adam(dense, lr=args.lr), torch.optim.SparseAdam(tables, lr=args.lr)]
    num_seeds = int(data[seed_type].train_mask.sum())
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        label = f"epoch {epoch}/{args.epochs}"
        loss = train_epoch(model, loaders["train"], optimizers, args.device, label)
        seconds = time.perf_counter() - begin
        print(
            f"epoch {epoch}: loss {loss:.3f}, {seconds:.1f} s, {num_seeds / seconds:,.0f} seeds/s, "
            f"validation accuracy: {accuracy(model, loaders['val'], args.device):.4f}"
        )
    print(f"test accuracy: {accuracy(model, loaders['test'], args.device):.4f}")


if __name__ == "__main__":
    main()
