"""Layers for batches of heterogeneous graphs, which compute no more than a batch needs.

Nodes and edges of a batch come hop by hop, so that the nodes whose new states a layer has to
compute are the first ones of each type: `num_targets`. Both layers take

    x: {node type: float32 [num_nodes, hidden]},
    edge_index: {edge type: int64 [2, num_edges]}, ends among these nodes and targets,
    num_targets: {node type: number of nodes to compute},

and return {node type: float32 [num_targets, hidden]} of the types that edges lead to. What a
relation does is done to targets, of which there are fewer than sources. All parameters take part in
every batch, also in one that has no edge of some type, as DDP wants it.
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

    A node's new state is a linear map of its own, one for each node type, and the sum over edge
    types of the mean of its neighbours, mapped by one matrix for each edge type.

    Args:
        hidden: size of states, old and new.
        edge_types: edge types whose messages are heard.
    """

    def __init__(self, hidden: int, edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.own = nn.ModuleDict({t: nn.Linear(hidden, hidden) for t in targets_of(edge_types)})
        self.relations = ModuleDict(
            {t: SAGEConv(hidden, hidden, root_weight=False, bias=False) for t in edge_types}
        )

    def forward(self, x: Nodes, edge_index: Edges, num_targets: dict[str, int]) -> Nodes:
        """New states of the targets; see the module."""
        targets = {t: x[t][: num_targets[t]] for t in self.own}
        out = {t: own(targets[t]) for t, own in self.own.items()}
        for (source, relation, target), conv in self.relations.items():
            ends = edge_index[source, relation, target]
            out[target] = out[target] + conv((x[source], targets[target]), ends)
        return out


class HGTLayer(nn.Module):
    """Heterogeneous graph transformer (https://arxiv.org/abs/2003.01332).

    The function of PyG's `HGTConv`. That one maps keys and values of all nodes for each edge type;
    here the query is mapped instead (q A k^T is the same either way) and the sum of the values.

    Args:
        hidden: size of states, old and new.
        edge_types: edge types whose messages are heard.
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
        """New states of the targets; see the module."""
        keys = {t: self._by_head(key(x[t])) for t, key in self.key.items()}
        values = {t: self._by_head(value(x[t])) for t, value in self.value.items()}
        out = {}
        for target in self.query:
            own = x[target][: num_targets[target]]
            query = self._by_head(self.query[target](own))
            relations = [t for t in self.prior.keys() if t[2] == target]  # noqa: SIM118
            weights = self._weights(query, keys, edge_index, relations)
            heard = torch.zeros_like(query)
            for relation, weight in zip(relations, weights, strict=True):
                source, destination = edge_index[relation]
                messages = weight.unsqueeze(-1) * values[relation[0]][source]
                total = torch.zeros_like(query).index_add(0, destination, messages)
                heard = heard + torch.einsum("nhd,hde->nhe", total, self.message[relation])
            new = self.out[target](nn.functional.gelu(heard.flatten(1)))
            share = self.skip[target].sigmoid()
            out[target] = share * new + (1 - share) * own
        return out

    def _weights(
        self, query: Tensor, keys: Nodes, edge_index: Edges, relations: list[EdgeType]
    ) -> list[Tensor]:
        """Attention [num_edges, heads] of each relation; a target's sums to 1 over all of them."""
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
    """Node types that edges lead to, in order of names."""
    return sorted({t[2] for t in edge_types})
