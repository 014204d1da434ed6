"""`Labor`: neighbours that rows of a hop share, and its program. Imports no torch.

The kernels draw LABOR-0. `LaborImportance` is the program for all else: importance sampling,
Poisson draws, replacement. In a hop, all rows of the frontier whose neighbours are of one node type
are drawn together (`labor_draws`). Owners send whole rows, and the requester draws. So sums are
added in the batch's order, the same over any number of partitions.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Annotated, ClassVar

import numpy as np

from khop import _native
from khop.codec import Between
from khop.sampler.methods.access import GraphAccess, Rows, Waiting, add_all_seeds
from khop.sampler.methods.base import MethodSpec, ProgramMethod, SamplingMethod, register
from khop.sampler.methods.entries import kept, scaled_to_counts
from khop.sampler.methods.labor_draws import (
    Layer,
    Picks,
    UniformNumbers,
    take_once,
    take_poisson,
    take_repeatedly,
)
from khop.sampler.methods.normal import cos_of_turns, normal_cdf, normal_variates
from khop.typing import (
    EdgeNorm,
    Float64Array,
    Int32Array,
    Int64Array,
    NumNeighbors,
    UInt64Array,
)

VARIATES = 1
"""Purpose of the random words. With replacement, a node's i-th word has VARIATES + 256 i."""

_MAX_ITERATIONS = 100


