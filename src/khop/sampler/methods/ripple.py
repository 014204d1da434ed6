"""`RippleWalk`: subgraphs that grow over a share of their border. Imports no torch."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np

from khop import _native
from khop.codec import Between
from khop.sampler.methods.access import GraphAccess
from khop.sampler.methods.base import register
from khop.sampler.methods.border import Border
from khop.sampler.methods.saint import MOST_NODES, NodeSubgraph, check_count

_SHARES, _RESTARTS = 20, 21  # purposes of keys
_LEAST_RATIO = 0.001


@register
@dataclass(frozen=True)
class RippleWalk(NodeSubgraph):
    """The seeds, grown to a number of nodes over a share of their border, and all edges among them.

    The border is all nodes that are no node of the batch and a neighbour of one. In each round
    `ratio` of it, at least one node, is drawn uniformly without replacement and joins the batch; in
    the last round no more than are missing. Where the border is empty, a uniform node joins. A
    batch has the seeds first, then the other nodes in the order in which they joined. One seed a
    batch (`batch_size=1`) is the paper's subgraph; several grow one together. Homogeneous graphs
    only; whole rows are read.

    Method: the sampler of Ripple Walk Training (https://arxiv.org/abs/2002.07206).

    Args:
        num_nodes: nodes of a batch, seeds included; fewer only if the graph has fewer.
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

    def __post_init__(self) -> None:
        """Checks options."""
        check_count(self.num_nodes, "num_nodes")
        if not _LEAST_RATIO <= self.ratio <= 1:
            raise ValueError(f"ratio must be a share from {_LEAST_RATIO} to 1 (got {self.ratio!r})")

    @property
    def num_neighbors(self) -> list[int]:
        """Bound of a batch's nodes, as one hop."""
        return [self.num_nodes]

    def draw(self, graph: GraphAccess) -> Generator[list[Any], None, None]:
        """See `ProgramMethod`."""
        roots = np.concatenate([ids for _, ids, _ in graph.seeds])
        border = Border(graph, 0, roots)
        wanted = min(self.num_nodes, graph.num_nodes[0])
        # Seeds may repeat: they count once.
        left = wanted - len(border.joined)
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


def _first_outside(graph: GraphAccess, border: Border, step: int) -> Any:
    """Draw a uniform node that is none of the batch's, [1] int64."""
    trial = 0
    while True:
        key = graph.key(_RESTARTS, step, trial)
        drawn = _native.draw_ids(key, graph.num_nodes[0], 64)
        ids = graph.engine_ids(0, drawn)
        outside = ids[~np.isin(ids, border.members)]
        if len(outside):
            return outside[:1]
        trial += 1
