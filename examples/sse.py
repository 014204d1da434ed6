"""Steady states of a graph on the Debian package graph, by stochastic updates (SSE).

    khop partition debian parts --num-parts 2 --undirected
    torchrun --standalone --nproc-per-node=2 examples/sse.py --parts parts

Each node has a state, which depends on its neighbours' states: h_v = T(x_v, mean of h_u). The model
learns T such that steady states predict labels. A step takes some nodes and all of their
neighbours. It moves the nodes' states towards T, and changes T by the gradient of one update. So
nodes see others at any distance, and a batch has one hop (Dai et al., 2018,
https://proceedings.mlr.press/v80/dai18a.html). States are rows of `khop.nn.History`. After each
epoch that trains, some sweeps let the states settle.

The task is the same as in `debian_sage.py`.
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from debian_training import NUM_SECTIONS, argument_parser, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.utils import scatter

from khop.distributed import DistNeighborLoader, GraphStore, node_split
from khop.nn import History


class SteadyState(nn.Module):
    """The update of states, and the prediction from states."""

    def __init__(self, width: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(width + hidden, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.predict = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return updated states and logits of nodes."""
        h = self.second(self.first(torch.cat([x, mean], dim=1)).relu()).tanh()
        return h, self.predict(F.dropout(h, 0.5, self.training))


def sweep(model, store: GraphStore, states: History, loader, rate: float, mask: str, optimizer):
    """Update the states of all nodes once. Return accuracy and mean change of a state.

    The accuracy is over the nodes of a mask, of all trainers. If `optimizer` is None, only states
    change.
    """
    model.train(optimizer is not None)
    sums = torch.zeros(4)
    with torch.set_grad_enabled(optimizer is not None):
        for batch in loader:
            size, (source, target) = batch.batch_size, batch.edge_index
            old = states.pull(batch.n_id)
            mean = scatter(old[source], target, dim_size=size, reduce="mean")
            h, logits = model(batch.x[:size], mean)
            states.push(old[:size].lerp(h.detach(), rate), batch.n_id[:size])
            own, y = batch[mask][:size], batch.y[:size]
            right = (logits.argmax(1) == y)[own].sum()
            change = (h.detach() - old[:size]).abs().mean(1).sum()
            sums += torch.tensor([right, own.sum(), change, size])
            if optimizer is not None:
                optimizer.zero_grad()
                loss = F.cross_entropy(logits[own], y[own], reduction="sum")
                (loss / max(1, int(own.sum()))).backward()
                optimizer.step()
            store.step()
    dist.all_reduce(sums)
    return float(sums[0] / sums[1]), float(sums[2] / sums[3])


def main() -> None:
    """Train, and print accuracies."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=0.5, help="part of an update that is applied")
    parser.add_argument("--settle", type=int, default=3, help="sweeps after each that trains")
    args = parser.parse_args()
    context, dataset = start(args)
    store = GraphStore(dataset)
    states = History(dataset.num_nodes, args.hidden, store, "states")
    nodes = node_split(torch.arange(dataset.num_nodes), dataset)
    options = {"batch_size": args.batch_size, "shuffle": True, "seed": args.seed}
    loader = DistNeighborLoader(dataset, [-1], nodes, **options)
    _, (width,) = dataset.node_attr("x")
    model = SteadyState(width, args.hidden, NUM_SECTIONS)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        begun = time.perf_counter()
        accuracy, _ = sweep(trained, store, states, loader, args.rate, "train_mask", optimizer)
        for _ in range(args.settle):
            result = sweep(model, store, states, loader, args.rate, "test_mask", None)
        if context.rank == 0:
            print(
                f"epoch {epoch}: training accuracy {accuracy:.4f}, test accuracy: {result[0]:.4f}, "
                f"states change by {result[1]:.4f}, {time.perf_counter() - begun:.1f} s",
                flush=True,
            )
    del trained  # PyTorch can hang if DDP is the last to hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
