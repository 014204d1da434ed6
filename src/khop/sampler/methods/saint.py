"""`SaintWalks`, `SaintEdges` and `SaintNodes`: GraphSAINT's subgraphs. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from khop import _native
from khop.codec import Between
from khop.sampler.methods.access import GraphAccess, Waiting
from khop.sampler.methods.base import ProgramMethod, check_numbers, register
from khop.sampler.methods.walk import WalkPlan, walks
from khop.typing import Array, Int64Array

_LONGEST = 1000  # each step of a batch waits for the one before

MOST_NODES = 1 << 24
"""Most nodes that a method draws for a batch."""

SOURCES = 18
"""Purpose of keys: draws of `sources`."""


def visited(graph: GraphAccess, roots: Int64Array, length: int) -> Waiting[Int64Array]:
    """Walk from `roots` over the only edge type, `length` steps each.

    Returns:
        [n] int64, the roots, then the nodes that walks reach in each step.
    """
    nodes, _ = yield from walks(graph, roots, WalkPlan((0,) * length, (0,) * length), False)
    by_step: Int64Array = nodes.T
    return by_step[by_step >= 0]


def sources(key: int, ends: Array, count: int) -> Int64Array:
    """Draw the sources of uniform edges, with replacement: nodes in proportion to degrees.

    Args:
        key: key of the draws.
        ends: [num_nodes] running sums of the degrees. The last is above 0.
        count: number of draws.

    Returns:
        [count] int64, ascending.
    """
    edges = np.sort(_native.draw_ids(key, int(ends[-1]), count))
    return np.searchsorted(ends, edges, side="right").astype(np.int64)


def roots_of(graph: GraphAccess) -> Int64Array:
    """Return the seeds of a batch from a homogeneous graph, [n] int64."""
    return np.concatenate([ids for _, ids, _ in graph.seeds])


def first_of_each(nodes: Int64Array, known: Int64Array) -> Int64Array:
    """Return nodes that are not in `known`, each once, in the order of first appearance."""
    distinct, first = np.unique(nodes, return_index=True)
    return nodes[np.sort(first[~np.isin(distinct, known)])]


@dataclass(frozen=True)
class NodeSubgraph(ProgramMethod):
    """Base of methods that choose nodes of a homogeneous graph: a batch has all edges among them.

    Seeds are the first nodes of a batch.
    """

    subgraph_type: ClassVar[str | None] = "induced"
    _is_homogeneous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_numbers(self)


@register
@dataclass(frozen=True)
class SaintWalks(NodeSubgraph):
    """The nodes that random walks from the seeds visit, and all edges among them.

    One walk of `walk_length` steps begins at each seed. A step goes to a uniform neighbour. A walk
    ends at a node without any. Neighbours are the loader's: sources of edges, or destinations in a
    folder partitioned 'by_src'. A batch has the seeds first, then the other nodes in the order of
    their first visit. Homogeneous graphs only.

    Method: the random walk sampler of GraphSAINT (https://arxiv.org/abs/1907.04931). Its roots are
    uniform: with `shuffle=True` and all nodes as seeds each node is a root once per epoch. In
    memory `khop.loader.GraphSAINTRandomWalkSampler` draws roots with replacement and also computes
    the norms of the loss.

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

    walk_length: Annotated[int, Between(1, _LONGEST)]

    @property
    def num_neighbors(self) -> list[int]:
        """One neighbour per node and step, which bounds the size of batches."""
        return [1] * self.walk_length

    def draw(self, graph: GraphAccess) -> Waiting[None]:
        roots = roots_of(graph)
        nodes = yield from visited(graph, roots, self.walk_length)
        graph.subgraph.add_seeds(0, np.concatenate([roots, first_of_each(nodes, roots)]))


@register
@dataclass(frozen=True)
class SaintEdges(SaintWalks):
    """The seeds, one uniform neighbour of each, and all edges among them.

    This equals `SaintWalks` of one step. Uniform seeds in an undirected graph draw the edge (u, v)
    with a chance proportional to 1 / d_u + 1 / d_v. GraphSAINT's edge sampler has the same
    distribution, but needs a table of edges. In a directed graph an edge is drawn by its
    destination alone.

    Method: the edge sampler of GraphSAINT (https://arxiv.org/abs/1907.04931). In memory
    `khop.loader.GraphSAINTEdgeSampler` also computes the norms of the loss.

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


@register
@dataclass(frozen=True)
class SaintNodes(NodeSubgraph):
    """The seeds, nodes drawn in proportion to their degrees, and all edges among them.

    `num_nodes` uniform edges are drawn with replacement. Each gives one node: the source if
    neighbours are destinations ('by_src'), else the destination. A batch has the seeds first, then
    the drawn nodes, each once. GraphSAINT's subgraph has no seeds: a batch with `batch_size=1` has
    one more node. In memory `khop.loader.GraphSAINTNodeSampler` draws the subgraph alone, and also
    computes the norms of the loss. Homogeneous graphs only.

    Each process that draws asks for the degrees of all nodes, once, and keeps their running sums:
    8 bytes per node.

    Method: the node sampler of GraphSAINT (https://arxiv.org/abs/1907.04931), as in PyG.

    Args:
        num_nodes: number of draws, 1 to 2^24.

    Raises:
        ValueError: another number. When the loader is made: as `SaintWalks`.

    Example:
        >>> loader = NeighborLoader(data, SaintNodes(3), torch.tensor([0, 3]), seed=0)
        >>> [(int(batch.n_id[0]), batch.num_nodes <= 4) for batch in loader]
        [(0, True), (3, True)]
    """

    name: ClassVar[str] = "saint-nodes"

    num_nodes: Annotated[int, Between(1, MOST_NODES)]

    @property
    def num_neighbors(self) -> list[int]:
        """Maximum number of nodes that a batch has beside its seeds, as the fan-out of one hop."""
        return [self.num_nodes]

    def draw(self, graph: GraphAccess) -> Waiting[None]:
        roots = roots_of(graph)
        ends = yield from graph.degree_sums(0)
        nodes = np.empty(0, np.int64)
        if ends[-1] > 0:
            nodes = graph.engine_ids(0, sources(graph.key(SOURCES), ends, self.num_nodes))
        graph.subgraph.add_seeds(0, np.concatenate([roots, first_of_each(nodes, roots)]))
