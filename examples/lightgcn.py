"""LightGCN on Debian's tags, with embeddings and their optimiser over the partitions.

    torchrun --standalone --nproc-per-node=3 examples/lightgcn.py --parts tag-parts

Packages have tags. The model recommends tags to packages: it learns an embedding of each, and
smooths them over the graph of packages and tags (https://arxiv.org/abs/2002.02126):

    e' = D^-1/2 A D^-1/2 e, once per layer, and the mean of all layers is the result.

Embeddings are a `DistEmbedding`, and all parameters. `SparseAdam` updates the rows of a batch, for
all trainers together. If the folder --parts does not exist, the first trainer partitions the graph
into one part per trainer. A fifth of each package's tags is held out. Recall@20 is the share of
these among the 20 best tags that the package does not have in training.

Training draws neighbours. The mean over drawn neighbours, times the degree, estimates the sum over
all. The test uses all neighbours, by `update_all`.
"""

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling
from torch_geometric.utils import scatter

from khop import partition_graph
from khop.datasets import DebianPackagesHetero
from khop.distributed import (
    DistDataset,
    DistLinkNeighborLoader,
    GraphStore,
    init_worker_group,
    link_split,
)
from khop.nn import DistEmbedding
from khop.optim import SparseAdam


class Task(NamedTuple):
    """Links of packages and tags. Nodes are the packages, then the tags.

    Attributes:
        num_users: number of packages.
        num_nodes: number of packages and tags.
        train, test: [2, n] packages and tags.
    """

    num_users: int
    num_nodes: int
    train: Tensor
    test: Tensor


def make_task(seed: int, least: int = 5) -> Task:
    """Return the links of packages with some tags, a fifth of them for test."""
    data = DebianPackagesHetero()[0]
    package, tag = data["package", "tagged", "tag"].edge_index
    is_used = package.bincount()[package] >= least
    package, tag = package[is_used], tag[is_used]
    users, package = package.unique(return_inverse=True)
    draw = torch.Generator().manual_seed(seed)
    is_test = torch.rand(len(package), generator=draw) < 0.2
    links = torch.stack([package, tag + len(users)])
    num_nodes = len(users) + data["tag"].num_nodes
    return Task(len(users), num_nodes, links[:, ~is_test], links[:, is_test])


def smooth(e: Tensor, degree: Tensor, batch, num_layers: int) -> Tensor:
    """Return the mean of all layers, for the nodes whose links are trained."""
    source, target = batch.edge_index
    layers = [e]
    for _ in range(num_layers):
        scaled = layers[-1] / degree.clamp(min=1).sqrt()[:, None]
        mean = scatter(scaled[source], target, dim_size=len(e), reduce="mean")
        layers.append(mean * degree.sqrt()[:, None])
    return torch.stack(layers).mean(0)


def train_epoch(embedding, optimizer, loader, args) -> float:
    """Return the mean loss of an epoch: each link scores higher than a negative (BPR)."""
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        e = embedding(batch.n_id)
        h = smooth(e, batch.degree, batch, args.layers)
        user, item, other = h[batch.src_index], h[batch.dst_pos_index], h[batch.dst_neg_index]
        loss = -F.logsigmoid((user * (item - other)).sum(1)).mean()
        (loss + args.decay * e.square().sum() / len(user)).backward()
        optimizer.step()
        total += float(loss.detach())
    return total / max(1, len(loader))


@torch.no_grad()
def recall(store: GraphStore, task: Task, num_layers: int) -> float:
    """Return recall@20 over all packages with held-out tags. All trainers call it together."""
    names = ["embedding", *(f"layer{i}" for i in range(num_layers))]
    for source, out in pairwise(names):
        store.update_all(source, out, norm="sym")
    h = sum(store[name].pull() for name in names)
    sums = torch.zeros(2)
    users = task.test[0].unique()[dist.get_rank() :: dist.get_world_size()]
    for some in users.split(2048):
        scores = h[some] @ h[task.num_users :].T
        scores[dense(task.train, some, task)] = -torch.inf
        held_out = dense(task.test, some, task)
        hits = held_out.gather(1, scores.topk(20).indices).sum(1)
        sums += torch.tensor([(hits / held_out.sum(1)).sum(), len(some)])
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def dense(links: Tensor, users: Tensor, task: Task) -> Tensor:
    """Return which tags packages have among links, bool [len(users), number of tags]."""
    row = torch.full((task.num_users,), -1)
    row[users] = torch.arange(len(users))
    has = torch.zeros(len(users), task.num_nodes - task.num_users, dtype=torch.bool)
    own = row[links[0]] >= 0
    has[row[links[0, own]], links[1, own] - task.num_users] = True
    return has


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=Path, required=True, help="folder, made if absent")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024, help="links of all trainers")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--fanout", type=int, default=10)
    parser.add_argument("--decay", type=float, default=1e-4)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--max-links", type=int, help="training links per epoch (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train, and print losses and recall."""
    args = parse_arguments()
    context = init_worker_group()
    dist.init_process_group(
        "gloo", store=context.store, rank=context.rank, world_size=context.world_size
    )
    torch.set_num_threads(1)
    task = make_task(args.seed)
    if context.rank == 0 and not args.parts.exists():
        edges = torch.cat([task.train, task.train.flip(0)], dim=1)
        graph = Data(edge_index=edges, num_nodes=task.num_nodes)
        partition_graph(graph, args.parts, context.world_size, method="random")
    dist.barrier()
    dataset = DistDataset().load(args.parts, partition_idx=context.rank)
    store = GraphStore(dataset)
    first = 0.1 * torch.randn(task.num_nodes, args.dim, generator=torch.manual_seed(args.seed))
    embedding = DistEmbedding(task.num_nodes, args.dim, store, "embedding", init=first)
    optimizer = SparseAdam([embedding], lr=args.lr)
    store.create_node_tensor("degree", init=task.train.view(-1).bincount(minlength=task.num_nodes))
    for i in range(args.layers):
        store.create_node_tensor(f"layer{i}", shape=(args.dim,))
    links = task.train[:, torch.randperm(task.train.size(1))[: args.max_links]]
    is_tag = (torch.arange(task.num_nodes) >= task.num_users).float()
    loader = DistLinkNeighborLoader(
        dataset,
        [args.fanout] * args.layers,
        edge_label_index=links[:, link_split(links, dataset)],
        neg_sampling=NegativeSampling("triplet", 1, dst_weight=is_tag),
        batch_size=args.batch_size // context.world_size,
        shuffle=True,
        seed=args.seed,
        transform=store.transform(["degree"]),
    )
    for epoch in range(1, args.epochs + 1):
        begun = time.perf_counter()
        loss = train_epoch(embedding, optimizer, loader, args)
        seconds, reached = time.perf_counter() - begun, recall(store, task, args.layers)
        if context.rank == 0:
            print(
                f"epoch {epoch}: loss {loss:.3f}, {seconds:.1f} s, recall@20: {reached:.4f}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
