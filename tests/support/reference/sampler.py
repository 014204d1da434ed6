"""Reference of the k-hop sampler with all options, in plain Python, for kernels and loaders.

It follows the description of the draws word for word, over rows that are lists, with Python's
integers. It uses nothing of khop. `candidates` returns which entries of a row may be drawn, and how
many. A function decides which of them are drawn. `KeyedDraws` computes the draws of a key.
`GivenDraws` takes those of a batch, and checks that they are possible. `walks` compares loaders'
batches with it.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from support.reference import oracle


class Entry(NamedTuple):
    """An entry of a row: a neighbour, its edge's id, and the values that restrict the draws.

    `original` is the neighbour's original id.
    """

    neighbor: int
    edge: int
    time: int | None = None
    weight: int | None = None
    original: int | None = None


class Row(NamedTuple):
    """A row of one edge type: the original id of its node, and its entries in order."""

    original_id: int
    entries: list


@dataclass
class EdgeType:
    """An edge type: node types of the neighbours and of the rows, and the row of each node."""

    source: int
    destination: int
    rows: dict


class Seeds(NamedTuple):
    """Seeds of one node type, with times in temporal sampling."""

    node_type: int
    ids: list
    times: list | None = None


@dataclass
class Options:
    """Options of a batch. `fanouts` and `weighted` have one entry per edge type."""

    fanouts: Sequence
    weighted: Sequence
    replace: bool = False
    last: bool = False
    disjoint: bool = False
    run: int = 0
    batch: int = 0
    excluded: dict = field(default_factory=dict)  # edge type: {(row's node, neighbour), ...}
    induced: bool = False
    reversals: Sequence = ()  # (edge type, reverse edge type, mirror)
    keep_edges: bool = False
    with_edges: bool = True
    labor: bool = False
    layer_dependency: bool = False
    layer_wise: bool = False  # all nodes draw in each hop
    sources: Sequence = ()  # node type of the neighbours, an edge type each

    @property
    def method(self):
        """The method and its options, as the kernels name them."""
        if not self.labor:
            return {}
        return {"method": "labor", "layer_dependency": self.layer_dependency}

    def key(self, hop, relation, source):
        """Return the key of a hop over an edge type."""
        if not self.labor:
            return oracle.step_key(self.run, self.batch, hop, relation)
        hop = 0 if self.layer_dependency else hop
        return oracle.labor_key(self.run, self.batch, source, hop)

    def records_edges(self, relation):
        """Return True if edges of a type have ids: with reverses, only if requested."""
        changed = {i for r, v, mirror in self.reversals for i in ((r, v) if mirror else (r,))}
        return self.with_edges and (self.keep_edges or relation not in changed)


@dataclass
class Batch:
    """A drawn batch: nodes by node type, and (row, col, edge) triples by edge type."""

    nodes: list
    trees: list
    edges: list
    nodes_per_hop: list
    edges_per_hop: list


def integer_weights(weights):
    """Return a row's weights as integers with a sum of about 2^62. Positive ones stay positive."""
    total = 0.0
    for weight in weights:
        total += float(weight)
    # Of tiny sums the reciprocal overflows. A power of two changes no digit.
    lift = 2.0**600 if total < 2.0**-500 else 1.0
    return [
        max(1, math.floor(float(w) * lift * (2.0**62 / (total * lift)))) if w > 0 else 0
        for w in weights
    ]


def pick_by_weight(entries, eligible, count, replace, stream):
    """Draw entries one after the other, each in proportion to the weights that are left."""
    left, chosen = list(eligible), []
    while len(chosen) < count:
        total = sum(entries[p].weight for p in left)
        if total == 0:
            break
        word = next(stream) | next(stream) << 32
        u = word * total >> 64
        for position in left:
            if u < entries[position].weight:
                break
            u -= entries[position].weight
        chosen.append(position)
        if not replace:
            left.remove(position)
    return chosen


def smallest_variates(entries, eligible, count, key, tree, weighted):
    """Return the `count` entries of least r_t / w_t, exactly. r_t belongs to the neighbour."""

    def arrival(position):
        entry = entries[position]
        low, high = itertools.islice(oracle.words(key, entry.original, tree), 2)
        return Fraction(high << 32 | low, entry.weight if weighted else 1), position

    return sorted(sorted(eligible, key=arrival)[:count])


class Candidates(NamedTuple):
    """Positions of a row that can be drawn in one hop.

    Attributes:
        window: positions by which uniform draws are numbered: all that time and exclusions leave.
        eligible: positions among these that may be drawn.
        count: number of draws. If None, all eligible ones are taken, in order.
    """

    window: list
    eligible: list
    count: int | None


