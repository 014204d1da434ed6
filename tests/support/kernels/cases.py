"""Random heterogeneous graphs and batches, for the kernels and in the form of the reference."""

import os
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, settings, strategies as st

from khop import _native
from support.reference import sampler
from support.reference.sampler import Entry, Options, Row, Seeds

INT64 = np.iinfo(np.int64)
TINY = 5e-324  # the smallest positive double

# What weights and times of an edge type are drawn from.
WEIGHTS = (
    [1.0],
    [0.0, 1.0, 2.0, 3.0],
    [0.0, 0.1, 0.5, 1e6],
    [0.0, TINY, 1e-300, 1e-20, 1.0, 1e20, 1e300],  # ratios beyond 2^62
    [0.0, TINY, 7 * TINY],
    [0.0],
)
TIMES = ([0, 1, 2, 3], [5], [INT64.min, -1, 0, 1, INT64.max])


def examples(count):
    """Return hypothesis's settings for a test that draws `count` graphs, also large ones.

    The factor KHOP_TEST_EXAMPLES reduces the number where each takes long, as under
    compute-sanitizer.
    """
    count = max(1, round(count * float(os.environ.get("KHOP_TEST_EXAMPLES", "1"))))
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, suppress_health_check=checks)


@dataclass
class Relation:
    """An edge type: arrays as they are stored, with rows first_row, first_row + 1, ..."""

    source: int
    destination: int
    indptr: np.ndarray
    indices: np.ndarray
    row_ids: np.ndarray | None = None
    times: np.ndarray | None = None
    weights: np.ndarray | None = None
    neighbor_ids: np.ndarray | None = None
    first_row: int = 0
    first_edge: int = 0

    @property
    def num_rows(self):
        return len(self.indptr) - 1

    def csr(self, low=0, high=None):
        """Return the rows from `low` to `high` - 1 as their owner has them."""
        high = self.num_rows if high is None else high
        begin, end = int(self.indptr[low]), int(self.indptr[high])
        tables = {}
        if self.weights is not None:
            sums, guide = _native.weight_table(self.indptr, self.weights)
            tables = {"weight_sums": sums[begin:end], "weight_guide": guide[begin:end]}
        if self.times is not None:
            tables["times"] = self.times[begin:end]
        if self.neighbor_ids is not None:
            tables["neighbor_ids"] = self.neighbor_ids[begin:end]
        return _native.Csr(
            self.indptr[low : high + 1] - self.indptr[low],
            self.indices[begin:end],
            None if self.row_ids is None else self.row_ids[low:high],
            self.first_row + low,
            self.first_edge + begin,
            **tables,
        )

    def edge_type(self):
        """Return the edge type in the form of the reference."""
        rows = {}
        for i in range(self.num_rows):
            a, b = int(self.indptr[i]), int(self.indptr[i + 1])
            neighbors = self.indices[a:b].tolist()
            times = [None] * (b - a) if self.times is None else self.times[a:b].tolist()
            weights = [None] * (b - a)
            if self.weights is not None:
                weights = sampler.integer_weights(self.weights[a:b].tolist())
            edges = range(self.first_edge + a, self.first_edge + b)
            originals = neighbors
            if self.neighbor_ids is not None:
                originals = self.neighbor_ids[a:b].tolist()
            node = self.first_row + i
            original = node if self.row_ids is None else int(self.row_ids[i])
            entries = map(Entry, neighbors, edges, times, weights, originals)
            rows[node] = Row(original, list(entries))
        return sampler.EdgeType(self.source, self.destination, rows)


@dataclass
class Graph:
    """A graph: type t has counts[t] nodes, with ids from bases[t] on, below num_nodes[t]."""

    counts: list
    bases: list
    num_nodes: list
    relations: list = field(default_factory=list)

    def pairs(self):
        return [(r.source, r.destination) for r in self.relations]

    def subgraph(self, disjoint, with_edges=True):
        return _native.Subgraph(self.num_nodes, self.pairs(), with_edges, disjoint)

    def csrs(self):
        return [r.csr() for r in self.relations]

    def parts(self, cuts):
        """Divide the graph among owners. Return bounds of each node type, and each owner's rows.

        cuts[t] are the positions, counted from 0, at which node type t is divided.
        """
        local = [
            [0, *sorted(min(c, n) for c in cut), n]
            for n, cut in zip(self.counts, cuts, strict=True)
        ]
        bounds = [[base + b for b in bs] for base, bs in zip(self.bases, local, strict=True)]
        num_parts = len(local[0]) - 1
        csrs = [
            [r.csr(*local[r.destination][p : p + 2]) for r in self.relations]
            for p in range(num_parts)
        ]
        return bounds, csrs

    def sample(self, seeds, options):
        """Return the reference's batch of these seeds."""
        kinds = [r.edge_type() for r in self.relations]
        return sampler.sample(len(self.counts), kinds, seeds, options)


def original_ids(node_type):
    """Return random original ids for the nodes of a type, fewer than 1,000."""
    return np.random.default_rng(node_type).permutation(1000)


