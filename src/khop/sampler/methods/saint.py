"""`SaintWalks` and `SaintEdges`: GraphSAINT's subgraphs around seeds. Imports no torch."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from khop.codec import Between
from khop.sampler.methods.access import GraphAccess, Waiting
from khop.sampler.methods.base import ProgramMethod, register
from khop.sampler.methods.walk import WalkPlan, walks
from khop.typing import Int64Array

LONGEST = 1000
"""Bound of `walk_length`: each step of a batch waits for the one before."""


def visited(graph: GraphAccess, roots: Int64Array, length: int) -> Waiting:
    """Walk from roots over the only edge type.

    Returns:
        [n] int64, the nodes of each step that walks are still going in, roots first.
    """
    nodes, _ = yield from walks(graph, roots, WalkPlan((0,) * length, (0,) * length), False)
    return nodes.T[nodes.T >= 0]


@register
@dataclass(frozen=True)
class SaintWalks(ProgramMethod):
    """The nodes that random walks from the seeds visit, and all edges among them.

    One walk of `walk_length` steps begins at each seed. A step goes to a uniform neighbour; a walk
    ends at a node without any. Neighbours are those that the loader draws: sources of edges, or
    destinations in a folder partitioned 'by_src'. A batch has the seeds first, then the other nodes
    in the order of their first visit. Homogeneous graphs only.

    Method: the random walk sampler of GraphSAINT (https://arxiv.org/abs/1907.04931). Its roots are
    uniform: with `shuffle=True` and all nodes as seeds each node is a root once an epoch. In memory
    `khop.loader.GraphSAINTRandomWalkSampler` draws roots with replacement and counts the norms of
    the loss, too.

    Args:
        walk_length: steps of a walk, 1 to 1,000.

    Raises:
        ValueError: another length. When the loader is made: a heterogeneous graph, a `disjoint`
            batch, or an option of draws by hop, such as `replace`.

    Example:
        >>> loader = NeighborLoader(data, SaintWalks(3), torch.tensor([0, 3]), batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.n_id[:2].tolist(), batch.num_nodes <= 2 * (1 + 3)
        ([0, 3], True)
    """

    name: ClassVar[str] = "saint-walks"
    subgraph_type: ClassVar[str | None] = "induced"

    walk_length: Annotated[int, Between(1, LONGEST)]

    def __post_init__(self) -> None:
        """Checks options."""
        length = self.walk_length
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= LONGEST:
            raise ValueError(f"walk_length must be an integer from 1 to {LONGEST} (got {length!r})")

    @property
    def num_neighbors(self) -> list[int]:
        """One neighbour of a walk's node in each step, which bounds the size of batches."""
        return [1] * self.walk_length

    def check_form(self, heterogeneous: bool, disjoint: bool) -> None:
        """See `SamplingMethod`."""
        if heterogeneous:
            raise ValueError(
                f"{type(self).__name__} walks over graphs of one node and edge type: this one is "
                "heterogeneous"
            )
        if disjoint:
            raise ValueError(
                f"{type(self).__name__} makes one subgraph of all seeds: leave disjoint and "
                "time_attr out"
            )

    def draw(self, graph: GraphAccess) -> Generator[list[Any], None, None]:
        """See `ProgramMethod`."""
        roots = np.concatenate([ids for _, ids, _ in graph.seeds])
        nodes = yield from visited(graph, roots, self.walk_length)
        found, first = np.unique(nodes, return_index=True)
        first = first[~np.isin(found, roots)]
        graph.subgraph.add_seeds(0, np.concatenate([roots, nodes[np.sort(first)]]))


@register
@dataclass(frozen=True)
class SaintEdges(SaintWalks):
    """The seeds, one uniform neighbour of each, and all edges among them.

    A uniform node and then a uniform edge of it is an edge (u, v) with a chance proportional to
    1 / d_u + 1 / d_v in an undirected graph: the law of GraphSAINT's edge sampler, without a table
    of edges. So it is `SaintWalks` of one step. In a directed graph an edge is drawn by its
    destination alone.

    Method: the edge sampler of GraphSAINT (https://arxiv.org/abs/1907.04931). In memory
    `khop.loader.GraphSAINTEdgeSampler` counts the norms of the loss, too.

    Args:
        walk_length: always 1.

    Raises:
        ValueError: as `SaintWalks`.

    Example:
        >>> loader = NeighborLoader(data, SaintEdges(), torch.tensor([0, 3]), batch_size=2)
        >>> next(iter(loader)).num_nodes
        4
    """

    name: ClassVar[str] = "saint-edges"

    walk_length: Annotated[int, Between(1, 1)] = 1
