"""GNNAutoScale on the Debian package graph: whole clusters, and histories of their neighbours.

    khop partition debian parts --num-parts 2 --undirected --cluster-ids --clusters 400
    torchrun --standalone --nproc-per-node=2 examples/autoscale.py --parts parts

A batch has the nodes of some clusters, and all of their neighbours, the halo. Each layer computes
the clusters' nodes over all neighbours. Activations of the halo come from `khop.nn.History`, where
earlier batches pushed them. So no edge is left out, and a batch has one hop for any number of
layers (https://arxiv.org/abs/2106.05609).

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
from torch_geometric.nn import SAGEConv

from khop.distributed import DistClusterLoader, GraphStore
from khop.nn import History


class AutoScale(nn.Module):
    """GraphSAGE whose layers read activations of the halo from histories."""

    def __init__(self, sizes: list[int], num_nodes: int, store: GraphStore) -> None:
        super().__init__()
        self.convs = nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(sizes))
        self.histories = nn.ModuleList(
            History(num_nodes, size, store, f"h{i}") for i, size in enumerate(sizes[1:-1])
        )

    def forward(self, batch) -> Tensor:
        """Return logits of the clusters' nodes, which are the first of the batch."""
        size = batch.batch_size
        own, halo = batch.n_id[:size], batch.n_id[size:]
        for history in self.histories:
            history.prefetch(halo)  # rows come while the first layer is computed
        h = batch.x
        for i, conv in enumerate(self.convs):
            h = conv((h, h[:size]), batch.edge_index)
            if i < len(self.histories):
                h = h.relu()
                self.histories[i].push(h, own)
                h = torch.cat([h, self.histories[i].pull(halo)])
                h = F.dropout(h, 0.5, self.training)
        return h


def run_epoch(model, store: GraphStore, loader, mask: str, optimizer=None) -> tuple:
    """Return mean loss and accuracy over the nodes of a mask, of all trainers."""
    model.train(optimizer is not None)
    sums = torch.zeros(3)
    with torch.set_grad_enabled(optimizer is not None):
        for batch in loader:
            own = batch[mask][: batch.batch_size]
            logits, y = model(batch)[own], batch.y[: batch.batch_size][own]
            loss = F.cross_entropy(logits, y, reduction="sum")
            sums += torch.tensor([float(loss.detach()), (logits.argmax(1) == y).sum(), len(y)])
            if optimizer is not None:
                optimizer.zero_grad()
                (loss / max(1, len(y))).backward()
                optimizer.step()
            store.step()
    dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def main() -> None:
    """Train, and print losses and test accuracy."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--clusters", type=int, default=8, help="per batch")
    args = parser.parse_args()
    context, dataset = start(args)
    store = GraphStore(dataset)
    _, (width,) = dataset.node_attr("x")
    sizes = [width, *[args.hidden] * (args.layers - 1), NUM_SECTIONS]
    model = AutoScale(sizes, dataset.num_nodes, store)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    options = {"batch_size": args.clusters, "shuffle": True, "seed": args.seed}
    loader = DistClusterLoader(dataset, halo=True, **options)
    for epoch in range(1, args.epochs + 1):
        begun = time.perf_counter()
        loss, _ = run_epoch(trained, store, loader, "train_mask", optimizer)
        if context.rank == 0:
            print(
                f"epoch {epoch}: loss {loss:.3f}, {time.perf_counter() - begun:.1f} s", flush=True
            )
    for _ in sizes[1:]:  # each pass makes the histories of one more layer exact
        _, accuracy = run_epoch(model, store, loader, "test_mask")
    if context.rank == 0:
        print(f"test accuracy: {accuracy:.4f}")
    del trained  # PyTorch can hang if DDP is the last to hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
