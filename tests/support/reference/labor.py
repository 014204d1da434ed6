"""LABOR in plain Python, from the paper (https://arxiv.org/abs/2210.13339), row after row.

Sums are added in the order of the rows' entries, so that floats are those of the program. Nodes are
(tree, id): all trees are 0 but in disjoint batches.
"""

import itertools
import math
from statistics import NormalDist
from typing import Any, NamedTuple

from support.reference import oracle

PROGRAM_HOP, VARIATES = 0xFFFFFFFC, 1
NORMAL = NormalDist()


class Relation(NamedTuple):
    """An edge type: node types of neighbours and rows, and [(neighbour, edge)] of each row.

    Weights and times (from which edges can be seen) are by edge.
    """

    source: int
    destination: int
    rows: dict
    weights: Any = None
    times: Any = None


class Method(NamedTuple):
    """Options of LABOR, named as in `Labor`."""

    importance: int = 0
    layer_dependency: bool = True
    sequential: bool = True
    edge_norm: str | None = None
    batch_dependency: int = 1
    replace: bool = False
    weight_attr: str | None = None


class Row(NamedTuple):
    """A row: its neighbours, fan-out, edge weights, and fractions of their sum (or None)."""

    nodes: list
    fanout: int
    weights: list
    shares: list | None

    @property
    def count(self):
        """Number of neighbours that the row takes without replacement."""
        return len(self.nodes) if self.fanout < 0 else min(self.fanout, len(self.nodes))


def added(values):
    """Return the sum of values, added one after the other."""
    total = 0.0
    for value in values:
        total += value
    return total


def scale(row, masses):
    """Return c_s: the least c with sum_t 1 / min(1, c pi_t) = d^2 / k. By weights: the same."""
    if row.count == len(row.nodes):
        least = row.fanout / (1 if row.shares is not None else max(len(row.nodes), 1))
        return max((least, 0.0, *(1 / pi for pi in masses)))
    degree, count = float(len(row.nodes)), row.count
    squares = [1.0 if row.shares is None else a * a for a in row.shares or row.nodes]
    target = degree * degree / count
    if row.shares is not None:
        target = 1 / count - 1 / degree + added(squares)
    sure = [False] * len(masses)
    while True:
        entries = list(zip(squares, masses, sure, strict=True))
        inverse = added(0.0 if s else a / pi for a, pi, s in entries)
        found = inverse / (target - added(a if s else 0.0 for a, _, s in entries))
        more = [s or found * pi >= 1 for _, pi, s in entries]
        if more == sure:
            return found
        sure = more


def masses_of(rows, iterations):
    """Return pi_t of each row's entries, after some iterations or until convergence.

    It converges when a sum falls by less than 1 in 10,000.
    """
    first = [row.shares or [1.0] * len(row.nodes) for row in rows]
    weighted = any(row.shares is not None for row in rows)
    if iterations == 0:
        return first
    pi = {t: 1.0 for row in rows for t in row.nodes}  # in the order in which rows name them
    expected, left, masses = float(len(pi)), iterations + (weighted and iterations > 0), first
    while left:
        highest = dict.fromkeys(pi, 0.0)
        for row, of_row in zip(rows, masses, strict=True):
            c = scale(row, of_row)
            for t, mass in zip(row.nodes, of_row, strict=True):
                own = c * mass if weighted and masses is first else c
                highest[t] = max(highest[t], own)
        pi = {t: min(value * highest[t], 2.0**300) for t, value in pi.items()}
        masses = [[pi[t] for t in row.nodes] for row in rows]
        before, expected = expected, added(min(value, 1.0) for value in pi.values())
        left -= 1
        if left < 0 and expected >= before * (1 - 1e-4):
            break
    return masses


def smallest(row, numbers, masses):
    """Return [(position, chance)] of the `count` least r_t / pi_t, in order of positions.

    A chance is conditional on the other nodes' numbers.
    """
    arrivals = [
        (numbers(t, 0) / pi, i, t) for i, (t, pi) in enumerate(zip(row.nodes, masses, strict=True))
    ]
    if row.count == len(row.nodes):
        return [(i, 1.0) for _, i, _ in arrivals]
    return raced(arrivals, row, row.count, masses, row.count / max(len(row.nodes), 1))


def repeated(row, numbers, masses):
    """Return the same as `smallest`, with replacement: each neighbour has k sorted numbers."""
    k, arrivals = row.fanout, []
    if k < 0:
        return [(i, 1.0) for i in range(len(row.nodes))]
    for i, (t, pi) in enumerate(zip(row.nodes, masses, strict=True)):
        spent = 0.0
        for j in range(k):
            spent -= math.log(max(numbers(t, j), 2.0**-54)) / (k - j)
            arrivals.append((-math.expm1(-spent) / pi, i, (t, j)))
    even = 1 / max(len(row.nodes), 1)
    return [(i, chance * k) for i, chance in raced(arrivals, row, k, masses, even)]


def raced(arrivals, row, count, masses, even):
    """Return [(position, chance)] of the first `count` arrivals (time, position, group)."""
    arrivals, taken = sorted(arrivals, key=lambda a: a[:2]), []
    for place, (_, i, group) in enumerate(arrivals[:count]):
        others = [time for time, _, other in arrivals if other != group]
        left = count - sum(other == group for _, _, other in arrivals[:place])
        chance = 1.0 if left > len(others) else min(masses[i] * others[left - 1], 1.0)
        if set(masses) == {1.0} and row.shares is None and len(set(row.nodes)) == len(row.nodes):
            chance = even
        taken.append((i, chance))
    return sorted(taken, key=lambda pick: pick[0])


