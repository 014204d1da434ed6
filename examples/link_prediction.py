"""Link prediction on ogbl-collab, with PyG's LinkNeighborLoader or khop's: one import apart.

    python examples/link_prediction.py --root dataset --loader khop
    python examples/link_prediction.py --root dataset --loader pyg  # needs pyg-lib or torch-sparse

A GraphSAGE encodes the authors, a perceptron scores the product of two of them, trained with one
random negative a link. Reported is what OGB's own evaluator says, Hits@50 for ogbl-collab, of
embeddings computed layer after layer over all neighbours. OGB downloads the data (0.1 GB) to
--root.

The model that trains on a link sees that link in the neighbourhood of its ends; with
--exclude-seed-edges, which only khop's loader knows, it does not.
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
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loader", choices=["khop", "pyg"], default="khop")
    parser.add_argument("--root", default="dataset", help="folder of OGB data sets")
    parser.add_argument("--name", default="ogbl-collab", help="with 'Hits@K' as its metric")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8192, help="links a batch")
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
        parser.error("--exclude-seed-edges needs --loader khop: PyG's loader cannot")
    return args


def load(name: str, root: Path) -> tuple[Data, dict[str, dict[str, Tensor]]]:
    """The training graph, and OGB's split of the links.

    With a data set of your own, `root` is the folder with its `meta_dict.pt`, as
    `ogb.io.DatasetSaver` makes it; the folder may have been moved.
    """
    dataset = PygLinkPropPredDataset(name, str(root), meta_dict=own_meta(root))
    data, split = dataset[0], dataset.get_edge_split()
    links = {
        part: {kind: torch.as_tensor(pairs).T for kind, pairs in of.items() if "edge" in kind}
        for part, of in split.items()
    }
    return Data(x=data.x, edge_index=data.edge_index), links


class LinkModel(nn.Module):
    """Scores links: encoder, and a perceptron over the product of both ends."""

    def __init__(self, width: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.encoder = GraphSAGE(width, hidden, num_layers)
        self.decoder = MLP([hidden, hidden, 1], norm=None)

    def score(self, h: Tensor, links: Tensor) -> Tensor:
        """[num_links] logits of links [2, num_links] between nodes of states `h`."""
        return self.decoder(h[links[0]] * h[links[1]]).squeeze(-1)


def train_epoch(model: LinkModel, loader, optimizer, device, label: str) -> float:
    """Mean loss of an epoch."""
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
    """OGB's metric for the links held out, from all neighbours of all nodes."""
    model.eval()
    h = model.encoder.inference(loader, device)

    def scores(pairs: Tensor) -> Tensor:
        chunks = pairs.split(1 << 16, dim=1)
        return torch.cat([model.score(h, chunk.to(h.device)).cpu() for chunk in chunks])

    metric = {}
    for part in ("valid", "test"):
        held_out = links[part]
        found = {"y_pred_pos": scores(held_out["edge"]), "y_pred_neg": scores(held_out["edge_neg"])}
        metric[part] = evaluator.eval(found)[evaluator.eval_metric]
    return metric


def main() -> None:
    """Trains and evaluates."""
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
            found = evaluate(model, all_neighbours, links, evaluator, args.device)
            named = (f"{part} {evaluator.eval_metric}: {found[part]:.4f}" for part in found)
            print(", ".join(named), flush=True)


if __name__ == "__main__":
    main()
