"""R-GCN or HGT on the Debian package graph with sources, maintainers and tags, under DDP.

    khop partition debian-hetero parts --num-parts 2 --undirected
    torchrun --standalone --nproc-per-node=2 examples/debian_hetero.py --parts parts

The task is the same as in debian_sage.py: predict the section of a package. Training does not
see the sources of the test packages. Each relation between packages is an edge type. Packages also
have paths to one another through their source, their maintainer and their debtags. These three node
types have no features:

- A maintainer or a tag has packages in both training and test. A learned row is therefore useful in
  both. `nn.Embedding` holds one row per maintainer and tag, and `n_id` selects rows. The tables are
  dense, because they have only 2,845 rows. Sparse gradients need their own optimizer. They save
  time only if a batch reads a small share of a large table (see ogbn_mag.py).
- A source has all of its packages in one split. A learned row would store the label of its training
  packages, and would be noise for all other sources. Sources start from zero and pass messages on.

Debtags are close to the label. `--leave-out tag` shows the accuracy without debtags.
"""

import torch.distributed as dist
from debian_training import NUM_SECTIONS, argument_parser, fit, make_loaders, start
from hetero_layers import HGTLayer, Nodes, RGCNLayer, targets_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.typing import EdgeType

EMBEDDED = ("maintainer", "tag")

# Neighbours drawn per edge type and hop. Dependencies of packages predict the section best. A few
# packages of each maintainer and tag suffice, since their embeddings learn from all packages.
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
    """Initial states of nodes: mapped features, a learned row, or zeros.

    Args:
        width: number of features of a package.
        hidden: size of the states.
        counts: number of nodes of each type whose nodes have learned rows.
    """

    def __init__(self, width: int, hidden: int, counts: dict[str, int]) -> None:
        super().__init__()
        self.hidden = hidden
        self.package = nn.Linear(width, hidden)
        self.rows = nn.ModuleDict({t: nn.Embedding(n, hidden) for t, n in counts.items()})
        for table in self.rows.values():
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, batch) -> Nodes:
        """Return states of each node type, float32 [num_nodes, hidden]."""
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
    """Two R-GCN or HGT layers between `Input` and logits for the seeds.

    A batch lists its nodes and edges hop by hop. Each layer therefore computes a prefix of the
    nodes. The first layer computes all nodes but the last hop's, and the second layer computes the
    seeds. States are normalised after each layer. Without normalisation, HGT learns slowly.

    Args:
        model: 'rgcn' or 'hgt'.
        start: makes the input states of the first layer.
        edge_types: edge types that carry messages.
    """

    def __init__(self, model: str, start: Input, edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.start = start
        layer = {"rgcn": RGCNLayer, "hgt": HGTLayer}[model]
        layer_edge_types = edge_types, [t for t in edge_types if t[2] == "package"]
        self.layers = nn.ModuleList(layer(start.hidden, types) for types in layer_edge_types)
        self.norms = nn.ModuleList(
            nn.ModuleDict({t: nn.LayerNorm(start.hidden) for t in targets_of(types)})
            for types in layer_edge_types
        )
        self.activation = nn.ReLU() if model == "rgcn" else nn.Identity()  # part of an HGT layer
        self.classify = nn.Linear(start.hidden, NUM_SECTIONS)

    def forward(self, batch) -> Tensor:
        """Return logits of the seeds, float32 [batch_size, NUM_SECTIONS]."""
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
    """Return logits and labels of the seeds, the first nodes of a batch."""
    package = batch["package"]
    return model(batch), package.y[: package.batch_size]


def main() -> None:
    """Train, and report accuracy."""
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
