"""Link prediction on ogbl-collab, with PyG's LinkNeighborLoader or khop's: one import differs.

    python examples/link_prediction.py --root dataset --loader khop
    python examples/link_prediction.py --root dataset --loader pyg  # needs pyg-lib or torch-sparse

A GraphSAGE encodes the authors. A perceptron scores the product of the embeddings of two authors.
Each link comes with one random negative in training. The test computes embeddings layer by layer
over all neighbours. OGB's evaluator then returns Hits@50. OGB downloads the data (0.1 GB) to
--root.

By default, the neighbourhood of a training link contains the link itself. --exclude-seed-edges
excludes it. PyG's loader has no such option.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from ogb.linkproppred import Evaluator, PygLinkPropPredDataset
from ogb_data import own_meta
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MLP, GraphSAGE
from tqdm import tqdm


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loader", choices=["khop", "pyg"], default="khop")
    parser.add_argument("--root", default="dataset", help="folder of OGB data sets")
    parser.add_argument("--name", default="ogbl-collab", help="with 'Hits@K' as its metric")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8192, help="links per batch")
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--exclude-seed-edges", action="store_true", help="khop only")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--eval-every", type=int, default=5, help="epochs between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.exclude_seed_edges and args.loader == "pyg":
        parser.error("--exclude-seed-edges needs --loader khop. PyG's loader has no such option")
    return args


def load(name: str, root: Path) -> tuple[Data, dict[str, dict[str, Tensor]]]:
    """Return the training graph, and OGB's split of the links.

    For a data set that is not part of OGB, `root` is a folder of `ogb.io.DatasetSaver`. The folder
    contains `meta_dict.pt`, and may have moved.
    """
    dataset = PygLinkPropPredDataset(name, str(root), meta_dict=own_meta(root))
    data, split = dataset[0], dataset.get_edge_split()
    links = {
        part: {name: torch.as_tensor(pairs).T for name, pairs in lists.items() if "edge" in name}
        for part, lists in split.items()
    }
    return Data(x=data.x, edge_index=data.edge_index), links


class LinkModel(nn.Module):
    """Encoder of nodes, and a perceptron over the product of the embeddings of both ends."""

    def __init__(self, width: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.encoder = GraphSAGE(width, hidden, num_layers)
        self.decoder = MLP([hidden, hidden, 1], norm=None)

    def score(self, h: Tensor, links: Tensor) -> Tensor:
        """Return logits [num_links] of links [2, num_links], from embeddings `h` of nodes."""
        return self.decoder(h[links[0]] * h[links[1]]).squeeze(-1)


def train_epoch(model: LinkModel, loader, optimizer, device, label: str) -> float:
    """Return the mean loss of an epoch."""
    model.train()
    total = 0.0
    for batch in tqdm(loader, desc=label, disable=None, leave=False):
        batch = batch.to(device)  # noqa: PLW2901
        optimizer.zero_grad()
        scores = model.score(model.encoder(batch.x, batch.edge_index), batch.edge_label_index)
        loss = F.binary_cross_entropy_with_logits(scores, batch.edge_label)
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / len(loader)


@torch.no_grad()
def evaluate(model: LinkModel, loader, links, evaluator: Evaluator, device) -> dict[str, float]:
    """Return OGB's metric for held-out links, from embeddings over all neighbours."""
    model.eval()
    h = model.encoder.inference(loader, device)

    def scores(pairs: Tensor) -> Tensor:
        chunks = pairs.split(1 << 16, dim=1)
        return torch.cat([model.score(h, chunk.to(h.device)).cpu() for chunk in chunks])

    metric = {}
    for part in ("valid", "test"):
        held_out = links[part]
        positive, negative = scores(held_out["edge"]), scores(held_out["edge_neg"])
        result = evaluator.eval({"y_pred_pos": positive, "y_pred_neg": negative})
        metric[part] = result[evaluator.eval_metric]
    return metric


def main() -> None:
    """Train, evaluate and print results."""
    args = parse_arguments()
    if args.loader == "khop":
        from khop.loader import LinkNeighborLoader, NeighborLoader
    else:
        from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

    torch.manual_seed(args.seed)
    data, links = load(args.name, Path(args.root))
    workers = {"num_workers": args.num_workers, "persistent_workers": args.num_workers > 0}
    train_loader = LinkNeighborLoader(
        data,
        args.fanout,
        edge_label_index=links["train"]["edge"],
        neg_sampling="binary",
        batch_size=args.batch_size,
        shuffle=True,
        **({"exclude_seed_edges": "reverse"} if args.exclude_seed_edges else {}),
        **workers,
    )
    all_neighbours = NeighborLoader(data, [-1], batch_size=4096, **workers)

    model = LinkModel(data.num_features, args.hidden, len(args.fanout)).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    evaluator = Evaluator(args.name)
    num_links = links["train"]["edge"].size(1)
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        label = f"epoch {epoch}/{args.epochs}"
        loss = train_epoch(model, train_loader, optimizer, args.device, label)
        seconds = time.perf_counter() - begin
        speed = num_links / seconds
        print(f"epoch {epoch}: loss {loss:.3f}, {seconds:.1f} s, {speed:,.0f} links/s", flush=True)
        if epoch % args.eval_every == 0 or epoch == args.epochs:
            metric = evaluate(model, all_neighbours, links, evaluator, args.device)
            texts = (f"{part} {evaluator.eval_metric}: {metric[part]:.4f}" for part in metric)
            print(", ".join(texts), flush=True)


if __name__ == "__main__":
    main()