@st.composite
def graphs(draw, max_nodes=9, max_degree=10):
    """Draw a graph of up to three node types and four edge types, each possibly empty.

    Hypothesis chooses the properties of edge types, and a generator fills them.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_types = int(rng.integers(1, 4))
    counts = [int(rng.integers(1, max_nodes + 1)) * draw(_MOSTLY) for _ in range(num_types)]
    bases = [draw(st.sampled_from([0, 0, 0, 2**31 - 3, 2**40])) for _ in counts]
    beyond = [draw(st.sampled_from([0, 0, 100, 2**33])) for _ in counts]
    row_ids = [draw(st.sampled_from([None, None, np.int32, np.int64])) for _ in counts]
    graph = Graph(counts, bases, [sum(t) for t in zip(counts, bases, beyond, strict=True)])
    for _ in range(rng.integers(1, 5) * draw(_MOSTLY)):
        source, destination = rng.integers(0, num_types, 2).tolist()
        if draw(_MOSTLY) and counts[source] > 0:
            degrees = rng.integers(0, max_degree + 1, counts[destination])
        else:
            degrees = np.zeros(counts[destination], np.int64)
        relation = draw(_relations(rng, source, destination, degrees, counts[source], bases))
        if row_ids[destination] is not None:
            relation.row_ids = original_ids(destination)[: len(degrees)]
            relation.row_ids = relation.row_ids.astype(row_ids[destination])
        if row_ids[source] is not None:
            local = relation.indices - bases[source]
            relation.neighbor_ids = original_ids(source)[local].astype(row_ids[source])
        elif relation.row_ids is not None:
            relation.neighbor_ids = relation.indices
        graph.relations.append(relation)
    return graph


_MOSTLY = st.sampled_from([True] * 15 + [False])
_WIDTHS = st.sampled_from([np.int32, np.int64])


@st.composite
def _relations(draw, rng, source, destination, degrees, num_sources, bases):
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    num_edges = int(indptr[-1])
    # Parallel edges and loops are likely: neighbours come from a few.
    few = rng.integers(1, num_sources + 1) if num_sources else 1
    neighbors = rng.integers(0, few, num_edges) + bases[source]
    relation = Relation(
        source,
        destination,
        indptr.astype(draw(_WIDTHS)),
        neighbors.astype(draw(_WIDTHS) if bases[source] == 0 else np.int64),
        first_row=bases[destination],
        first_edge=draw(st.sampled_from([0, 2**40])),
    )
    if draw(st.booleans()):
        times = rng.choice(draw(st.sampled_from(TIMES)), num_edges).astype(np.int64)
        rows = np.repeat(np.arange(len(degrees)), degrees)
        relation.times = times[np.lexsort((times, rows))]
    if draw(st.booleans()):
        pool = draw(st.sampled_from(WEIGHTS))
        width = np.float32 if max(pool) < 1e30 and draw(st.booleans()) else np.float64
        relation.weights = rng.choice(pool, num_edges).astype(width)
    return relation


def seed_list(rng, graph, temporal):
    """Return random seeds in several calls: repeated types, duplicates and none in a call occur."""
    seeds = []
    for node_type in rng.integers(0, len(graph.counts), rng.choice([0, 2, 3, 4, 5])).tolist():
        base, count = graph.bases[node_type], graph.counts[node_type]
        size = rng.choice([0, 1, 2, 3, 4, 5]) if count else 0
        ids = (rng.integers(0, max(count, 1), size) + base).tolist()
        pool = [INT64.min, -1, 0, 1, 2, 3, 5, INT64.max]
        times = [pool[i] for i in rng.integers(0, len(pool), size)] if temporal else None
        seeds.append(Seeds(node_type, ids, times))
    return seeds


def exclusions(rng, graph):
    """Return pairs to exclude for some edge types, some of which are edges and some not."""
    excluded = {}
    for r, relation in enumerate(graph.relations):
        if rng.integers(0, 3) == 0:
            continue
        rows = np.repeat(np.arange(relation.num_rows), np.diff(relation.indptr))
        rows = rows + relation.first_row
        chosen = rng.random(len(rows)) < rng.choice([0.05, 0.3, 0.9])
        pairs = zip(rows[chosen].tolist(), relation.indices[chosen].tolist(), strict=True)
        excluded[r] = {*pairs, (-1, 0), (0, 77), (INT64.max, INT64.min)}
    return excluded


def reversals(rng, graph):
    """Return edge types with a type that reverses them, perhaps itself.

    Each type is the reverse of at most one.
    """
    pairs, taken, found = graph.pairs(), set(), []
    for i in rng.permutation(len(pairs)).tolist():
        backs = [j for j, pair in enumerate(pairs) if pair == pairs[i][::-1]]
        if i in taken or not backs:
            continue
        j = int(rng.choice(backs))
        mirror = i != j and j not in taken and rng.random() < 0.7
        taken |= {i, j} if mirror else {i}
        found.append((i, j, mirror))
    return found


@st.composite
def batches(draw, graph, disjoint, with_edges=True):
    """Draw (seeds, options): any combination of options that the graph allows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    hops = rng.choice([0, 1, 2, 2, 2, 3, 3])
    options = Options(
        rng.choice([-1, 0, 1, 1, 2, 2, 3, 4], (len(graph.relations), hops)).tolist(),
        [r.weights is not None and draw(st.booleans()) for r in graph.relations],
        draw(st.booleans()),
        draw(st.booleans()),
        disjoint,
        draw(st.integers(0, 2**64 - 1)),
        draw(st.integers(0, 2**40)),
        exclusions(rng, graph) if draw(st.booleans()) else {},
        with_edges=with_edges,
    )
    options.sources = [r.source for r in graph.relations]
    if draw(st.integers(0, 2)) == 0:
        options.labor, options.layer_dependency = True, draw(st.booleans())
        options.replace = options.last = False
    kind = draw(st.sampled_from(["directional", "directional", "induced", "bidirectional"]))
    options.induced = kind == "induced"
    if kind == "bidirectional":
        options.reversals = reversals(rng, graph)
        options.keep_edges = all(i == j for i, j, _ in options.reversals) and draw(st.booleans())
    return seed_list(rng, graph, disjoint and draw(st.booleans())), options
