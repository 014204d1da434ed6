"""GraphSAGE on ogbn-products, with PyG's NeighborLoader or khop's: one import differs.

    python examples/ogbn_products.py --root dataset --loader khop
    python examples/ogbn_products.py --root dataset --loader pyg     # needs pyg-lib or torch-sparse

The settings are the same as in PyG's and OGB's own example. The model has three layers of size 256.
The hops draw 15, 10 and 5 neighbours. Batches have 1,024 seeds. The evaluation computes layer by
layer over all neighbours. OGB asks first, and then downloads the data (1.4 GB) to --root.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from ogb_data import load_ogb
from torch_geometric.nn import GraphSAGE
from tqdm import tqdm


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loader", choices=["khop", "pyg"], default="khop")
    parser.add_argument("--root", default="dataset", help="folder of OGB data sets")
    parser.add_argument("--name", default="ogbn-products", help="a homogeneous OGB data set")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--eval-every", type=int, default=5, help="epochs between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def train_epoch(model, loader, optimizer, device, label: str) -> float:
    """Return the mean loss of an epoch."""
    model.train()
    total = 0.0
    for batch in tqdm(loader, desc=label, disable=None, leave=False):
        batch = batch.to(device)  # noqa: PLW2901
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / len(loader)


def accuracies(model, loader, data, device) -> dict[str, float]:
    """Return the share of correct predictions per split, over all neighbours."""
    model.eval()
    right = model.inference(loader, device).argmax(-1) == data.y
    return {name: float(right[data[f"{name}_mask"]].float().mean()) for name in ("val", "test")}


def main() -> None:
    """Train, evaluate and print results."""
    args = parse_arguments()
    if args.loader == "khop":
        from khop.loader import NeighborLoader
    else:
        from torch_geometric.loader import NeighborLoader

    torch.manual_seed(args.seed)
    data, num_classes = load_ogb(args.name, args.root)
    workers = {"num_workers": args.num_workers, "persistent_workers": args.num_workers > 0}
    train_loader = NeighborLoader(
        data, args.fanout, data.train_mask, batch_size=args.batch_size, shuffle=True, **workers
    )
    all_neighbours = NeighborLoader(data, [-1], batch_size=4096, **workers)

    shape = (data.num_features, args.hidden, len(args.fanout), num_classes)
    model = GraphSAGE(*shape, dropout=0.5).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    num_seeds = int(data.train_mask.sum())
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        label = f"epoch {epoch}/{args.epochs}"
        loss = train_epoch(model, train_loader, optimizer, args.device, label)
        seconds = time.perf_counter() - begin
        print(
            f"epoch {epoch}: loss {loss:.3f}, {seconds:.1f} s, {num_seeds / seconds:,.0f} seeds/s"
        )
        if epoch % args.eval_every == 0 or epoch == args.epochs:
            shares = accuracies(model, all_neighbours, data, args.device)
            print(f"validation accuracy: {shares['val']:.4f}, test accuracy: {shares['test']:.4f}")


if __name__ == "__main__":
    main()