def candidates(row, fanout, options, weighted, time=None, hidden=frozenset()):
    """Return the positions of a row that one hop may draw, and their number.

    Args:
        row: a `Row`.
        fanout: number of neighbours. -1: all.
        options: options, of which `replace` and `last` are used.
        weighted: entries are drawn by weight.
        time: time of the seed of the row's tree. If None, times play no role.
        hidden: neighbours that are excluded for the row.

    Returns:
        `Candidates`.
    """
    entries = row.entries
    timed = time is not None
    window = [p for p, e in enumerate(entries) if not timed or e.time is None or e.time <= time]
    window = [p for p in window if entries[p].neighbor not in hidden]
    eligible = [p for p in window if not weighted or entries[p].weight > 0]
    has_times = bool(entries) and entries[0].time is not None
    if options.last and has_times and 0 < fanout <= len(eligible):
        eligible = eligible[-fanout:]
        window = [p for p in window if p >= eligible[0]]
    if fanout == 0 or not eligible:
        return Candidates([], [], None)
    if fanout < 0 or (not options.replace and fanout >= len(window)):
        return Candidates(window, eligible, None)
    return Candidates(window, eligible, fanout if options.replace else min(fanout, len(eligible)))


def contribution(row, fanout, options, weighted, key, tree=0, time=None, hidden=frozenset()):
    """Return the positions that a row contributes to a hop under a key, in order.

    Other arguments: see `candidates`.
    """
    found = candidates(row, fanout, options, weighted, time, hidden)
    if found.count is None:
        return found.eligible
    if options.labor:
        return smallest_variates(row.entries, found.eligible, fanout, key, tree, weighted)
    if weighted:
        stream = oracle.words(key, row.original_id, tree)
        return pick_by_weight(row.entries, found.eligible, fanout, options.replace, stream)
    picks = oracle.picks(key, row.original_id, len(found.window), fanout, options.replace, tree)
    return [found.window[p] for p in picks]


class KeyedDraws:
    """Draws that the key of a hop over an edge type determines.

    Args:
        options: options of the draws.
        sources: node type of the neighbours, per edge type.
    """

    def __init__(self, options, sources):
        self.options, self.sources = options, sources

    def __call__(self, hop, relation, row, tree, time, hidden, place):
        """Return the positions that a row contributes. The first is edge `place` of its type."""
        options = self.options
        key = options.key(hop, relation, self.sources[relation])
        fanout, weighted = options.fanouts[relation][hop], options.weighted[relation]
        return contribution(row, fanout, options, weighted, key, tree, time, hidden)


class GivenDraws:
    """Draws of a batch, with a check that they are possible.

    Args:
        options: options of the draws.
        drawn: ids of the batch's edges, one list per edge type.
    """

    def __init__(self, options, drawn):
        self.options, self.drawn = options, drawn

    def __call__(self, hop, relation, row, tree, time, hidden, place):
        """Return the positions that a row contributed. AssertionError if this is not possible."""
        options = self.options
        fanout, weighted = options.fanouts[relation][hop], options.weighted[relation]
        found = candidates(row, fanout, options, weighted, time, hidden)
        if found.count is None:
            return found.eligible
        drawn = self.drawn[relation][place : place + found.count]
        position_of = {row.entries[p].edge: p for p in found.eligible}
        assert len(drawn) == found.count, (drawn, found)
        assert all(edge in position_of for edge in drawn), (drawn, position_of)
        assert options.replace or len(set(drawn)) == len(drawn), drawn
        return [position_of[edge] for edge in drawn]


