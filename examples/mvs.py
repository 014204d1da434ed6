"""Minimal variance sampling on the Debian package graph: gradients give the chances of seeds.

    khop partition debian parts --num-parts 2 --undirected
    torchrun --standalone --nproc-per-node=2 examples/mvs.py --parts parts
    torchrun --standalone --nproc-per-node=2 examples/mvs.py --parts parts --explore 1  # uniform

Gradients of a batch vary for two reasons: the loader draws neighbours, and it draws seeds. MVS-GNN
(https://arxiv.org/abs/2006.13866) reduces the variance from seeds. A seed's chance grows with the
norm of its gradient in an earlier epoch, and its loss is divided by its chance. So a gradient has
no bias and less variance.

A `khop.nn.History` has the norms of all nodes, for all trainers. `khop.nn.mvs_chances` makes the
chances. This example uses the norm of the gradient of the loss with respect to the logits. Each
epoch draws a share of the training nodes.

The task is the same as in `debian_sage.py`.
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from debian_training import NUM_SECTIONS, accuracy, argument_parser, start
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from khop.distributed import DistNeighborLoader, GraphStore, node_split
from khop.nn import History, mvs_chances


def chances_of(history: History, seeds: Tensor, count: float, explore: float) -> Tensor:
    """Return the chance of each seed. Seeds without a norm count as the mean of the others."""
    norms = history.pull(seeds)[:, 0]
    known = norms > 0
    mean = norms[known].mean() if known.any() else torch.tensor(1.0)
    return mvs_chances(torch.where(known, norms, mean), count, explore)


def gradient_norms(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the norm of each seed's gradient of the cross entropy, with respect to its logits."""
    return (logits.detach().softmax(1) - F.one_hot(labels, logits.size(1))).norm(dim=1)


def predict(model: torch.nn.Module, batch) -> tuple[Tensor, Tensor]:
    """Return logits and labels of the seeds."""
    return model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]


def main() -> None:
    """Train, and print the spread of gradients and the test accuracy."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.5, help="of the seeds, per epoch")
    parser.add_argument("--explore", type=float, default=0.3, help="share of uniform draws")
    args = parser.parse_args()
    context, dataset = start(args)
    store = GraphStore(dataset)
    history = History(dataset.num_nodes, 1, store, "norms")
    seeds = node_split("train_mask", dataset)
    sizes = torch.tensor([len(seeds)])
    dist.all_reduce(sizes)
    draw = torch.Generator().manual_seed(args.seed + context.rank)
    _, (width,) = dataset.node_attr("x")
    model = GraphSAGE(width, args.hidden, 2, NUM_SECTIONS, dropout=0.5)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    options = {"batch_size": args.batch_size, "shuffle": True}
    for epoch in range(1, args.epochs + 1):
        begun, spread = time.perf_counter(), []
        chances = chances_of(history, seeds, args.share * len(seeds), args.explore)
        drawn = torch.rand(len(seeds), generator=draw, dtype=torch.float64) < chances
        own, weights = seeds[drawn], (1 / chances[drawn]).float()
        loader = DistNeighborLoader(dataset, [10, 10], own, seed=args.seed + epoch, **options)
        # The mean over batches and trainers estimates the mean loss of all seeds.
        scale = len(loader) * context.world_size / int(sizes)
        model.train()
        for batch in loader:
            weight = weights[batch.input_id]
            optimizer.zero_grad()
            logits, labels = predict(trained, batch)
            losses = F.cross_entropy(logits, labels, reduction="none")
            (scale * (losses * weight).sum()).backward()
            optimizer.step()
            norms = gradient_norms(logits, labels)
            history.push(norms[:, None], batch.n_id[: len(norms)])
            if len(norms) > 1:
                spread.append(float((norms * weight).std() / (norms * weight).mean()))
        store.step()
        loader.shutdown()
        if context.rank == 0:
            seconds, mean = time.perf_counter() - begun, sum(spread) / max(1, len(spread))
            label = f"epoch {epoch}: gradient norms spread by {mean:.2f} of the mean"
            print(f"{label}, {seconds:.1f} s", flush=True)
    test = node_split("test_mask", dataset)
    loader = DistNeighborLoader(dataset, [10, 10], test, batch_size=1024, seed=args.seed)
    share = accuracy(trained, loader, predict)
    if context.rank == 0:
        print(f"test accuracy: {share:.4f}")
    del trained  # PyTorch can hang if DDP is the last to hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
