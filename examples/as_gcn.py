"""AS-GCN on the Debian package graph: layers of nodes, drawn by an importance that is learned.

    khop partition debian parts --num-parts 2 --undirected
    torchrun --standalone --nproc-per-node=2 examples/as_gcn.py --parts parts

Each layer draws nodes for all nodes of the layer above together. The chance of a neighbour u is
proportional to c(u) g(x_u): c(u) is the sum of 1 / degree over the nodes that it leads to, and g is
the importance, a function of its features. The variance of the layer is least if g is the norm of
the activation, which is not known before. So g is trained with the model, by an estimate of this
variance (https://arxiv.org/abs/1809.05343).

`Adaptive` is a sampling method of its own, in NumPy. The importance of all nodes is a tensor of a
`GraphStore`, which all trainers write after each epoch. The task is the same as in
`debian_sage.py`.
"""

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from debian_training import NUM_SECTIONS, argument_parser, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from khop.distributed import DistNeighborLoader, GraphStore, node_split
from khop.loader import ToLayers
from khop.sampler import StepMethod, register
from methods import Sage, steps_of


@register
@dataclass(frozen=True)
class Adaptive(StepMethod):
    """Layers of nodes, drawn with replacement by their importance. It is the same in an epoch."""

    sampling_type = "collective"
    edge_values = ("edge_norm",)
    layer_wise = True
    importance: ClassVar[np.ndarray]  # [num_nodes] float32, set by the trainer

    sizes: tuple[int, ...] = (512, 1024)

    def steps(self):
        return len(self.sizes)

    def sample_size(self, step):
        return self.sizes[step]

    def step_transits(self, step, sample):
        return sample.nodes

    def next(self, transits, step):
        size, nodes = self.sizes[step], transits.nodes
        if len(nodes) == 0:
            return np.full(size, -1), np.zeros(size)
        shares = np.bincount(transits.node, 1 / transits.counts[transits.rows])
        chances = shares * self.importance[nodes]
        ends = np.cumsum(chances)
        words = transits.sample.words(np.arange(size)) >> np.uint64(11)
        picks = np.searchsorted(ends, words * 2.0**-53 * ends[-1], side="right")
        picks = np.minimum(picks, len(nodes) - 1)
        _, entries = np.unique(transits.node, return_index=True)
        return entries[picks], ends[-1] / (size * chances[picks])


class AsGcn(Sage):
    """GraphSAGE with weighted messages, and the importance of nodes by their features."""

    def __init__(self, width: int, hidden: int, num_layers: int) -> None:
        super().__init__(width, hidden, NUM_SECTIONS, num_layers)
        self.gate = nn.Linear(width, 1)

    def importance(self, x: Tensor) -> Tensor:
        """Return g of nodes, float32 [n], positive."""
        return F.softplus(self.gate(x)).view(-1) + 0.01

    def forward(self, batch) -> tuple[Tensor, Tensor]:
        """Return logits of the seeds, and the logarithm of the estimated variance of all layers."""
        h, variance = batch.x, torch.zeros(())
        for layer, (edge_index, weight, size) in zip(self.layers, steps_of(batch), strict=True):
            # Nodes were drawn by an earlier g. So a mean over drawn nodes is divided by that g.
            drawn = edge_index[0].unique()
            g, before = self.importance(batch.x[drawn]), batch.importance[drawn]
            square = h[drawn].detach().square().sum(1)
            variance = variance + ((g / before).mean() * (square / (g * before)).mean()).log()
            h = layer((h, h[: size[1]]), edge_index, weight)
            if layer is not self.layers[-1]:
                h = F.dropout(h.relu(), 0.5, self.training)
        return h, variance


def main() -> None:
    """Train, and print losses and test accuracy."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024], help="nodes per layer")
    args = parser.parse_args()
    context, dataset = start(args)
    store = GraphStore(dataset)
    importance = store.create_node_tensor("importance")
    _, (width,) = dataset.node_attr("x")
    model = AsGcn(width, args.hidden, len(args.sizes))
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    split, add_importance = ToLayers(), store.transform(["importance"])
    loaders = {
        name: DistNeighborLoader(
            dataset,
            Adaptive(tuple(args.sizes)),
            f"{name}_mask",
            batch_size=args.batch_size,
            shuffle=name == "train",
            seed=args.seed,
            transform=lambda batch: split(add_importance(batch)),
        )
        for name in ("train", "test")
    }
    nodes = node_split(torch.arange(dataset.num_nodes), dataset)

    def publish() -> None:
        """Write the importance of this trainer's nodes, and read the importance of all."""
        for ids in nodes.split(1 << 14):
            x = dataset.get_tensor("node", "x", index=ids)
            with torch.no_grad():
                importance.push(ids, model.importance(x))
        store.step()
        Adaptive.importance = importance.pull().numpy()

    for epoch in range(1, args.epochs + 1):
        publish()
        begun, total = time.perf_counter(), torch.zeros(2)
        model.train()
        for batch in loaders["train"]:
            optimizer.zero_grad()
            logits, variance = trained(batch)
            loss = F.cross_entropy(logits, batch.y[: batch.batch_size])
            (loss + 0.1 * variance).backward()
            optimizer.step()
            total += torch.stack([loss.detach(), variance.detach()])
        loss, variance = (total / len(loaders["train"])).tolist()
        if context.rank == 0:
            print(
                f"epoch {epoch}: loss {loss:.3f}, log variance {variance:.3f}, "
                f"{time.perf_counter() - begun:.1f} s",
                flush=True,
            )
    publish()
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for batch in loaders["test"]:
            right = model(batch)[0].argmax(1) == batch.y[: batch.batch_size]
            counts += torch.tensor([right.sum(), len(right)])
    dist.all_reduce(counts)
    if context.rank == 0:
        print(f"test accuracy: {float(counts[0] / counts[1]):.4f}")
    del trained  # PyTorch can hang if DDP is the last to hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
