"""The k-hop sampler with all of its options, in plain Python.

A brute-force reference like those of `oracle`: it follows the description of the draws word for
word, over rows that are lists, with Python's integers, and uses nothing of khop.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import oracle


class Entry(NamedTuple):
    """An entry of a row: a neighbour, its edge's number and what narrows the draws.

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
    """Seeds of one node type; with times in temporal sampling."""

    node_type: int
    ids: list
    times: list | None = None


@dataclass
class Options:
    """What a batch is drawn with; `fanouts` and `weighted` an edge type each."""

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
    sources: Sequence = ()  # node type of the neighbours, an edge type each

    @property
    def method(self):
        """What the kernels call the method and its options."""
        if not self.labor:
            return {}
        return {"method": "labor", "layer_dependency": self.layer_dependency}

    def key(self, hop, relation, source):
        """The key of a hop over an edge type."""
        if not self.labor:
            return oracle.step_key(self.run, self.batch, hop, relation)
        hop = 0 if self.layer_dependency else hop
        return oracle.race_key(self.run, self.batch, source, hop)

    def records_edges(self, relation):
        """Whether edges of a type have numbers: of those with reverses only on demand."""
        changed = {i for r, v, mirror in self.reversals for i in ((r, v) if mirror else (r,))}
        return self.with_edges and (self.keep_edges or relation not in changed)


@dataclass
class Batch:
    """A drawn batch; lists by node type, and by edge type (row, col, edge) triples."""

    nodes: list
    trees: list
    edges: list
    nodes_per_hop: list
    edges_per_hop: list


def integer_weights(weights):
    """A row's weights as integers that add up to about 2^62; none that is positive becomes 0."""
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
    """Draws one after the other, each in proportion to what is left."""
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


def first_to_arrive(entries, eligible, count, key, tree, weighted):
    """The `count` entries of least r_t / w_t, exactly; r_t belongs to the neighbour."""

    def arrival(position):
        entry = entries[position]
        low, high = itertools.islice(oracle.words(key, entry.original, tree), 2)
        return Fraction(high << 32 | low, entry.weight if weighted else 1), position

    return sorted(sorted(eligible, key=arrival)[:count])


def contribution(row, fanout, options, weighted, key, tree=0, time=None, hidden=frozenset()):
    """Positions that a row contributes to one hop, in order.

    `hidden` are the neighbours that are excluded for the row, `time` is that of its tree's seed.
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
        return []
    if fanout < 0 or (not options.replace and fanout >= len(window)):
        return eligible
    if options.labor:
        return first_to_arrive(entries, eligible, fanout, key, tree, weighted)
    if weighted:
        stream = oracle.words(key, row.original_id, tree)
        return pick_by_weight(entries, eligible, fanout, options.replace, stream)
    picks = oracle.picks(key, row.original_id, len(window), fanout, options.replace, tree)
    return [window[p] for p in picks]


class Sampler:
    """Draws one batch.

    Args:
        num_types: number of node types.
        edge_types: the graph.
        options: how to draw.
    """

    def __init__(self, num_types, edge_types, options):
        self.edge_types, self.options = edge_types, options
        self.members = [[] for _ in range(num_types)]  # (tree, id) of each number
        self.number = [{} for _ in range(num_types)]
        self.tree_times = []
        self.edges = [[] for _ in edge_types]
        self.edges_per_hop = [[] for _ in edge_types]
        self.nodes_per_hop = [[] for _ in range(num_types)]

    def draw(self, seeds):
        """Returns the `Batch`."""
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
                self._hop(hop, r, range(begin[destination], end[destination]))
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
        kind, options, before = self.edge_types[r], self.options, len(self.edges[r])
        key = options.key(hop, r, kind.source)
        for col in frontier:
            tree, node = self.members[kind.destination][col]
            row = kind.rows[node]
            for position in contribution(
                row,
                options.fanouts[r][hop],
                options,
                options.weighted[r],
                key,
                tree,
                self._time(tree),
                self._hidden(r, node),
            ):
                entry = row.entries[position]
                known, found = self.number[kind.source], (tree, entry.neighbor)
                if found not in known:
                    known[found] = len(self.members[kind.source])
                    self.members[kind.source].append(found)
                self.edges[r].append((known[found], col, entry.edge))
        self.edges_per_hop[r].append(len(self.edges[r]) - before)

    def _complete(self):
        if self.options.induced:
            self.edges = [self._induced(r) for r in range(len(self.edge_types))]
            self.edges_per_hop = [[len(edges)] for edges in self.edges]
        drawn = list(self.edges)
        for relation, reverse, mirror in self.options.reversals:
            edges = with_reverses(drawn[relation], drawn[reverse])
            if mirror:
                self.edges[reverse] = [(col, row, None) for row, col, _ in edges]
                self.edges_per_hop[reverse] = []
            self.edges[relation] = edges
            self.edges_per_hop[relation] = []

    def _induced(self, r):
        """All edges of a type among the members of the same tree, that their trees may see."""
        kind, edges = self.edge_types[r], []
        for col, (tree, node) in enumerate(self.members[kind.destination]):
            time, hidden = self._time(tree), self._hidden(r, node)
            for entry in kind.rows[node].entries:
                seen = time is None or entry.time is None or entry.time <= time
                row = self.number[kind.source].get((tree, entry.neighbor))
                if seen and row is not None and entry.neighbor not in hidden:
                    edges.append((row, col, entry.edge))
        return edges


def with_reverses(own, reverse):
    """Edges and the reverses of others, by column and row, of equal ones the first."""
    both = own + [(col, row, edge) for row, col, edge in reverse]
    first = {}
    for row, col, edge in both:
        first.setdefault((col, row), edge)
    return [(row, col, first[col, row]) for col, row in sorted(first)]


def sample(num_types, edge_types, seeds, options):
    """The batch that seeds draw."""
    return Sampler(num_types, edge_types, options).draw(seeds)
