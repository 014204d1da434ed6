"""Layers for heterogeneous graphs that compute only the states that a batch needs.

A batch lists its nodes and edges hop by hop. The targets of a layer are the nodes whose new states
it computes. They are the first `num_targets` nodes of each type. Both layers take

    x: {node type: float32 [num_nodes, hidden]},
    edge_index: {edge type: int64 [2, num_edges]}, from these nodes to targets,
    num_targets: {node type: number of targets},

and return {node type: float32 [num_targets, hidden]} for the types that edges point to. The matrix
of a relation is applied to targets, because a batch has fewer targets than sources. All parameters
take part in every batch, as DDP requires. This includes batches without edges of some type.
"""

import math

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.nn.parameter_dict import ParameterDict
from torch_geometric.typing import EdgeType
from torch_geometric.utils import softmax

Nodes = dict[str, Tensor]
Edges = dict[EdgeType, Tensor]


class RGCNLayer(nn.Module):
    """Relational graph convolution (https://arxiv.org/abs/1703.06103) on several node types.

    A node's new state is the sum of two terms. The first is a linear map of its old state, with one
    map per node type. The second is a sum over edge types. It adds the mean of the neighbours,
    mapped by one matrix per edge type.

    Args:
        hidden: size of states, old and new.
        edge_types: edge types that carry messages.
    """

    def __init__(self, hidden: int, edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.own = nn.ModuleDict({t: nn.Linear(hidden, hidden) for t in targets_of(edge_types)})
        self.relations = ModuleDict(
            {t: SAGEConv(hidden, hidden, root_weight=False, bias=False) for t in edge_types}
        )

    def forward(self, x: Nodes, edge_index: Edges, num_targets: dict[str, int]) -> Nodes:
        """Return new states of the targets. The module docstring has the shapes."""
        targets = {t: x[t][: num_targets[t]] for t in self.own}
        out = {t: own(targets[t]) for t, own in self.own.items()}
        for (source, relation, target), conv in self.relations.items():
            ends = edge_index[source, relation, target]
            out[target] = out[target] + conv((x[source], targets[target]), ends)
        return out


class HGTLayer(nn.Module):
    """Heterogeneous graph transformer (https://arxiv.org/abs/2003.01332).

    The layer computes the same function as PyG's `HGTConv`. `HGTConv` maps keys and values of all
    nodes once per edge type. This layer maps the query instead, because q A k^T is the same. It
    also maps the sum of the values instead of each value.

    Args:
        hidden: size of states, old and new.
        edge_types: edge types that carry messages.
        heads: number of attention heads.
    """

    def __init__(self, hidden: int, edge_types: list[EdgeType], heads: int = 4) -> None:
        super().__init__()
        self.heads, size = heads, hidden // heads
        sources, targets = sorted({t[0] for t in edge_types}), targets_of(edge_types)

        def linear(types: list[str]) -> nn.ModuleDict:
            return nn.ModuleDict({t: nn.Linear(hidden, hidden) for t in types})

        def matrices() -> ParameterDict:
            bound = math.sqrt(3 / size)
            shape = (heads, size, size)
            return ParameterDict(
                {t: nn.Parameter(torch.empty(shape).uniform_(-bound, bound)) for t in edge_types}
            )

        self.key, self.value = linear(sources), linear(sources)
        self.query, self.out = linear(targets), linear(targets)
        self.attention, self.message = matrices(), matrices()
        self.prior = ParameterDict({t: nn.Parameter(torch.ones(heads)) for t in edge_types})
        self.skip = nn.ParameterDict({t: nn.Parameter(torch.ones(1)) for t in targets})

    def forward(self, x: Nodes, edge_index: Edges, num_targets: dict[str, int]) -> Nodes:
        """Return new states of the targets. The module docstring has the shapes."""
        keys = {t: self._by_head(key(x[t])) for t, key in self.key.items()}
        values = {t: self._by_head(value(x[t])) for t, value in self.value.items()}
        out = {}
        for target in self.query:
            own = x[target][: num_targets[target]]
            query = self._by_head(self.query[target](own))
            relations = [t for t in self.prior.keys() if t[2] == target]  # noqa: SIM118
            weights = self._weights(query, keys, edge_index, relations)
            received = torch.zeros_like(query)
            for relation, weight in zip(relations, weights, strict=True):
                source, destination = edge_index[relation]
                messages = weight.unsqueeze(-1) * values[relation[0]][source]
                total = torch.zeros_like(query).index_add(0, destination, messages)
                received = received + torch.einsum("nhd,hde->nhe", total, self.message[relation])
            new = self.out[target](nn.functional.gelu(received.flatten(1)))
            share = self.skip[target].sigmoid()
            out[target] = share * new + (1 - share) * own
        return out

    def _weights(
        self, query: Tensor, keys: Nodes, edge_index: Edges, relations: list[EdgeType]
    ) -> list[Tensor]:
        """Return attention weights per relation, [num_edges, heads]. They sum to 1 per target."""
        scores = []
        for relation in relations:
            source, destination = edge_index[relation]
            asked = torch.einsum("nhd,hed->nhe", query, self.attention[relation])
            match = (asked[destination] * keys[relation[0]][source]).sum(-1)
            scores.append(match * self.prior[relation] / math.sqrt(query.size(-1)))
        destinations = torch.cat([edge_index[relation][1] for relation in relations])
        weights = softmax(torch.cat(scores), destinations, num_nodes=len(query))
        return list(weights.split([len(score) for score in scores]))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.heads, x.size(1) // self.heads)


def targets_of(edge_types: list[EdgeType]) -> list[str]:
    """Return the node types that edges point to, sorted by name."""
    return sorted({t[2] for t in edge_types})