def poisson(row, numbers, masses, importance):
    """Return the positions with r_t < c_s pi_t, and their chances."""
    c = scale(row, masses)
    if row.shares is not None and importance == 0:
        c = row.count
    found = []
    for i, (t, pi) in enumerate(zip(row.nodes, masses, strict=True)):
        chance = 1.0 if row.count == len(row.nodes) else min(c * pi, 1.0)
        if numbers(t, 0) < chance:
            found.append((i, chance))
    return found


def norms_of(taken, row, edge_norm):
    """Return the `edge_norm` weights of the edges that a row takes."""
    if edge_norm != "hajek":
        return [row.weights[i] * (1 / p) for i, p in taken]
    ht = [(1.0 if row.shares is None else row.shares[i]) * (1 / p) for i, p in taken]
    return [w * (len(ht) / added(ht)) for w in ht]


def variate(method, run_key, batch, hop, node_type, node, index=0):
    """Return the index-th random number of a node.

    With batch_dependency above 1, it is exact within about 1e-13.
    """
    step, period = 0 if method.layer_dependency else hop, method.batch_dependency

    def word(of_batch):
        place = oracle.step_key(run_key, of_batch, PROGRAM_HOP, VARIATES + 256 * index)
        key = oracle.step_key(place, 0, step, node_type)
        low, high = itertools.islice(oracle.words(key, node[1], node[0]), 2)
        return low, high

    if period < 2:
        low, high = word(batch if period else 0)
        return ((high << 32 | low) >> 11) * 2.0**-53
    first, passed = divmod(batch, period)
    z = 0.0
    for of_batch, wave in ((first, math.cos), (first + 1, math.sin)):
        low, high = word(of_batch)
        radius = math.sqrt(-2 * math.log((high + 0.5) * 2.0**-32))
        normal = radius * math.cos(2 * math.pi * low * 2.0**-32)
        z += wave(math.pi / 2 * passed / period) * normal
    return NORMAL.cdf(z)


def row_of(relation, fanout, node, time, weighted):
    """Return a node's row at a time, and the ids of its edges."""
    entries = relation.rows.get(node[1], [])
    weights = relation.weights
    if time is not None and relation.times is not None:
        entries = sorted(entries, key=lambda entry: relation.times[entry[1]])
        entries = [entry for entry in entries if relation.times[entry[1]] <= time]
    if weights is not None:
        entries = [entry for entry in entries if weights[entry[1]] > 0]
    own = [1.0 if weights is None else weights[e] for _, e in entries]
    total = added(own)
    shares = [max(a / total, 2.0**-62) for a in own] if weighted else None
    return Row([(node[0], t) for t, _ in entries], fanout, own, shares), [e for _, e in entries]


def draw(relations, fanouts, seeds, method, run_key, batch, disjoint=False, times=None):
    """Return [(tree, node)] of each type, and [(neighbour, row, edge, weight)] of each relation.

    Args:
        relations: edge types. Draws are by weight if any has weights.
        fanouts: fan-out of each hop, for each edge type.
        seeds: seeds of each node type.
        method: options.
        run_key: key of the epoch.
        batch: index of the batch.
        disjoint: each seed has a tree of its own.
        times: times of the seeds, which must be disjoint.
    """
    weighted = any(relation.weights is not None for relation in relations)
    nodes, trees = [], itertools.count()
    for of_type in seeds:
        nodes.append([(next(trees) if disjoint else 0, s) for s in of_type])
    frontier, edges = [list(n) for n in nodes], [[] for _ in relations]
    for hop in range(len(fanouts[0])):
        picked = [[] for _ in relations]
        for source in range(len(nodes)):
            rows, places = [], []
            for r, relation in enumerate(relations):
                if relation.source != source or fanouts[r][hop] == 0:
                    continue
                for v in frontier[relation.destination]:
                    time = None if times is None else times[v[0]]
                    row, ids = row_of(relation, fanouts[r][hop], v, time, weighted)
                    rows.append(row)
                    places.append((r, v, ids))
            masses = masses_of(rows, method.importance)

            def numbers(t, index, hop=hop, source=source):
                return variate(method, run_key, batch, hop, source, t, index)

            for row, of_row, (r, v, ids) in zip(rows, masses, places, strict=True):
                if method.replace:
                    taken = repeated(row, numbers, of_row)
                elif method.sequential:
                    taken = smallest(row, numbers, of_row)
                else:
                    taken = poisson(row, numbers, of_row, method.importance)
                norms = norms_of(taken, row, method.edge_norm)
                for (i, _), norm in zip(taken, norms, strict=True):
                    picked[r].append((row.nodes[i], v, ids[i], norm))
        found = [[] for _ in nodes]
        for r, relation in enumerate(relations):
            for t, *_ in picked[r]:
                if t not in nodes[relation.source]:
                    nodes[relation.source].append(t)
                    found[relation.source].append(t)
            edges[r] += picked[r]
        frontier = found
    return nodes, edges
