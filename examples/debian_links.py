"""Recommend missing dependencies of Debian packages: link prediction under DDP, from partitions.

    torchrun --standalone --nproc-per-node=2 examples/debian_links.py --parts link-parts

Dependencies are edges of the kinds Depends and Pre-Depends. Some pairs of packages are held out for
validation and test, with the edges of both directions. Messages run on the graph of all other edges
and their reverses. If the folder --parts does not exist, the first trainer partitions this graph
into one part per trainer.

A GraphSAGE encodes packages from their descriptions and neighbours. Each training link comes with
strict negatives. The links of a batch and their reverses are excluded from its neighbourhoods.
Otherwise, the model learns to detect the link itself. --keep-seed-edges keeps these edges.

For each held-out dependency (a, b), the model ranks all packages but a as dependencies of a. The
ranking is filtered: it leaves out all other packages that a names in any split. Ties count half.
MRR and hits@10 are means over the links. Two baselines rank the same candidates:

- Popularity is the number of packages that depend on b in the training graph.
- Chance is the expectation of a random order.

Negatives are drawn in proportion to popularity, so that the model learns other signals. The ranking
adds the logarithm of popularity.

Results with the defaults, on 21,311 test links:

- model: MRR 0.336, hits@10 0.459
- popularity: MRR 0.162, hits@10 0.237
- chance: MRR 0.0002

Results with and without the links' own edges, after two epochs:

- with these edges: loss 0.39, validation MRR 0.299
- without these edges: loss 0.68, validation MRR 0.331
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NegativeSampling
from torch_geometric.utils import to_undirected
from tqdm import tqdm

from khop.datasets import DebianPackages
from khop.distributed import (
    DistDataset,
    DistLinkNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
    layerwise_inference,
    link_split,
)
from khop.partition import frequency_partition

HELD_OUT = {"val": 0.02, "test": 0.08}
STRONGEST_KINDS = 2  # kinds of edges: Pre-Depends and Depends
EULER = 0.5772156649  # the n-th harmonic number is digamma(n + 1) + EULER


class Named:
    """Lists of the packages that each package names.

    Args:
        edge_index: int64 [2, num_edges], sorted by source.
        num_nodes: number of packages.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        self.count = torch.bincount(edge_index[0], minlength=num_nodes)
        self._first = self.count.cumsum(0) - self.count
        self._targets = edge_index[1]

    def by(self, sources: Tensor) -> tuple[Tensor, Tensor]:
        """Return the edges of `sources` [n].

        Returns:
            For each edge, the position of its source in `sources`, and its target.
        """
        count = self.count[sources]
        position = torch.arange(len(sources)).repeat_interleave(count)
        start = self._first[sources] - (count.cumsum(0) - count)
        return position, self._targets[start[position] + torch.arange(len(position))]


class Task(NamedTuple):
    """Graph and links.

    Attributes:
        graph: undirected graph for messages, with features `x`.
        links: dependencies of 'train', 'val' and 'test', int64 [2, num_links], in random order.
            Row 0 holds dependent packages, row 1 their dependencies.
        popularity: number of training links to each package, int64 [num_nodes].
        named: packages that each package names, in edges of all kinds and splits.
    """

    graph: Data
    links: dict[str, Tensor]
    popularity: Tensor
    named: Named


def make_task(seed: int) -> Task:
    """Hold out pairs of packages, the same pairs on every trainer."""
    data = DebianPackages()[0]
    ends = data.edge_index.sort(dim=0).values
    _, pair = torch.unique(ends[0] * data.num_nodes + ends[1], return_inverse=True)
    generator = torch.Generator().manual_seed(seed)
    random = torch.rand(int(pair.max()) + 1, generator=generator)[pair]
    is_test = random < HELD_OUT["test"]
    is_val = ~is_test & (random < sum(HELD_OUT.values()))
    dependency = data.edge_kind < STRONGEST_KINDS
    splits = {"train": ~(is_val | is_test), "val": is_val, "test": is_test}
    order = torch.randperm(data.num_edges, generator=generator)
    links = {
        name: data.edge_index[:, order[(mask & dependency)[order]]] for name, mask in splits.items()
    }
    edge_index = to_undirected(data.edge_index[:, splits["train"]], num_nodes=data.num_nodes)
    popularity = torch.bincount(links["train"][1], minlength=data.num_nodes)
    named = Named(data.edge_index, data.num_nodes)
    return Task(Data(x=data.x, edge_index=edge_index), links, popularity, named)


