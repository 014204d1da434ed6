"""`PoissonLadies` and `Ladies`: layers whose nodes are drawn by importance. Imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from khop import _native
from khop.codec import AtMost, Between
from khop.sampler.methods.access import GraphAccess, Rows, Waiting
from khop.sampler.methods.base import ProgramMethod, register
from khop.sampler.methods.walk import below
from khop.typing import BoolArray, Float64Array, Int64Array

_VARIATES, _DRAWS = 2, 3  # purposes of keys
_MOST_LAYERS, _MOST_NODES = 16, 1 << 24

NodesPerLayer = Annotated[list[Annotated[int, Between(1, _MOST_NODES)]], AtMost(_MOST_LAYERS)]


class Candidates(NamedTuple):
    """The neighbours of a layer's rows, each once.

    Attributes:
        ids: [n] int64, ascending.
        mass: [n] int64: sums of squares of 1 / degree over the rows that they are neighbours of,
            scaled alike.
        of_entry: [num_entries] the candidate of each neighbour.
    """

    ids: Int64Array
    mass: Int64Array
    of_entry: Int64Array

    @classmethod
    def of(cls, rows: Rows) -> Candidates:
        """Return the candidates of whole rows; their sums are of integers, whatever their order."""
        counts, neighbors, _ = rows
        ids, of_entry = np.unique(neighbors, return_inverse=True)
        # Scaled so that no sum leaves 63 bits; a row of any length counts for something.
        scale = 1 << min(40, 62 - len(neighbors).bit_length())
        degrees = counts.astype(np.int64)
        weights = np.repeat(np.maximum(scale // np.maximum(degrees * degrees, 1), 1), degrees)
        mass = np.zeros(len(ids), np.int64)
        np.add.at(mass, of_entry, weights)
        return cls(ids, mass, of_entry)


def chances(mass: Int64Array, count: int) -> Float64Array:
    """Return min(1, c mass), [n] float64, with c such that they add up to `count`.

    Args:
        mass: [n] int64, above 0.
        count: expected number; if there are no more, each chance is 1.
    """
    if len(mass) <= count:
        return np.ones(len(mass))
    largest = np.sort(mass)[::-1]
    left = np.cumsum(largest[::-1])[::-1]  # of all from each on
    # The first that is below 1 if all before it are certain.
    certain = np.arange(count)
    free = largest[:count] < left[:count] / (count - certain)
    first = int(np.argmax(free)) if free.any() else count - 1
    found: Float64Array = np.minimum(mass * ((count - first) / left[first]), 1.0)
    return found


class LayerMethod(ProgramMethod):
    """Base of methods that draw so many nodes a layer, for all rows together.

    Subclasses are dataclasses with the fields `nodes_per_layer` and `edge_norm`, and draw weights.
    """

    edge_values: ClassVar[tuple[str, ...]] = ("edge_norm",)
    layer_wise: ClassVar[bool] = True  # all nodes draw in each hop

    nodes_per_layer: Any
    edge_norm: Any

    def __post_init__(self) -> None:
        """Checks options."""
        layers = self.nodes_per_layer
        is_list = isinstance(layers, (list, tuple)) and 1 <= len(layers) <= _MOST_LAYERS
        if not is_list or not all(_is_count(count) for count in layers):
            raise ValueError(
                f"nodes_per_layer must be 1 to {_MOST_LAYERS} integers from 1 to {_MOST_NODES:,} "
                f"(got {layers!r})"
            )
        object.__setattr__(self, "nodes_per_layer", list(layers))
        if self.edge_norm not in ("ht", "hajek"):
            raise ValueError(f"edge_norm must be 'ht' or 'hajek' (got {self.edge_norm!r})")

    @property
    def num_neighbors(self) -> list[int]:
        """All neighbours of a row may be taken."""
        return [-1] * len(self.nodes_per_layer)

    def check_form(self, heterogeneous: bool, disjoint: bool) -> None:
        """See `SamplingMethod`."""
        super().check_form(heterogeneous, disjoint)
        if heterogeneous:
            raise ValueError(
                f"{type(self).__name__} draws layers of graphs of one node and edge type: this one "
                "is heterogeneous"
            )

    def draw(self, graph: GraphAccess) -> Generator[list[Any], None, None]:
        """See `ProgramMethod`."""
        for node_type, seeds, _ in graph.seeds:
            graph.subgraph.add_seeds(node_type, seeds)
        norms: list[Float64Array] = []
        for layer, count in enumerate(self.nodes_per_layer):
            ids = graph.subgraph.frontier(0)[0]
            rows = yield from graph.neighbors(0, ids)
            of_entry = yield from self.weights(graph, layer, count, ids, rows)
            kept, norm = _kept(rows, of_entry > 0), of_entry[of_entry > 0]
            graph.add_hop(0, kept)
            graph.subgraph.end_hop(all=True)
            norms.append(norm if self.edge_norm == "ht" else _scaled(kept[0], norm))
        graph.values["e0.edge_norm"] = np.concatenate(norms).astype(np.float32)

    @abstractmethod
    def weights(
        self, graph: GraphAccess, layer: int, count: int, ids: Int64Array, rows: Rows
    ) -> Waiting:
        """Draw a layer's nodes; return the weight of each edge, 0 if its neighbour is not drawn.

        Args:
            graph: the graph.
            layer: number of the layer.
            count: its number of nodes.
            ids: [n] int64, the layer's rows.
            rows: all neighbours of these.
        """


@register
@dataclass(frozen=True)
class PoissonLadies(LayerMethod):
    """Layers of a given number of nodes, drawn together for all rows.

    A layer's rows are all nodes so far. A neighbour u of these has the importance q_u, the sum of
    1 / degree^2 over the rows that it is a neighbour of, and is taken with chance
    pi_u = min(1, c q_u), by one number for all rows; c makes the chances add up to the layer's
    number of nodes. The batch gets all edges from nodes taken to the rows. So a batch grows by so
    many nodes a layer, not by so many a row. Nodes draw anew in every layer: edges of a layer lead
    to nodes of all layers before it, which are a prefix of the batch's nodes (`num_sampled_nodes`,
    `num_sampled_edges`). Parallel edges count each. Homogeneous graphs without times; whole rows
    are read.

    Method: PLADIES of https://arxiv.org/abs/2210.13339; LADIES, https://arxiv.org/abs/1911.07323.

    Args:
        nodes_per_layer: number of nodes that each layer draws, in expectation.
        skip: nodes of a layer's rows that are neighbours of others are taken always.
        edge_norm: for sums 'ht': `edge_norm` is 1 / pi, and sums weighted by it are those of whole
            neighbourhoods, without bias. For means 'hajek', the default: that, scaled so that a
            row's add up to the number of its edges in the batch. Such means vary less, and their
            bias vanishes as layers grow; sums by it are too small.

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
    ) -> Waiting:
        """See `LayerMethod`."""
        candidates = Candidates.of(rows)
        always = np.isin(candidates.ids, ids) & self.skip
        weights = yield from self._weights(graph, layer, candidates, count, always)
        return weights[candidates.of_entry]

    def _weights(
        self,
        graph: GraphAccess,
        layer: int,
        candidates: Candidates,
        count: int,
        always: BoolArray,
    ) -> Waiting:
        """Draw a layer's nodes; return the weight of edges from each candidate, 0 if not drawn."""
        words = yield from graph.words(graph.key(_VARIATES, layer), 0, candidates.ids)
        pi = np.ones(len(words))
        pi[~always] = chances(candidates.mass[~always], count)
        return np.where((words < pi * 2.0**64) | (pi == 1.0), 1 / pi, 0.0)


