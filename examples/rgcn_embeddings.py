"""R-GCN on the Debian package graph with embeddings of maintainers and tags in a graph store.

    khop partition debian-hetero parts --num-parts 2 --undirected
    torchrun --standalone --nproc-per-node=2 examples/rgcn_embeddings.py --parts parts

The model is the one of `debian_hetero.py`. Node types without features have learned rows. There,
each trainer holds all rows, and DDP averages gradients of all of them. Here they are a
`DistEmbedding` per type. The servers of the partitions hold the rows, and a step changes the rows
of a batch alone. So tables may be larger than a trainer's memory.
"""

import torch
import torch.distributed as dist
from debian_hetero import EMBEDDED, FANOUTS, OTHER_FANOUT, Input, Network, predict
from debian_training import argument_parser, fit, make_loaders, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from khop.distributed import GraphStore
from khop.nn import DistEmbedding
from khop.optim import SparseAdam


class StoredInput(Input):
    """Initial states of nodes, with learned rows in a graph store."""

    def __init__(self, width: int, hidden: int, counts: dict[str, int], store: GraphStore) -> None:
        super().__init__(width, hidden, {})
        self.rows = nn.ModuleDict()
        for i, (node_type, count) in enumerate(counts.items()):
            first = 0.1 * torch.randn(count, hidden, generator=torch.manual_seed(i))
            self.rows[node_type] = DistEmbedding(
                count, hidden, store, f"rows of {node_type}", node_type, init=first
            )


def main() -> None:
    """Train, and report accuracy."""
    args = argument_parser(__doc__.splitlines()[0]).parse_args()
    context, dataset = start(args)
    store = GraphStore(dataset)
    edge_types = [t.name for t in dataset.meta.edge_types]
    fanouts = {t: FANOUTS.get(t[1], OTHER_FANOUT) for t in edge_types}
    loaders = make_loaders(dataset, fanouts, args, "package")
    _, (width,) = dataset.node_attr("x", "package")
    counts = {t: store.node_counts[t] for t in EMBEDDED}
    initial = StoredInput(width, args.hidden, counts, store)
    optimizer = SparseAdam(initial.rows.values(), lr=args.lr)
    network = Network("rgcn", initial, edge_types)
    fit(DistributedDataParallel(network), loaders, predict, context, args, [optimizer])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
