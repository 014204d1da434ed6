"""`PinSage`: the nodes that short random walks visit most. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from khop.codec import Between
from khop.sampler.methods.access import GraphAccess, Waiting, add_all_seeds
from khop.sampler.methods.base import register
from khop.sampler.methods.ranked import RankedNeighbors, add_highest, weights_of
from khop.sampler.methods.walk import ONE, WalkPlan, walks
from khop.typing import Array

_MOST = 10_000


@register
@dataclass(frozen=True)
class PinSage(RankedNeighbors):
    """The nodes that random walks from a node visit most often.

    From each node `num_random_walks` walks begin, over the neighbours that the loader draws. A walk
    ends before each step but the first with chance `termination_prob`. A node's neighbours in the
    batch are the `num_neighbors_per_node` nodes visited most often (of equal counts the larger id),
    which can include the node itself. Their `edge_weight` is the number of visits. The edges are
    not the graph's: batches have no `e_id` and no attributes of edges. Homogeneous graphs without
    times.

    Method: PinSage (https://arxiv.org/abs/1806.01973).

    Args:
        num_neighbors_per_node: nodes that each node is joined to.
        num_random_walks: walks from each node.
        num_traversals: most steps of a walk.
        termination_prob: chance that a walk ends before a step.
        num_layers: number of hops. Nodes that a hop adds are joined in the next.

    Raises:
        ValueError: options out of range. When the loader is made: a heterogeneous graph, or a
            `disjoint` batch.

    Example:
        >>> loader = NeighborLoader(data, PinSage(2, num_random_walks=8), batch_size=6, seed=0)
        >>> batch = next(iter(loader))
        >>> batch.num_edges, batch.edge_weight.shape
        (12, torch.Size([12]))
    """

    name: ClassVar[str] = "pinsage"

    num_neighbors_per_node: Annotated[int, Between(1, _MOST)]
    num_random_walks: Annotated[int, Between(1, _MOST)] = 10
    num_traversals: Annotated[int, Between(1, 1000)] = 2
    termination_prob: Annotated[float, Between(0, 1)] = 0.5
    num_layers: Annotated[int, Between(1, 10)] = 1

    @property
    def num_neighbors(self) -> list[int]:
        """Maximum number of neighbours that a node gets, for each hop."""
        return [self.num_neighbors_per_node] * self.num_layers

    def draw(self, graph: GraphAccess) -> Waiting[None]:
        add_all_seeds(graph)
        length, weights = self.num_traversals, list[Array]()
        stops = (0, *[round(self.termination_prob * ONE)] * (length - 1))
        for hop in range(self.num_layers):
            starts = np.repeat(graph.subgraph.frontier(0)[0], self.num_random_walks)
            plan = WalkPlan((0,) * length, stops, first_step=hop * length)
            walked, _ = yield from walks(graph, starts, plan, False)
            visits = walked[:, 1:]
            walk, _ = np.nonzero(visits >= 0)
            width = graph.num_nodes[0]
            pairs = walk // self.num_random_walks * width + visits[visits >= 0]
            pairs, counts = np.unique(pairs, return_counts=True)
            kept = yield from add_highest(
                graph, pairs // width, pairs % width, counts, self.num_neighbors_per_node, True
            )
            weights.append(counts[kept])
        graph.values["e0.edge_weight"] = weights_of(weights)
