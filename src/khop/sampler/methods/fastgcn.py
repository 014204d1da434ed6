"""`FastGcn`: layers drawn by importance in the whole graph. Imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np

from khop import _native
from khop.sampler.methods.access import GraphAccess, Rows, Waiting
from khop.sampler.methods.base import register
from khop.sampler.methods.ladies import LayerMethod, NodesPerLayer
from khop.sampler.methods.walk import below
from khop.typing import Int64Array

_DRAWS = 4  # purpose of keys


@register
@dataclass(frozen=True)
class FastGcn(LayerMethod):
    """Layers of nodes that are drawn from the whole graph, whatever the rows, with replacement.

    A node u is drawn in proportion to q_u, the squared norm of its column of the adjacency matrix,
    each of whose rows is divided by the row's degree: the sum of 1 / degree^2 over all nodes that u
    is a neighbour of. The batch gets all edges from nodes drawn to the layer's rows, which are all
    nodes so far. Layers are independent of each other and of the rows, so many nodes that are drawn
    are nobody's neighbours, and are not in the batch: it needs more draws than `PoissonLadies` for
    the same variance. Parallel edges count each. Homogeneous graphs without times; whole rows are
    read, and in the first batch of a process the whole graph, in pieces, for q.

    Method: FastGCN (https://arxiv.org/abs/1801.10247).

    Args:
        nodes_per_layer: number of draws of each layer; nodes drawn twice are there once.
        edge_norm: for sums 'ht': `edge_norm` is m / (t q), of a node drawn m times in t draws, and
            sums weighted by it are those of whole neighbourhoods, without bias. For means 'hajek',
            the default: as of `PoissonLadies`.

    Raises:
        ValueError: options out of range. When the loader is made: a heterogeneous graph, or a
            `disjoint` batch.

    Example:
        >>> loader = NeighborLoader(data, FastGcn([4, 4]), batch_size=2, seed=0)
        >>> batch = next(iter(loader))
        >>> batch.edge_norm.shape == batch.edge_index[0].shape, len(batch.num_sampled_nodes)
        (True, 3)
    """

    name: ClassVar[str] = "fastgcn"

    nodes_per_layer: NodesPerLayer
    _: KW_ONLY
    edge_norm: Literal["ht", "hajek"] = "hajek"

    def weights(
        self, graph: GraphAccess, layer: int, count: int, ids: Int64Array, rows: Rows
    ) -> Waiting:
        """See `LayerMethod`."""
        neighbors = rows[1]
        sums = yield from graph.column_sums(0)
        if not len(neighbors):
            return np.empty(0)
        words = _native.draw_words(graph.key(_DRAWS, layer), np.arange(count))
        draws = below(words, np.full(count, sums[-1])).astype(np.int64)
        drawn, times = np.unique(np.searchsorted(sums, draws, side="right"), return_counts=True)
        mass = sums[drawn] - np.where(drawn > 0, sums[drawn - 1], 0)
        nodes = graph.engine_ids(0, drawn)
        order = np.argsort(nodes)
        nodes, weight = nodes[order], (times * (sums[-1] / count) / mass)[order]
        place = np.minimum(np.searchsorted(nodes, neighbors), len(nodes) - 1)
        return np.where(nodes[place] == neighbors, weight[place], 0.0)
