"""LABOR as a program: importance sampling, Poisson draws, weights of edges. Imports no torch.

`Labor` makes it for what the kernels do not draw. In a hop, all rows of the frontier whose
neighbours are of one node type are one problem (`Layer`): owners send the rows whole, and the
asker computes which neighbours they take, so that sums are added in the batch's order, the same
over any number of partitions. Sampler processes and trainers run it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from khop import _native
from khop.codec import Between
from khop.sampler.methods.access import GraphAccess, Rows
from khop.sampler.methods.base import ProgramMethod, register
from khop.sampler.methods.normal import cos_of_turns, normal_cdf, normal_variates
from khop.typing import BoolArray, Float64Array, Int64Array, UInt64Array

VARIATES = 1
"""Purpose of the random words."""

MAX_ITERATIONS = 100
_CONVERGED = 1.0 - 1e-4

EdgeNorm = Literal["ht", "hajek"]


@register
@dataclass(frozen=True)
class LaborImportance(ProgramMethod):
    """LABOR with all options but weights; `khop.sampler.Labor` documents them and makes it."""

    name: ClassVar[str] = "labor-importance"

    importance: Annotated[int, Between(-1, MAX_ITERATIONS)] = 0
    layer_dependency: bool = True
    sequential: bool = True
    edge_norm: EdgeNorm | None = None
    batch_dependency: Annotated[int, Between(0, 2**31)] = 1

    def value_names(self, prefix: str) -> tuple[str, ...]:
        """See `ProgramMethod`."""
        return ("edge_norm",) if prefix == "e" and self.edge_norm is not None else ()

    def draw(self, graph: GraphAccess) -> Generator[list[Any], None, None]:
        """See `ProgramMethod`."""
        for node_type, seeds, _ in graph.seeds:
            graph.subgraph.add_seeds(node_type, seeds)
        norms: list[list[Float64Array]] = [[] for _ in graph.relations]
        for hop in range(len(graph.fanouts[0]) if graph.fanouts else 0):
            rows: list[Rows] = []
            for relation, (_, destination) in enumerate(graph.relations):
                ids, _, _ = graph.subgraph.frontier(destination)
                fanout = -1 if graph.fanouts[relation][hop] else 0
                rows.append((yield from graph.neighbors(relation, ids, fanout)))
            for source in range(len(graph.num_nodes)):
                asked = [r for r, ends in enumerate(graph.relations) if ends[0] == source]
                layer = Layer.of([rows[r] for r in asked], [graph.fanouts[r][hop] for r in asked])
                variates = yield from self._variates(graph, hop, source, layer.nodes)
                taken, norm = self._pick(layer, variates)
                bounds = np.cumsum([0, *(len(rows[r][1]) for r in asked)])
                for r, first, last in zip(asked, bounds[:-1], bounds[1:], strict=True):
                    rows[r] = _kept(rows[r], taken[first:last])
                    norms[r].append(norm[first:last][taken[first:last]])
            for relation, picked in enumerate(rows):
                graph.add_hop(relation, picked)
            graph.subgraph.end_hop()
        for name in self.value_names("e"):
            for r, found in enumerate(norms):
                graph.values[f"e{r}.{name}"] = np.concatenate([*found, []]).astype(np.float32)

    def _variates(
        self, graph: GraphAccess, hop: int, node_type: int, ids: Int64Array
    ) -> Generator[list[Any], None, Float64Array]:
        """Draw r_t of nodes, within [0, 1)."""
        original = yield from graph.original_ids(node_type, ids)
        step = 0 if self.layer_dependency else hop

        def words(batch: int) -> UInt64Array:
            return _native.draw_words(graph.key(VARIATES, step, node_type, batch), original)

        if self.batch_dependency < 2:
            return _fractions(words(graph.batch if self.batch_dependency else 0))
        first, passed = divmod(graph.batch, self.batch_dependency)
        turns = np.array([0.0, 1.0]) - passed / self.batch_dependency
        near, far = cos_of_turns(np.abs(turns) * 0.25)  # cos and sin of passed / K * pi / 2
        z = near * normal_variates(words(first)) + far * normal_variates(words(first + 1))
        return normal_cdf(z)

    def _pick(self, layer: Layer, variates: Float64Array) -> tuple[BoolArray, Float64Array]:
        """Return which edges are taken, and the weights of those that are."""
        masses = layer.masses(self.importance)
        if self.sequential:
            taken, chance = layer.take_smallest(variates, masses, self.importance == 0)
        else:
            chance = layer.chances(masses)
            taken = variates[layer.node] < chance
        norm = np.divide(1.0, chance, out=np.zeros_like(chance), where=taken)
        if self.edge_norm == "hajek":
            picks = np.bincount(layer.row, taken, len(layer.degree))
            total = np.bincount(layer.row, norm, len(layer.degree))
            scale = np.divide(picks, total, out=np.zeros(len(total)), where=total > 0)
            norm = norm * scale[layer.row]
        return taken, norm


@dataclass(frozen=True)
class Layer:
    """Rows of a hop and their neighbours, which are of one node type.

    Attributes:
        nodes: [num_nodes] int64 ids of the neighbours, in the order in which rows name them first.
        node: [num_edges] int64 place of each edge's neighbour in `nodes`.
        row: [num_edges] int64 row of each edge, ascending.
        degree: [num_rows] int64 edges of each row.
        fanout: [num_rows] int64 edges that each row takes.
    """

    nodes: Int64Array
    node: Int64Array
    row: Int64Array
    degree: Int64Array
    fanout: Int64Array

    @classmethod
    def of(cls, rows: list[Rows], fanouts: list[int]) -> Layer:
        """Return the rows of several edge types as one layer."""
        degree = np.concatenate([[], *(counts for counts, _, _ in rows)]).astype(np.int64)
        asked = np.repeat(fanouts, [len(counts) for counts, _, _ in rows]).astype(np.int64)
        fanout = np.where(asked < 0, degree, np.minimum(asked, degree))
        found = np.concatenate([np.empty(0, np.int64), *(neighbors for _, neighbors, _ in rows)])
        ids, first, place = np.unique(found, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        row = np.repeat(np.arange(len(degree)), degree)
        return cls(ids[order], rank[place.reshape(-1)], row, degree, fanout)

    def masses(self, iterations: int) -> Float64Array:
        """Return pi_t of each node after some iterations, or at convergence if negative."""
        masses = np.ones(len(self.nodes))
        expected = float(len(self.nodes))
        while iterations:
            highest = np.zeros_like(masses)
            np.maximum.at(highest, self.node, self.scales(masses)[self.row])
            masses = masses * highest
            iterations -= 1
            before, expected = expected, _sum(np.minimum(masses, 1.0))
            if iterations < 0 and expected >= before * _CONVERGED:
                break
        return masses

    def scales(self, masses: Float64Array) -> Float64Array:
        """Return c_s of each row: sum_t 1 / min(1, c_s pi_t) = degree^2 / fanout.

        So the row's mean has the variance that uniform draws of `fanout` neighbours give. Edges
        with c_s pi_t >= 1 add one each; c_s rises from its value without such ones, and edges once
        among them stay, until there are no more.
        """
        inverse = 1.0 / masses[self.node]
        scales = np.zeros(len(self.degree))
        np.maximum.at(scales, self.row, inverse)  # of rows that take all their neighbours
        is_open = self.fanout < self.degree
        edges = is_open[self.row]
        row, node, inverse = self.row[edges], self.node[edges], inverse[edges]
        degree = self.degree.astype(np.float64)
        target = np.divide(degree * degree, self.fanout, out=np.zeros_like(degree), where=is_open)
        sure = np.zeros(len(row), np.bool_)
        while True:
            left = target - np.bincount(row, sure, len(scales))
            sums = np.bincount(row, np.where(sure, 0.0, inverse), len(scales))
            np.divide(sums, left, out=scales, where=is_open)
            more = sure | (scales[row] * masses[node] >= 1.0)
            if (more == sure).all():
                return scales
            sure = more

    def chances(self, masses: Float64Array) -> Float64Array:
        """Return the chance of each edge in Poisson draws: min(1, c_s pi_t)."""
        chance = np.minimum(self.scales(masses)[self.row] * masses[self.node], 1.0)
        chance[(self.fanout == self.degree)[self.row]] = 1.0
        return chance

    def take_smallest(
        self, variates: Float64Array, masses: Float64Array, is_uniform: bool
    ) -> tuple[BoolArray, Float64Array]:
        """Take the edges of smallest r_t / pi_t in each row, `fanout` of them.

        Args:
            variates: [num_nodes] r_t.
            masses: [num_nodes] pi_t.
            is_uniform: all pi_t are 1.

        Returns:
            Which edges are taken, and the chance of each that is, given the other nodes' numbers
            (priority sampling, Duffield, Lund and Thorup, 2007): 1 / chance has no bias. With
            uniform pi_t, of rows without parallel edges, the chance by itself: fanout / degree.
        """
        taken = np.ones(len(self.row), np.bool_)
        chance = np.ones(len(self.row))
        edges = np.flatnonzero((self.fanout < self.degree)[self.row])
        if not len(edges):
            return taken, chance
        arrival = variates[self.node[edges]] / masses[self.node[edges]]
        edges = edges[np.lexsort((arrival, self.row[edges]))]
        row, node = self.row[edges], self.node[edges]
        begins = np.flatnonzero(np.diff(row, prepend=-1) != 0)
        starts = np.repeat(begins, self.degree[row[begins]])
        fanout, degree, places = self.fanout[row], self.degree[row], np.arange(len(row))
        taken[edges] = places - starts < fanout
        # Of m parallel edges the j-th is taken if r_t / pi_t is below the (fanout + 1 - j)-th of
        # the other nodes' edges. Those are sorted behind it, m places further.
        is_first = np.diff(node, prepend=-1) != 0
        is_first[begins] = True
        first = np.flatnonzero(is_first)
        run = np.cumsum(is_first) - 1
        repeats = np.diff(first, append=len(row))[run]
        next_place = fanout + repeats - (places - first[run]) - 1
        is_sure = next_place >= degree
        arrivals = variates[node] / masses[node]
        threshold = arrivals[np.where(is_sure, places, starts + next_place)]
        chances = np.where(is_sure, 1.0, np.minimum(masses[node] * threshold, 1.0))
        if is_uniform:
            has_parallel = np.bincount(row, ~is_first, len(self.degree)) > 0
            chances = np.where(has_parallel[row], chances, fanout / degree)
        chance[edges] = chances
        return taken, chance


def _sum(values: Float64Array) -> float:
    """Return the sum of values, added one after the other; NumPy's own sum adds pairs."""
    return float(np.bincount(np.zeros(len(values), np.int64), values, 1)[0])


def _fractions(words: UInt64Array) -> Float64Array:
    """Return the upper 53 bits of words as numbers within [0, 1)."""
    fractions: Float64Array = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fractions


def _kept(rows: Rows, taken: BoolArray) -> Rows:
    """Return those of the rows' edges that are taken."""
    counts, neighbors, edges = rows
    row = np.repeat(np.arange(len(counts)), counts)
    left = np.bincount(row[taken], minlength=len(counts)).astype(np.int32)
    return left, neighbors[taken], None if edges is None else edges[taken]