@register
@dataclass(frozen=True)
class Labor(SamplingMethod):
    """Neighbours that rows of a hop share where they can, so that a batch has fewer nodes.

    Each neighbour t has one uniform number r_t in a hop, and a row takes the k neighbours of
    smallest r_t (by weight: r_t / w_t), or all if it has no more than k. Each row by itself draws
    exactly min(k, degree) neighbours, every k-subset as likely as any other. Rows that share
    neighbours tend to take the same ones. Partitions need the neighbours' original ids: partition
    with `neighbor_ids=True` (`khop partition --neighbor-ids`).

    Cost: whole rows are read, where a list's sampling reads k entries of each. Seeds with 40
    neighbours take up to twice as long to draw. Hubs with thousands take twenty times as long (13
    ms per batch, not 1 ms). Fewer nodes save time in gathering, copying and the model.
    `docs/benchmarks.md` has measurements.

    Importance sampling (LABOR-i) gives each neighbour a mass pi_t besides. The mass is larger the
    more rows the neighbour serves, so that batches have fewer nodes still. A program in NumPy draws
    if `importance`, `replace`, `sequential`, `edge_norm` or `batch_dependency` is not the default.
    Whole rows are then sent to the process that draws, with weights in separate requests.
    Neighbours' ids are not needed, and devices do not run it.

    In disjoint batches each seed's subgraph has separate random numbers. With times, neighbours
    that a seed must not see are left out first, and then the others are drawn. All edge types whose
    neighbours are of one node type share numbers and masses.

    Method: LABOR (https://arxiv.org/abs/2210.13339). Sequential Poisson sampling, replacement and
    dependent batches are as in GraphBolt's `LayerNeighborSampler`.

    Args:
        num_neighbors: fan-out k of each hop, or {edge type: fan-outs}. -1 takes all neighbours.
        importance: iterations that compute the masses pi_t, at most 100. With 0 all masses are 1
            (LABOR-0), with i it is LABOR-i. -1 iterates until fewer than 1 in 10,000 expected nodes
            are saved (LABOR-*).
        layer_dependency: use the same numbers in all hops, so that hops, too, tend to take the same
            nodes. If False, each hop has new numbers, and hops are independent.
        replace: draw with replacement. Each neighbour has k numbers, and a row takes the k smallest
            numbers of all its neighbours: exactly k edges, some of them twice. A fan-out of -1
            takes each edge once. Only with `sequential`, and without importance sampling. The
            loader's own `replace` stays False.
        weight_attr: edge attribute A to draw by, as the loader's own `weight_attr`. Edges of weight
            0 are never drawn, and do not count for a row's degree. Importance sampling begins with
            pi = A, and needs one iteration more for it. With A scaled to the mean 1, c_s gives a
            row's weighted sum the variance of uniform draws: degree^2 / k - degree^2 / degree + sum
            A^2. Poisson draws without importance sampling take t if r_t < k A / sum A.
        sequential: take the min(k, degree) neighbours of smallest r_t / pi_t. If False, Poisson
            sampling, as in the paper: take all with r_t < c_s pi_t, where c_s gives a row's mean
            the variance of k uniform draws. Their number varies. Its mean is min(k, degree) without
            importance sampling, and more with it.
        edge_norm: weights of edges, `batch.edge_norm`, [num_edges] float32. With 'ht' (Horvitz and
            Thompson) an edge weighs A / chance, where A = 1 unless draws are by weight. A row's
            weighted sum then estimates the sum over all its neighbours. The estimate has no bias if
            hops are independent. With 'hajek', for means, these weights are scaled to add up to the
            number of edges of the row. If None, there are no weights.
        batch_dependency: number K of batches over which random numbers change slowly, so that
            successive batches share nodes, and caches of attributes are hit more often. Each batch
            by itself is drawn as with K = 1. With 0 the numbers of an epoch never change.
        layer_wise: all nodes of a batch draw in each hop, as with this option of
            `NeighborSampling`: the paper's batches.

    Raises:
        TypeError: a number that is no integer.
        ValueError: an option that is not supported.

    Example:
        >>> loader = NeighborLoader(data, Labor([2, 2]), torch.tensor([0, 3]), batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.num_edges  # two for each of the six nodes, as with [2, 2]
        12
    """

    name: ClassVar[str] = "labor"
    needs_neighbor_ids: ClassVar[bool] = True

    num_neighbors: NumNeighbors
    _: KW_ONLY
    importance: int = 0
    layer_dependency: bool = True
    replace: bool = False
    weight_attr: str | None = None
    sequential: bool = True
    edge_norm: EdgeNorm | None = None
    batch_dependency: int = 1
    layer_wise: bool = False

    def __post_init__(self) -> None:
        for option, low, high, meaning in (
            ("importance", -1, _MAX_ITERATIONS, "iterations, or -1 for as many as it takes"),
            ("batch_dependency", 0, 2**31, "batches, or 0 for the same numbers in all"),
        ):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Labor: {option} must be an integer (got {value!r})")
            if not low <= value <= high:
                raise ValueError(
                    f"Labor: {option} must be from {low} to {high}: {meaning} (got {value})"
                )
        if self.edge_norm not in (None, "ht", "hajek"):
            raise ValueError(
                f"Labor: edge_norm must be 'ht', 'hajek' or None (got {self.edge_norm!r})"
            )
        if self.replace and (self.importance or not self.sequential):
            raise ValueError(
                "Labor draws with replacement without importance sampling and in sequential draws "
                f"alone (got importance={self.importance}, sequential={self.sequential}): leave "
                "these out, or replace=True"
            )

    def spec(self) -> MethodSpec:
        program = LaborImportance(
            self.importance,
            bool(self.layer_dependency),
            bool(self.sequential),
            self.edge_norm,
            self.batch_dependency,
            bool(self.replace),
            bool(self.layer_wise),
        )
        same, anew = program.layer_dependency, program.layer_wise
        if program == LaborImportance(layer_dependency=same, layer_wise=anew):
            return MethodSpec(self.name, same, layer_wise=anew)  # the kernels draw it
        return MethodSpec(program.name, program=program, layer_wise=anew)

    def settle(self, replace: bool, weight_attr: str | None) -> tuple[bool, str | None]:
        if replace and not self.replace:
            raise ValueError(
                "replace=True is the loader's, and Labor draws without replacement: pass "
                "Labor(..., replace=True) instead"
            )
        if None not in (weight_attr, self.weight_attr) and weight_attr != self.weight_attr:
            raise ValueError(
                f"weight_attr is '{weight_attr}' of the loader and '{self.weight_attr}' of Labor: "
                "name it once"
            )
        # Rows are sent whole: replacement is the program's, and no option of a hop.
        return False, weight_attr if self.weight_attr is None else self.weight_attr

    def settle_subgraph_type(self, subgraph_type: str | Enum) -> str | Enum:
        """Check and return the subgraph type. With `edge_norm`, it must be 'directional'."""
        asked = getattr(subgraph_type, "value", subgraph_type)
        if self.edge_norm is not None and asked != "directional":
            raise ValueError(
                f"Labor with edge_norm makes 'directional' subgraphs (got subgraph_type={asked!r}):"
                " leave one or the other out"
            )
        return super().settle_subgraph_type(subgraph_type)

    def check_strategy(self, temporal_strategy: str) -> None:
        if temporal_strategy == "last":
            raise ValueError(
                "Labor draws at random among the neighbours that a seed may see: with "
                "temporal_strategy='last', which takes the latest, pass a list"
            )


