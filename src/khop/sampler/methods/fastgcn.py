"""`FastGcn`: layers drawn by importance in the whole graph. Imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np

from khop.sampler.methods.access import GraphAccess, Rows, Waiting
from khop.sampler.methods.base import register
from khop.sampler.methods.ladies import LayerMethod, NodesPerLayer, draw_in_proportion
from khop.typing import Float64Array, Int64Array

_DRAWS = 4  # purpose of keys


@register
@dataclass(frozen=True)
class FastGcn(LayerMethod):
    """Layers of nodes that are drawn from the whole graph, with replacement.

    A node u is drawn in proportion to q_u, the sum of 1 / degree^2 over all nodes that u is a
    neighbour of. This is the squared norm of u's column in the adjacency matrix, with each row
    divided by its degree. The batch gets all edges from drawn nodes to the layer's rows, which are
    all nodes so far. Layers are independent of each other and of the rows. So many drawn nodes are
    neighbours of no row and not in the batch. For the same variance, `FastGcn` needs more draws
    than `PoissonLadies`. Each parallel edge counts. Homogeneous graphs without times. Whole rows
    are read. In the first batch of a process the whole graph is read, in pieces, for q.

    Method: FastGCN (https://arxiv.org/abs/1801.10247).

    Args:
        nodes_per_layer: number of draws of each layer. A node that is drawn twice appears once.
        edge_norm: 'ht' for sums: `edge_norm` is m / (t p) of a node drawn m times in t draws of
            chance p. Sums weighted by it estimate sums over whole neighbourhoods without bias.
            'hajek' (default) for means, see `PoissonLadies`.

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
    ) -> Waiting[Float64Array]:
        neighbors = rows[1]
        sums = yield from graph.column_sums(0)
        if not len(neighbors):
            return np.empty(0)
        drawn, weight = draw_in_proportion(sums, graph.key(_DRAWS, layer), count)
        nodes = graph.engine_ids(0, drawn)
        order = np.argsort(nodes)
        nodes, weight = nodes[order], weight[order]
        at = np.minimum(np.searchsorted(nodes, neighbors), len(nodes) - 1)
        return np.where(nodes[at] == neighbors, weight[at], 0.0)
