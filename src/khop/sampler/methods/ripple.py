"""`RippleWalk`: subgraphs that grow by random shares of their border. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar

import numpy as np

from khop import _native
from khop.codec import Between
from khop.sampler.methods.access import GraphAccess, Waiting
from khop.sampler.methods.base import register
from khop.sampler.methods.border import Border
from khop.sampler.methods.saint import MOST_NODES, NodeSubgraph, roots_of
from khop.typing import Int64Array

_SHARES, _RESTARTS = 20, 21  # purposes of keys
_LEAST_RATIO = 0.001


@register
@dataclass(frozen=True)
class RippleWalk(NodeSubgraph):
    """The seeds, nodes that join them from their border, and all edges among these nodes.

    The border is all neighbours of the batch's nodes that are not in the batch. In each round
    `ratio` of the border, at least one node, is drawn uniformly without replacement and joins the
    batch. The last round draws no more nodes than are missing. Where the border is empty, a uniform
    node joins. A batch has the seeds first, then the other nodes in the order in which they joined.
    One seed per batch (`batch_size=1`) gives the paper's subgraph. Several seeds grow one subgraph
    together. Homogeneous graphs only. Whole rows are read.

    Method: the sampler of Ripple Walk Training (https://arxiv.org/abs/2002.07206).

    Args:
        num_nodes: nodes of a batch, including its seeds. A smaller graph is taken whole.
        ratio: share of the border that joins in a round, 0.001 to 1.

    Raises:
        ValueError: options out of range. When the loader is made: as `SaintWalks`.

    Example:
        >>> loader = NeighborLoader(data, RippleWalk(4, 0.5), torch.tensor([0, 3]), seed=0)
        >>> [(int(batch.n_id[0]), batch.num_nodes) for batch in loader]
        [(0, 4), (3, 4)]
    """

    name: ClassVar[str] = "ripple-walk"

    num_nodes: Annotated[int, Between(1, MOST_NODES)]
    ratio: Annotated[float, Between(_LEAST_RATIO, 1)] = 0.5

    @property
    def num_neighbors(self) -> list[int]:
        """Maximum number of nodes of a batch, as the fan-out of one hop."""
        return [self.num_nodes]

    def draw(self, graph: GraphAccess) -> Waiting[None]:
        border = Border(graph, 0, roots_of(graph))
        # Seeds can repeat: they count once.
        left = min(self.num_nodes, graph.num_nodes[0]) - len(border.joined)
        ratio, step = Fraction(self.ratio), 0
        while left > 0:
            _, neighbors, _ = yield from graph.neighbors(0, border.joined, with_edge=False)
            border.joined = np.empty(0, np.int64)
            yield from border.extend(neighbors, np.zeros(len(neighbors), np.int64))
            if len(border.ids):
                words = _native.draw_words(graph.key(_SHARES, step), border.original)
                border.take(words, min(left, max(1, int(ratio * len(border.ids)))))
            else:
                border.join(_first_outside(graph, border, step))
            left -= len(border.joined)
            step += 1
        graph.subgraph.add_seeds(0, border.members)


def _first_outside(graph: GraphAccess, border: Border, step: int) -> Int64Array:
    """Draw a uniform node that is not in the batch, [1] int64."""
    trial = 0
    while True:
        drawn = _native.draw_ids(graph.key(_RESTARTS, step, trial), graph.num_nodes[0], 64)
        ids = graph.engine_ids(0, drawn)
        outside = ids[~np.isin(ids, border.members)]
        if len(outside):
            return outside[:1]
        trial += 1