@register
@dataclass(frozen=True)
class LaborImportance(ProgramMethod):
    """LABOR with all options. `khop.sampler.Labor` documents and makes it."""

    name: ClassVar[str] = "labor-importance"

    importance: Annotated[int, Between(-1, _MAX_ITERATIONS)] = 0
    layer_dependency: bool = True
    sequential: bool = True
    edge_norm: EdgeNorm | None = None
    batch_dependency: Annotated[int, Between(0, 2**31)] = 1
    replace: bool = False
    layer_wise: bool = False

    def value_names(self, prefix: str) -> tuple[str, ...]:
        return ("edge_norm",) if prefix == "e" and self.edge_norm is not None else ()

    def draw(self, graph: GraphAccess) -> Waiting[None]:
        add_all_seeds(graph)
        norms: list[list[Float64Array]] = [[] for _ in graph.relations]
        for hop in range(len(graph.fanouts[0]) if graph.fanouts else 0):
            rows: list[_TypedRows] = []
            for relation in range(len(graph.relations)):
                rows.append((yield from _whole_rows(graph, relation, graph.fanouts[relation][hop])))
            for source in range(len(graph.num_nodes)):
                asked = [r for r, ends in enumerate(graph.relations) if ends[0] == source]
                yield from self._pick(graph, hop, source, [rows[r] for r in asked])
            for relation, of_relation in enumerate(rows):
                graph.add_hop(relation, of_relation.rows)
                norms[relation].append(of_relation.norm)
            graph.subgraph.end_hop(self.layer_wise)
        for name in self.value_names("e"):
            for r, of_hops in enumerate(norms):
                graph.values[f"e{r}.{name}"] = np.concatenate([*of_hops, []]).astype(np.float32)

    def _pick(
        self, graph: GraphAccess, hop: int, source: int, typed: list[_TypedRows]
    ) -> Waiting[None]:
        """Reduce rows of edge types with one type of neighbours to the edges that are taken."""
        weights: list[Float64Array] | None = None
        if any(t.weights is not None for t in typed):
            weights = [np.ones(len(t.rows[1])) if t.weights is None else t.weights for t in typed]
        # Trees of a disjoint batch do not share nodes.
        count = max(graph.num_nodes[source], 1)
        layer = Layer.of([t.keyed(count) for t in typed], [t.fanout for t in typed], weights)
        ids, trees = layer.nodes, None
        if any(t.trees is not None for t in typed):
            trees, ids = np.divmod(layer.nodes, count)
            trees = trees.astype(np.int32)
        original = yield from graph.original_ids(source, ids)

        def numbers(index: int) -> Float64Array:
            return self._numbers(graph, hop, source, original, trees, index)

        picks, norm = self._take(layer, numbers)
        bounds = np.cumsum([0, *(len(t.rows[1]) for t in typed)])
        cuts = np.searchsorted(picks.edges, bounds)
        for i, of_type in enumerate(typed):
            of_type.rows = kept(of_type.rows, picks.edges[cuts[i] : cuts[i + 1]] - bounds[i])
            of_type.norm = norm[cuts[i] : cuts[i + 1]]

    def _numbers(
        self,
        graph: GraphAccess,
        hop: int,
        node_type: int,
        original: Int64Array,
        trees: Int32Array | None,
        index: int,
    ) -> Float64Array:
        """Draw LABOR's random number of each node, from 0 to 1, by original id and tree.

        Another `index` draws other numbers for the same nodes.
        """
        step = 0 if self.layer_dependency else hop

        def words(batch: int) -> UInt64Array:
            key = graph.key(VARIATES + (index << 8), step, node_type, batch)
            return _native.draw_words(key, original, trees)

        if self.batch_dependency < 2:
            upper: UInt64Array = words(graph.batch if self.batch_dependency else 0) >> np.uint64(11)
            return upper.astype(np.float64) * 2.0**-53
        first, passed = divmod(graph.batch, self.batch_dependency)
        turns = np.array([0.0, 1.0]) - passed / self.batch_dependency
        near, far = cos_of_turns(np.abs(turns) * 0.25)  # cos and sin of passed / K * pi / 2
        z = near * normal_variates(words(first)) + far * normal_variates(words(first + 1))
        return normal_cdf(z)

    def _take(self, layer: Layer, numbers: UniformNumbers) -> tuple[Picks, Float64Array]:
        """Return the edges that rows take, by the nodes' random numbers, and their weights.

        Weights are empty unless requested.
        """
        picks = self._picks(layer, numbers)
        if picks.chances is None:
            return picks, np.empty(0)
        norm = 1.0 / picks.chances
        row = layer.row[picks.edges]
        if self.replace:  # the mean over the draws
            norm = norm / np.where(layer.asked < 0, 1, layer.asked)[row]
        if self.edge_norm == "ht":
            return picks, norm if layer.weight is None else layer.weight[picks.edges] * norm
        if layer.share is not None:
            norm = layer.share[picks.edges] * norm
        return picks, scaled_to_counts(norm, row)

    def _picks(self, layer: Layer, numbers: UniformNumbers) -> Picks:
        weigh = self.edge_norm is not None
        if self.replace:
            return take_repeatedly(layer, numbers, weigh)
        masses = layer.masses(self.importance)
        if self.sequential:
            return take_once(layer, numbers, masses, weigh)
        by_weight = layer.share is not None and self.importance == 0
        chances = layer.chances_by_weight() if by_weight else layer.chances(masses)
        return take_poisson(layer, numbers, chances, weigh)