class Sampler:
    """Sampler of one batch.

    Args:
        num_types: number of node types.
        edge_types: the graph.
        options: options of the draws.
        draws: `KeyedDraws` or `GivenDraws`. If None, `KeyedDraws`.
    """

    def __init__(self, num_types, edge_types, options, draws=None):
        self.edge_types, self.options = edge_types, options
        self.draws = (
            KeyedDraws(options, [kind.source for kind in edge_types]) if draws is None else draws
        )
        self.members = [[] for _ in range(num_types)]  # (tree, id) of each number
        self.number = [{} for _ in range(num_types)]
        self.tree_times = []
        self.edges = [[] for _ in edge_types]
        self.edges_per_hop = [[] for _ in edge_types]
        self.nodes_per_hop = [[] for _ in range(num_types)]

    def draw(self, seeds):
        """Return the `Batch` of these seeds."""
        trees = 0
        for node_type, ids, times in seeds:
            for i, seed in enumerate(ids):
                tree = trees if self.options.disjoint else 0
                self.tree_times.append(None if times is None else times[i])
                self.number[node_type].setdefault((tree, seed), len(self.members[node_type]))
                self.members[node_type].append((tree, seed))
                trees += 1
        begin = [0] * len(self.members)
        end = [len(members) for members in self.members]
        self._count(begin, end)
        num_hops = len(self.options.fanouts[0]) if self.options.fanouts else 0
        for hop in range(num_hops):
            for r in range(len(self.edge_types)):
                destination = self.edge_types[r].destination
                first = 0 if self.options.layer_wise else begin[destination]
                self._hop(hop, r, range(first, end[destination]))
            begin, end = end, [len(members) for members in self.members]
            self._count(begin, end)
        self._complete()
        recorded = [self.options.records_edges(r) for r in range(len(self.edges))]
        return Batch(
            [[v for _, v in members] for members in self.members],
            [[tree for tree, _ in members] for members in self.members],
            [
                [(row, col, edge if kept else None) for row, col, edge in edges]
                for edges, kept in zip(self.edges, recorded, strict=True)
            ],
            self.nodes_per_hop,
            self.edges_per_hop,
        )

    def _count(self, begin, end):
        for counts, first, last in zip(self.nodes_per_hop, begin, end, strict=True):
            counts.append(last - first)

    def _time(self, tree):
        return self.tree_times[tree] if self.options.disjoint else None

    def _hidden(self, r, node):
        return {u for v, u in self.options.excluded.get(r, ()) if v == node}

    def _hop(self, hop, r, frontier):
        kind, edges = self.edge_types[r], self.edges[r]
        before = len(edges)
        for col in frontier:
            tree, node = self.members[kind.destination][col]
            row, time, hidden = kind.rows[node], self._time(tree), self._hidden(r, node)
            for position in self.draws(hop, r, row, tree, time, hidden, len(edges)):
                entry = row.entries[position]
                known, found = self.number[kind.source], (tree, entry.neighbor)
                if found not in known:
                    known[found] = len(self.members[kind.source])
                    self.members[kind.source].append(found)
                edges.append((known[found], col, entry.edge))
        self.edges_per_hop[r].append(len(edges) - before)

    def _complete(self):
        if self.options.induced:
            self.edges = [self.induced(r) for r in range(len(self.edge_types))]
            self.edges_per_hop = [[len(edges)] for edges in self.edges]
        self.edges = add_reverses(self.edges, self.options.reversals)
        for relation, reverse, mirror in self.options.reversals:
            for changed in (relation, reverse) if mirror else (relation,):
                self.edges_per_hop[changed] = []

    def induced(self, r):
        """Return all edges of a type among nodes of one tree, which the tree's seed may see."""
        kind, edges = self.edge_types[r], []
        for col, (tree, node) in enumerate(self.members[kind.destination]):
            time, hidden = self._time(tree), self._hidden(r, node)
            for entry in kind.rows[node].entries:
                seen = time is None or entry.time is None or entry.time <= time
                row = self.number[kind.source].get((tree, entry.neighbor))
                if seen and row is not None and entry.neighbor not in hidden:
                    edges.append((row, col, entry.edge))
        return edges


def add_reverses(drawn, reversals):
    """Return the edges of all types, to some of which reverses of others are added.

    Args:
        drawn: (row, col, edge) triples, one list per edge type.
        reversals: (edge type, the type whose reverses it gets, True if the result is mirrored).

    Returns:
        One list per edge type, as `drawn`.
    """
    edges = list(drawn)
    for relation, reverse, mirror in reversals:
        edges[relation] = with_reverses(drawn[relation], drawn[reverse])
        if mirror:
            edges[reverse] = [(col, row, None) for row, col, _ in edges[relation]]
    return edges


def with_reverses(own, reverse):
    """Return edges and the reverses of others, by column and row. Of equal ones, the first."""
    both = own + [(col, row, edge) for row, col, edge in reverse]
    first = {}
    for row, col, edge in both:
        first.setdefault((col, row), edge)
    return [(row, col, first[col, row]) for col, row in sorted(first)]


def sample(num_types, edge_types, seeds, options):
    """Return the batch that the reference draws for seeds, over `edge_types` with `options`."""
    return Sampler(num_types, edge_types, options).draw(seeds)


@dataclass
class Sampled:
    """A batch of a graph of one type: node ids, positions of ends, edges, counts per hop."""

    node: list = field(default_factory=list)
    row: list = field(default_factory=list)
    col: list = field(default_factory=list)
    edge: list = field(default_factory=list)
    nodes_per_hop: list = field(default_factory=list)
    edges_per_hop: list = field(default_factory=list)


def sample_one_type(indptr, indices, seeds, fanouts, replace, run, batch, row_ids=None):
    """Return the batch (`Sampled`) of seeds of a graph of one type, in compressed rows.

    Args:
        indptr: [number of nodes + 1].
        indices: neighbours.
        seeds: ids.
        fanouts: fan-out of each hop.
        replace: draws are with replacement.
        run: key of the epoch.
        batch: index of the batch.
        row_ids: original ids of the nodes. If None, their own.
    """
    rows = {}
    for v in range(len(indptr) - 1):
        positions = range(int(indptr[v]), int(indptr[v + 1]))
        entries = [Entry(int(indices[p]), p) for p in positions]
        rows[v] = Row(v if row_ids is None else int(row_ids[v]), entries)
    options = Options([fanouts], [False], replace, run=run, batch=batch)
    out = sample(1, [EdgeType(0, 0, rows)], [Seeds(0, list(seeds))], options)
    row, col, edge = ([triple[i] for triple in out.edges[0]] for i in range(3))
    return Sampled(out.nodes[0], row, col, edge, out.nodes_per_hop[0], out.edges_per_hop[0])