class Recommender(nn.Module):
    """Encoder of packages, with one projection for sources of links and one for targets."""

    def __init__(self, width: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.encoder = GraphSAGE(width, hidden, num_layers, dropout=0.1)
        self.needs = nn.Linear(hidden, hidden)
        self.offers = nn.Linear(hidden, hidden)

    def forward(self, batch: Data) -> Tensor:
        """Return scores [num_links, 1 + negatives per link], with the link itself first."""
        h = self.encoder(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
        offers = self.offers(h)
        negatives = batch.dst_neg_index.view(len(batch.src_index), -1)
        targets = torch.cat([batch.dst_pos_index[:, None], negatives], dim=1)
        return (self.needs(h)[batch.src_index, None] * offers[targets]).sum(-1)


def prior(popularity: Tensor) -> Tensor:
    """Return weights of packages as negatives, [num_nodes]."""
    return popularity + 1.0


def make_loader(task: Task, dataset: DistDataset, args: argparse.Namespace):
    """Return a loader of this trainer's share of the training links, with negatives."""
    links = task.links["train"][:, : args.max_links]
    return DistLinkNeighborLoader(
        dataset,
        args.fanout,
        batch_size=args.batch_size,
        edge_label_index=links[:, link_split(links, dataset)],
        neg_sampling=NegativeSampling("triplet", args.negatives, dst_weight=prior(task.popularity)),
        strict_negatives=True,
        exclude_seed_edges=False if args.keep_seed_edges else "reverse",
        shuffle=True,
        seed=args.seed,
        worker_options=MpDistSamplingWorkerOptions(num_workers=args.num_workers),
    )


def train_epoch(model, loader, optimizer, label: str, show: bool) -> float:
    """Return the mean loss of an epoch: cross-entropy of each link among its negatives."""
    model.train()
    total = 0.0
    for batch in tqdm(loader, desc=label, disable=None if show else True, leave=False):
        optimizer.zero_grad()
        scores = model(batch)
        loss = F.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long))
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / max(1, len(loader))


@torch.no_grad()
def make_scores(model: Recommender, dataset: DistDataset, task: Task, folder: Path):
    """Return a function from sources [n] to scores of all packages [n, num_nodes].

    The embeddings are computed from all neighbours in the training graph.
    """
    model.eval()
    with layerwise_inference(dataset, model.encoder, folder, overwrite=True) as outputs:
        h = outputs[torch.arange(dataset.num_nodes)]
    needs, offers, log_prior = model.needs(h), model.offers(h), prior(task.popularity).log()
    return lambda sources: needs[sources] @ offers.T + log_prior


def ranks_of(scores: Tensor, source: Tensor, target: Tensor, named: Named) -> Tensor:
    """Return the rank of each target [n] among the candidates of its source.

    Candidates are all packages but the source and the other packages that it names.

    Args:
        scores: scores of all packages for each source, [n, num_nodes]. Changed in place.
        source: sources of held-out links, [n].
        target: targets of held-out links, [n].
        named: packages that each package names.
    """
    row = torch.arange(len(source))
    score = scores[row, target, None]
    scores[named.by(source)] = -torch.inf
    scores[row, source] = -torch.inf
    return 1 + (scores > score).sum(1) + (scores == score).sum(1) / 2