@dataclass
class _TypedRows:
    """Neighbours of the frontier over an edge type: at first all, in the end the taken ones.

    Attributes:
        rows: the neighbours.
        weights: [n] float64 weights of all edges. None if not drawn by weight.
        trees: [num_rows] int32 trees of rows. None if the batch is not disjoint.
        fanout: number of neighbours that a row takes.
        norm: [n] float64 weights of the edges that are taken. Empty if not asked for.
    """

    rows: Rows
    weights: Float64Array | None
    trees: Int32Array | None
    fanout: int
    norm: Float64Array

    def keyed(self, count: int) -> Rows:
        """Return the rows, where neighbours of disjoint batches become tree * count + id."""
        counts, neighbors, edges = self.rows
        if self.trees is None:
            return self.rows
        return counts, np.repeat(self.trees.astype(np.int64) * count, counts) + neighbors, edges


def _whole_rows(graph: GraphAccess, relation: int, fanout: int) -> Waiting[_TypedRows]:
    """Request all neighbours of the frontier that can be drawn, with their weights."""
    ids, trees, times = graph.subgraph.frontier(graph.relations[relation][1])
    rows = yield from graph.neighbors(relation, ids, -1 if fanout else 0, trees=trees, times=times)
    weights = yield from graph.weights(relation, rows[2])
    if weights is not None:
        rows = kept(rows, np.flatnonzero(weights > 0))
        weights = weights[weights > 0]
    return _TypedRows(rows, weights, trees, fanout, np.empty(0))
