"""LABOR as a program: importance sampling, Poisson draws, replacement. Imports no torch.

`Labor` makes it for what the kernels do not draw. In a hop, all rows of the frontier whose
neighbours are of one node type are one problem (`labor_layer`): owners send the rows whole, and the
asker computes which neighbours they take (`labor_race` in sequential draws), so that sums are added
in the batch's order, the same over any number of partitions. Sampler processes and trainers run it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from khop import _native
from khop.codec import Between
from khop.sampler.methods.access import GraphAccess, Rows
from khop.sampler.methods.base import ProgramMethod, register
from khop.sampler.methods.labor_layer import Layer
from khop.sampler.methods.labor_race import Numbers, Picks, take_once, take_repeatedly
from khop.sampler.methods.normal import cos_of_turns, normal_cdf, normal_variates
from khop.typing import EdgeNorm, Float64Array, Int32Array, Int64Array, UInt64Array

VARIATES = 1
"""Purpose of the random words; of the i-th of a node, with replacement: VARIATES + 256 i."""

MAX_ITERATIONS = 100


@register
@dataclass(frozen=True)
class LaborImportance(ProgramMethod):
    """LABOR with all options; `khop.sampler.Labor` documents them and makes it."""

    name: ClassVar[str] = "labor-importance"

    importance: Annotated[int, Between(-1, MAX_ITERATIONS)] = 0
    layer_dependency: bool = True
    sequential: bool = True
    edge_norm: EdgeNorm | None = None
    batch_dependency: Annotated[int, Between(0, 2**31)] = 1
    replace: bool = False
    layer_wise: bool = False

    def value_names(self, prefix: str) -> tuple[str, ...]:
        """See `ProgramMethod`."""
        return ("edge_norm",) if prefix == "e" and self.edge_norm is not None else ()

    def draw(self, graph: GraphAccess) -> Generator[list[Any], None, None]:
        """See `ProgramMethod`."""
        for node_type, seeds, times in graph.seeds:
            graph.subgraph.add_seeds(node_type, seeds, times)
        norms: list[list[Float64Array]] = [[] for _ in graph.relations]
        for hop in range(len(graph.fanouts[0]) if graph.fanouts else 0):
            found: list[_Found] = []
            for relation in range(len(graph.relations)):
                found.append((yield from _find(graph, relation, graph.fanouts[relation][hop])))
            for source in range(len(graph.num_nodes)):
                asked = [r for r, ends in enumerate(graph.relations) if ends[0] == source]
                yield from self._pick(graph, hop, source, [found[r] for r in asked])
            for relation, of_relation in enumerate(found):
                graph.add_hop(relation, of_relation.rows)
                norms[relation].append(of_relation.norm)
            graph.subgraph.end_hop(self.layer_wise)
        for name in self.value_names("e"):
            for r, of_hops in enumerate(norms):
                graph.values[f"e{r}.{name}"] = np.concatenate([*of_hops, []]).astype(np.float32)

    def _pick(
        self, graph: GraphAccess, hop: int, source: int, found: list[_Found]
    ) -> Generator[list[Any], None, None]:
        """Leave those edges that rows take, of all edge types with the same type of neighbours."""
        weights: list[Float64Array] | None = None
        if any(f.weights is not None for f in found):
            weights = [np.ones(len(f.rows[1])) if f.weights is None else f.weights for f in found]
        # Trees of a disjoint batch have nodes of their own.
        count = max(graph.num_nodes[source], 1)
        layer = Layer.of([f.keyed(count) for f in found], [f.fanout for f in found], weights)
        ids = layer.nodes if all(f.trees is None for f in found) else layer.nodes % count
        trees = (layer.nodes // count).astype(np.int32)
        original = yield from graph.original_ids(source, ids)

        def numbers(index: int) -> Float64Array:
            return self._numbers(graph, hop, source, original, trees, index)

        picks, norm = self._take(layer, numbers)
        bounds = np.cumsum([0, *(len(f.rows[1]) for f in found)])
        places = np.searchsorted(picks.edges, bounds)
        for i, of_relation in enumerate(found):
            first, last = places[i], places[i + 1]
            of_relation.keep(picks.edges[first:last] - bounds[i])
            of_relation.norm = norm[first:last]

    def _numbers(
        self,
        graph: GraphAccess,
        hop: int,
        node_type: int,
        original: Int64Array,
        trees: Int32Array,
        index: int,
    ) -> Float64Array:
        """Draw a number within [0, 1] for each node."""
        step = 0 if self.layer_dependency else hop

        def words(batch: int) -> UInt64Array:
            key = graph.key(VARIATES + (index << 8), step, node_type, batch)
            return _native.draw_words(key, original, trees)

        if self.batch_dependency < 2:
            return _fractions(words(graph.batch if self.batch_dependency else 0))
        first, passed = divmod(graph.batch, self.batch_dependency)
        turns = np.array([0.0, 1.0]) - passed / self.batch_dependency
        near, far = cos_of_turns(np.abs(turns) * 0.25)  # cos and sin of passed / K * pi / 2
        z = near * normal_variates(words(first)) + far * normal_variates(words(first + 1))
        return normal_cdf(z)

    def _take(self, layer: Layer, numbers: Numbers) -> tuple[Picks, Float64Array]:
        """Return the edges that are taken, and their weights if these are asked for."""
        picks = self._picks(layer, numbers)
        if picks.chances is None:
            return picks, np.empty(0)
        norm = 1.0 / picks.chances
        row = layer.row[picks.edges]
        if self.replace:  # the mean of as many draws
            norm = norm / np.where(layer.asked < 0, 1, layer.asked)[row]
        if self.edge_norm == "ht":
            return picks, norm if layer.weight is None else layer.weight[picks.edges] * norm
        if layer.share is not None:
            norm = layer.share[picks.edges] * norm
        count, total = np.bincount(row), np.bincount(row, norm)
        scale = np.divide(count, total, out=np.zeros(len(total)), where=total > 0)
        return picks, norm * scale[row]

    def _picks(self, layer: Layer, numbers: Numbers) -> Picks:
        weigh = self.edge_norm is not None
        if self.replace:
            return take_repeatedly(layer, numbers, weigh)
        masses = layer.masses(self.importance)
        if self.sequential:
            return take_once(layer, numbers, masses, weigh)
        by_weight = layer.share is not None and self.importance == 0
        chances = layer.chances_by_weight() if by_weight else layer.chances(masses)
        edges = np.flatnonzero(numbers(0)[layer.node] < chances)
        return Picks(edges, chances[edges] if weigh else None)


@dataclass
class _Found:
    """Neighbours of the frontier over an edge type; then those that are taken.

    Attributes:
        rows: the neighbours.
        weights: [n] float64 weights of edges; None if not drawn by weight.
        trees: [num_rows] int32 trees of rows; None if the batch is not disjoint.
        fanout: how many a row takes.
        norm: [n] float64 weights of the edges that are taken; empty if not asked for.
    """

    rows: Rows
    weights: Float64Array | None
    trees: Int32Array | None
    fanout: int
    norm: Float64Array

    def keyed(self, count: int) -> Rows:
        """Return the rows with neighbours named by tree and id."""
        counts, neighbors, edges = self.rows
        if self.trees is None:
            return self.rows
        return counts, np.repeat(self.trees.astype(np.int64) * count, counts) + neighbors, edges

    def keep(self, places: Int64Array) -> None:
        """Leave the neighbours at some places, ascending, which may repeat."""
        counts, neighbors, edges = self.rows
        row = np.repeat(np.arange(len(counts)), counts)
        left = np.bincount(row[places], minlength=len(counts)).astype(np.int32)
        self.rows = left, neighbors[places], None if edges is None else edges[places]


def _find(graph: GraphAccess, relation: int, fanout: int) -> Generator[list[Any], None, _Found]:
    """Ask for all neighbours of the frontier that may be drawn, with their weights."""
    ids, trees, times = graph.subgraph.frontier(graph.relations[relation][1])
    rows = yield from graph.neighbors(relation, ids, -1 if fanout else 0, trees=trees, times=times)
    weights: Float64Array | None = yield from graph.weights(relation, rows[2])
    found = _Found(rows, weights, trees, fanout, np.empty(0))
    if weights is not None:
        is_drawable = weights > 0
        found.keep(np.flatnonzero(is_drawable))
        found.weights = weights[is_drawable]
    return found


def _fractions(words: UInt64Array) -> Float64Array:
    """Return the upper 53 bits of words as numbers within [0, 1)."""
    fractions: Float64Array = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fractions
