"""R-GCN or HGT on the Debian package graph with its sources, maintainers and tags, under DDP.

    khop partition debian-hetero parts --num-parts 2 --undirected
    torchrun --standalone --nproc-per-node=2 examples/debian_hetero.py --parts parts

The task is that of debian_sage.py: tell a package's section of the archive, for packages of sources
that training has not seen. Here each kind of relation between packages is an edge type of its own,
and packages reach one another through their source, their maintainer and their debtags, which have
no features:

- Maintainers and tags have packages in training and in test, so what is learned of one carries
  over: each has a row in an `nn.Embedding`, looked up by `n_id`. The tables are dense. They have
  2,845 rows in all, which DDP sums in a moment; sparse gradients would need an optimizer of their
  own, and pay where a table is much larger than what a batch touches (see ogbn_mag.py).
- A source is on one side of the split: a row of its own would be the label of its training packages
  by another name, and noise for all others. Sources start from zero and pass messages on.

Debtags are close to what is asked for; `--leave-out tag` shows how the model does without.
"""

import torch.distributed as dist
from debian_training import NUM_SECTIONS, argument_parser, fit, make_loaders, start
from hetero_layers import HGTLayer, Nodes, RGCNLayer, targets_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.typing import EdgeType

EMBEDDED = ("maintainer", "tag")

# Neighbours drawn of each edge type, hop by hop. What packages need says most of them; of what a
# maintainer or a tag has to do with, a few packages will do, since their embeddings know the rest.
FANOUTS = {
    "depends": [5, 3],
    "rev_depends": [10, 5],
    "rev_built_from": [1, 1],
    "rev_maintained_by": [1, 1],
    "rev_tagged": [10, 5],
    "built_from": [0, 5],
    "maintained_by": [0, 5],
    "tagged": [0, 5],
}
OTHER_FANOUT = [3, 2]


class Input(nn.Module):
    """What nodes start from: their features, a learned row, or zeros.

    Args:
        width: number of features of a package.
        hidden: size of what is returned.
        counts: numbers of nodes of the types that get a learned row each.
    """

    def __init__(self, width: int, hidden: int, counts: dict[str, int]) -> None:
        super().__init__()
        self.hidden = hidden
        self.package = nn.Linear(width, hidden)
        self.rows = nn.ModuleDict({t: nn.Embedding(n, hidden) for t, n in counts.items()})
        for table in self.rows.values():
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, batch) -> Nodes:
        """Maps each node type to float32 [num_nodes, hidden]."""
        return {
            node_type: self._start(node_type, batch[node_type]) for node_type in batch.node_types
        }

    def _start(self, node_type: str, store) -> Tensor:
        if node_type == "package":
            return self.package(store.x)
        if node_type in self.rows:
            return self.rows[node_type](store.n_id)
        return self.package.weight.new_zeros(store.num_nodes, self.hidden)


class Network(nn.Module):
    """Two layers of either kind between `Input` and logits for the seeds.

    A batch's nodes and edges come hop by hop, so that what a layer has to compute is a prefix: the
    first layer everything but the last hop's nodes, the second the seeds. States are normalised
    after each layer; without, HGT learns slowly.

    Args:
        model: 'rgcn' or 'hgt'.
        start: makes the states that the first layer takes.
        edge_types: edge types whose messages are heard.
    """

    def __init__(self, model: str, start: Input, edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.start = start
        layer = {"rgcn": RGCNLayer, "hgt": HGTLayer}[model]
        heard = edge_types, [t for t in edge_types if t[2] == "package"]
        self.layers = nn.ModuleList(layer(start.hidden, types) for types in heard)
        self.norms = nn.ModuleList(
            nn.ModuleDict({t: nn.LayerNorm(start.hidden) for t in targets_of(types)})
            for types in heard
        )
        self.activation = nn.ReLU() if model == "rgcn" else nn.Identity()  # HGT's is inside
        self.classify = nn.Linear(start.hidden, NUM_SECTIONS)

    def forward(self, batch) -> Tensor:
        """Logits [batch_size, NUM_SECTIONS]."""
        x = self.start(batch)
        nodes, edges = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        for depth, (layer, norms) in enumerate(zip(self.layers, self.norms, strict=True)):
            hops = len(self.layers) - depth
            num_targets = {t: sum(counts[:hops]) for t, counts in nodes.items()}
            edge_index = {
                t: ends[:, : sum(edges[t][:hops])] for t, ends in batch.edge_index_dict.items()
            }
            x = {t: nn.functional.dropout(h, 0.3, self.training) for t, h in x.items()}
            x = layer(x, edge_index, num_targets)
            x = {t: self.activation(norms[t](h)) for t, h in x.items()}
        return self.classify(x["package"])


def predict(model, batch):
    """Logits and labels of the seeds, which come first."""
    package = batch["package"]
    return model(batch), package.y[: package.batch_size]


def main() -> None:
    """Trains, reports, draws."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["rgcn", "hgt"], default="rgcn")
    others = ["source", "maintainer", "tag"]
    parser.add_argument("--leave-out", nargs="+", default=[], choices=others, help="node types")
    args = parser.parse_args()
    context, dataset = start(args)
    edge_types = [t.name for t in dataset.meta.edge_types]
    used = [t for t in edge_types if not {t[0], t[2]} & set(args.leave_out)]
    fanouts = {t: FANOUTS.get(t[1], OTHER_FANOUT) if t in used else [0, 0] for t in edge_types}
    loaders = make_loaders(dataset, fanouts, args, "package")

    _, (width,) = dataset.node_attr("x", "package")
    counts = {t: dataset.meta.node_type(t).count for t in EMBEDDED if t not in args.leave_out}
    network = Network(args.model, Input(width, args.hidden, counts), used)
    fit(DistributedDataParallel(network), loaders, predict, context, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