@register
@dataclass(frozen=True)
class Ladies(PoissonLadies):
    """As `PoissonLadies`, with a layer's nodes drawn independently, with replacement.

    This is LADIES as published. Its sums vary far more than `PoissonLadies`'s, so rows are always
    normalised: prefer `PoissonLadies`.

    Method: https://arxiv.org/abs/1911.07323.

    Args:
        nodes_per_layer: number of draws of each layer; nodes drawn twice are there once.
        skip: as of `PoissonLadies`.
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
        """Checks options."""
        super().__post_init__()
        if self.edge_norm != "hajek":
            raise ValueError("Ladies normalises rows always: leave edge_norm out, or 'hajek'")

    def _weights(
        self,
        graph: GraphAccess,
        layer: int,
        candidates: Candidates,
        count: int,
        always: BoolArray,
    ) -> Waiting:
        weights = always.astype(np.float64)
        free = np.flatnonzero(~always)
        if not len(free):
            return weights
        # In order of original ids, so that draws are the same however nodes are numbered.
        original = yield from graph.original_ids(0, candidates.ids[free])
        free = free[np.argsort(original)]
        sums = np.cumsum(candidates.mass[free])
        words = _native.draw_words(graph.key(_DRAWS, layer), np.arange(count))
        points = below(words, np.full(count, sums[-1])).astype(np.int64)
        drawn = np.searchsorted(sums, points, side="right")
        times = np.bincount(drawn, minlength=len(free))
        weights[free] = times * (sums[-1] / count) / candidates.mass[free]
        return weights


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_NODES


def _kept(rows: Rows, kept: BoolArray) -> Rows:
    """Return rows with some of their neighbours."""
    counts, neighbors, edges = rows
    ends = np.cumsum(np.concatenate([[0], kept]))[np.cumsum(counts, dtype=np.int64)]
    left = np.diff(ends, prepend=0).astype(np.int32)
    return left, neighbors[kept], None if edges is None else edges[kept]


def _scaled(counts: Any, norm: Float64Array) -> Float64Array:
    """Scale weights so that each row's add up to its number of entries, in the rows' order."""
    rows = np.repeat(np.arange(len(counts)), counts)
    sums = np.bincount(rows, norm, len(counts))
    scaled: Float64Array = norm * (counts / np.where(counts > 0, sums, 1.0))[rows]
    return scaled