@torch.no_grad()
def evaluate(scores_of, links: Tensor, named: Named) -> tuple[float, float]:
    """Return MRR and hits@10 of links.

    Args:
        scores_of: function from sources [n] to scores [n, num_nodes].
        links: links [2, num_links], the same on every trainer. Each trainer ranks its share.
        named: packages that each package names.
    """
    sums = torch.zeros(2, dtype=torch.float64)
    share = links[:, dist.get_rank() :: dist.get_world_size()]
    for source, target in zip(share[0].split(128), share[1].split(128), strict=True):
        ranks = ranks_of(scores_of(source), source, target, named).double()
        sums += torch.stack([(1 / ranks).sum(), (ranks <= 10).sum()])
    dist.all_reduce(sums)
    mrr, hits = (sums / links.size(1)).tolist()
    return mrr, hits


def chance(links: Tensor, named: Named) -> tuple[float, float]:
    """Return the expected result of `evaluate` for a random order."""
    candidates = (len(named.count) - named.count[links[0]]).double()
    harmonic = torch.digamma(candidates + 1) + EULER
    return float((harmonic / candidates).mean()), float((10 / candidates).clamp(max=1).mean())


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--parts", type=Path, required=True, help="partition folder, made if absent"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=1024, help="links per batch and trainer")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--fanout", type=int, nargs="+", default=[8, 4])
    parser.add_argument("--negatives", type=int, default=8, help="negatives per link")
    parser.add_argument(
        "--keep-seed-edges", action="store_true", help="keep links of a batch as edges"
    )
    parser.add_argument("--max-links", type=int, help="training links per epoch (default: all)")
    parser.add_argument("--max-test", type=int, help="links to rank (default: all held out)")
    parser.add_argument("--num-workers", type=int, default=1, help="sampler processes per trainer")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0, help="seed of splits and training")
    return parser.parse_args()


def load_parts(task: Task, args: argparse.Namespace, rank: int, world_size: int) -> DistDataset:
    """Load this trainer's part. The first trainer partitions the graph if there is no folder."""
    if rank == 0 and not args.parts.exists():
        frequency_partition(task.graph, args.parts, world_size, args.fanout, cache_ratio=0.1)
    dist.barrier()
    dataset = DistDataset().load(args.parts, partition_idx=rank)
    src, dst = dataset.owned_edges()
    expected = task.graph.edge_index[0] * dataset.num_nodes + task.graph.edge_index[1]
    known = np.isin(src * dataset.num_nodes + dst, expected.numpy())
    if dataset.num_edges != task.graph.num_edges or not known.all():
        raise SystemExit(f"'{args.parts}' holds another graph. Name a folder that does not exist")
    return dataset


def main() -> None:
    """Train, rank held-out links and print results."""
    args = parse_arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    context = init_worker_group()
    first = context.rank == 0
    task = make_task(args.seed)
    dataset = load_parts(task, args, context.rank, context.world_size)
    loader = make_loader(task, dataset, args)
    if first:
        print(", ".join(f"{links.size(1):,} {name}" for name, links in task.links.items()), "links")
    model = Recommender(task.graph.num_features, args.hidden, len(args.fanout))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    def rank(split: str, scores_of) -> tuple[float, float]:
        return evaluate(scores_of, task.links[split][:, : args.max_test], task.named)

    embeddings = args.parts.with_name(f"{args.parts.name}-embeddings")
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        loss = train_epoch(parallel, loader, optimizer, f"epoch {epoch}/{args.epochs}", first)
        trained = time.perf_counter()
        scores_of = make_scores(model, dataset, task, embeddings)
        mrr, _ = rank("val", scores_of)
        if first:
            print(
                f"epoch {epoch}: loss {loss:.3f}, {trained - begin:.1f} s, validation MRR "
                f"{mrr:.4f}, {time.perf_counter() - trained:.1f} s",
                flush=True,
            )
    popular = task.popularity.float()
    results = {
        "model": rank("test", scores_of),
        "popularity": rank("test", lambda sources: popular.repeat(len(sources), 1)),
        "chance": chance(task.links["test"], task.named),
    }
    if first:
        for name, (mrr, hits) in results.items():
            print(f"{name}: test MRR {mrr:.4f}, hits@10 {hits:.4f}")
    del parallel  # PyTorch can hang if DDP is the last to hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
