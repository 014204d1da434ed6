"""`PoissonLadies` and `Ladies`: layers whose nodes are drawn by importance. Imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from khop import _native
from khop.codec import AtMost, Between
from khop.sampler.methods.access import GraphAccess, Rows, Waiting, add_all_seeds
from khop.sampler.methods.base import ProgramMethod, counts_within, register
from khop.sampler.methods.entries import kept, scaled_to_counts
from khop.sampler.methods.walk import below
from khop.typing import BoolArray, EdgeNorm, Float64Array, Int64Array

_VARIATES, _DRAWS = 2, 3  # purposes of keys
_MOST_LAYERS, _MOST_NODES = 16, 1 << 24

NodesPerLayer = Annotated[list[Annotated[int, Between(1, _MOST_NODES)]], AtMost(_MOST_LAYERS)]


class Candidates(NamedTuple):
    """The distinct neighbours of a layer's rows, with their importance.

    Attributes:
        ids: [n] int64, ascending.
        mass: [n] int64: importance of each, the sum of 1 / degree^2 over the rows that it is a
            neighbour of, times a common scale.
        of_entry: [num_entries] index in `ids` of each entry's neighbour.
    """

    ids: Int64Array
    mass: Int64Array
    of_entry: Int64Array

    @classmethod
    def of(cls, rows: Rows) -> Candidates:
        """Return the distinct neighbours of rows, with their importance as exact integers."""
        counts, neighbors, _ = rows
        ids, of_entry = np.unique(neighbors, return_inverse=True)
        # Scaled so that no sum leaves 63 bits. A row of any length counts.
        scale = 1 << min(40, 62 - len(neighbors).bit_length())
        degrees = counts.astype(np.int64)
        weights = np.repeat(np.maximum(scale // np.maximum(degrees * degrees, 1), 1), degrees)
        mass = np.zeros(len(ids), np.int64)
        np.add.at(mass, of_entry, weights)
        return cls(ids, mass, of_entry)


def chances(mass: Int64Array, count: int) -> Float64Array:
    """Return the chances min(1, c mass), [n] float64. The factor c makes their sum `count`.

    Args:
        mass: [n] int64, above 0.
        count: expected number of drawn nodes. If n <= count, each chance is 1.
    """
    if len(mass) <= count:
        return np.ones(len(mass))
    largest = np.sort(mass)[::-1]
    left = np.cumsum(largest[::-1])[::-1]  # sums of each and all smaller
    # The first chance that is below 1 if all before it are 1.
    certain = np.arange(count)
    free = largest[:count] < left[:count] / (count - certain)
    first = int(np.argmax(free)) if free.any() else count - 1
    scaled: Float64Array = mass * ((count - first) / left[first])
    return np.minimum(scaled, 1.0)


class LayerMethod(ProgramMethod):
    """Base of methods that draw a number of nodes per layer, for all rows together.

    Subclasses are dataclasses with fields `nodes_per_layer`, `edge_norm` and a method `weights`.
    """

    edge_values: ClassVar[tuple[str, ...]] = ("edge_norm",)
    layer_wise: ClassVar[bool] = True  # all nodes draw in each hop
    _is_homogeneous: ClassVar[bool] = True

    nodes_per_layer: list[int]
    edge_norm: EdgeNorm

    def __post_init__(self) -> None:
        layers = counts_within(self.nodes_per_layer, _MOST_LAYERS, 1, _MOST_NODES)
        if layers is None:
            raise ValueError(
                f"nodes_per_layer must be 1 to {_MOST_LAYERS} integers from 1 to {_MOST_NODES:,} "
                f"(got {self.nodes_per_layer!r})"
            )
        object.__setattr__(self, "nodes_per_layer", layers)
        if self.edge_norm not in ("ht", "hajek"):
            raise ValueError(f"edge_norm must be 'ht' or 'hajek' (got {self.edge_norm!r})")

    @property
    def num_neighbors(self) -> list[int]:
        """Fan-out of each hop: -1, as all neighbours of a row are read."""
        return [-1] * len(self.nodes_per_layer)

    def draw(self, graph: GraphAccess) -> Waiting[None]:
        add_all_seeds(graph)
        norms: list[Float64Array] = []
        for layer, count in enumerate(self.nodes_per_layer):
            ids = graph.subgraph.frontier(0)[0]
            rows = yield from graph.neighbors(0, ids)
            weights = yield from self.weights(graph, layer, count, ids, rows)
            entries = np.flatnonzero(weights > 0)
            drawn, norm = kept(rows, entries), weights[entries]
            graph.add_hop(0, drawn)
            graph.subgraph.end_hop(all=True)
            if self.edge_norm == "hajek":
                norm = scaled_to_counts(norm, np.repeat(np.arange(len(ids)), drawn[0]))
            norms.append(norm)
        graph.values["e0.edge_norm"] = np.concatenate(norms).astype(np.float32)

    @abstractmethod
    def weights(
        self, graph: GraphAccess, layer: int, count: int, ids: Int64Array, rows: Rows
    ) -> Waiting[Float64Array]:
        """Draw the nodes of one layer, and return the weight of each edge. 0 leaves the edge out.

        Args:
            graph: the graph.
            layer: index of the layer.
            count: number of nodes of the layer.
            ids: [n] int64, the layer's rows.
            rows: all neighbours of `ids`.
        """


@register
@dataclass(frozen=True)
class PoissonLadies(LayerMethod):
    """Layers of a chosen number of nodes, drawn together for all rows.

    A layer's rows are all nodes so far. A neighbour u of these has the importance q_u, the sum of
    1 / degree^2 over the rows that it is a neighbour of. One random number decides for all rows
    whether u is drawn, with chance pi_u = min(1, c q_u). The factor c makes the chances of a layer
    add up to its number of nodes. The batch gets all edges from drawn nodes to the rows. So a batch
    grows by a number of nodes per layer, not per row. Nodes draw anew in every layer: edges of a
    layer lead to nodes of all layers before it, which are a prefix of the batch's nodes
    (`num_sampled_nodes`, `num_sampled_edges`). Each parallel edge counts. Homogeneous graphs
    without times. Whole rows are read.

    Method: PLADIES (https://arxiv.org/abs/2210.13339), after LADIES
    (https://arxiv.org/abs/1911.07323).

    Args:
        nodes_per_layer: expected number of nodes that each layer draws.
        skip: always take neighbours that are themselves rows of the layer.
        edge_norm: 'ht' for sums: `edge_norm` is 1 / pi, and sums weighted by it estimate sums over
            whole neighbourhoods without bias. 'hajek' (default) for means: 1 / pi, scaled so that a
            row's weights add up to the number of its edges in the batch. These means vary less, and
            their bias vanishes as layers grow. Sums by 'hajek' are too small.

    Raises:
        ValueError: options out of range. When the loader is made: a heterogeneous graph, or a
            `disjoint` batch.

    Example:
        >>> loader = NeighborLoader(data, PoissonLadies([3, 3]), batch_size=2, seed=0)
        >>> batch = next(iter(loader))
        >>> batch.edge_norm.shape == batch.edge_index[0].shape, len(batch.num_sampled_nodes)
        (True, 3)
    """

    name: ClassVar[str] = "poisson-ladies"

    nodes_per_layer: NodesPerLayer
    _: KW_ONLY
    skip: bool = False
    edge_norm: Literal["ht", "hajek"] = "hajek"

    def weights(
        self, graph: GraphAccess, layer: int, count: int, ids: Int64Array, rows: Rows
    ) -> Waiting[Float64Array]:
        candidates = Candidates.of(rows)
        always = np.isin(candidates.ids, ids) & self.skip
        weights = yield from self._weights(graph, layer, candidates, count, always)
        return weights[candidates.of_entry]

    def _weights(
        self, graph: GraphAccess, layer: int, candidates: Candidates, count: int, always: BoolArray
    ) -> Waiting[Float64Array]:
        """Draw `count` nodes on average, and all `always`. Return weights of candidates' edges."""
        words = yield from graph.words(graph.key(_VARIATES, layer), 0, candidates.ids)
        pi = np.ones(len(words))
        pi[~always] = chances(candidates.mass[~always], count)
        return np.where((words < pi * 2.0**64) | (pi == 1.0), 1 / pi, 0.0)


@register
@dataclass(frozen=True)
class Ladies(PoissonLadies):
    """LADIES as published: a layer's nodes are drawn independently, with replacement.

    The rest is as in `PoissonLadies`, which is better: sums of LADIES vary far more, so rows are
    always normalised.

    Method: https://arxiv.org/abs/1911.07323.

    Args:
        nodes_per_layer: number of draws of each layer. A node that is drawn twice appears once.
        skip: see `PoissonLadies`.
        edge_norm: 'hajek'.

    Raises:
        ValueError: as `PoissonLadies`.

    Example:
        >>> loader = NeighborLoader(data, Ladies([3]), batch_size=2, seed=0)
        >>> len(next(iter(loader)).num_sampled_nodes)
        2
    """

    name: ClassVar[str] = "ladies"

    edge_norm: Literal["hajek"] = "hajek"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edge_norm != "hajek":
            raise ValueError("Ladies normalises rows always: leave edge_norm out, or 'hajek'")

    def _weights(
        self, graph: GraphAccess, layer: int, candidates: Candidates, count: int, always: BoolArray
    ) -> Waiting[Float64Array]:
        weights = always.astype(np.float64)
        free = np.flatnonzero(~always)
        if not len(free):
            return weights
        # In order of original ids, so that draws are the same however nodes are numbered.
        original = yield from graph.original_ids(0, candidates.ids[free])
        free = free[np.argsort(original)]
        drawn, norm = draw_in_proportion(
            np.cumsum(candidates.mass[free]), graph.key(_DRAWS, layer), count
        )
        weights[free[drawn]] = norm
        return weights


def draw_in_proportion(sums: Int64Array, key: int, count: int) -> tuple[Int64Array, Float64Array]:
    """Draw with replacement, in proportion to masses.

    Args:
        sums: [n] int64 running sums of the masses.
        key: key of the draws.
        count: number of draws.

    Returns:
        The distinct drawn indices, ascending, and for each the weight m / (count q): the index is
        drawn m times, with chance q per draw.
    """
    words = _native.draw_words(key, np.arange(count))
    points = below(words, np.full(count, sums[-1])).astype(np.int64)
    drawn, times = np.unique(np.searchsorted(sums, points, side="right"), return_counts=True)
    mass = sums[drawn] - np.where(drawn > 0, sums[drawn - 1], 0)
    return drawn, times * (sums[-1] / count) / mass
