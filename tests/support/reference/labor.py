"""LABOR-i in plain Python, from the paper (https://arxiv.org/abs/2210.13339), row after row.

Sums are added in the order of the rows' entries, so that floats are those of the program.
"""

import itertools
import math
from statistics import NormalDist
from typing import NamedTuple

from support.reference import oracle

PROGRAM_HOP, VARIATES = 0xFFFFFFFC, 1
NORMAL = NormalDist()


class Relation(NamedTuple):
    """An edge type: node types of neighbours and of rows, [(neighbour, edge)] of each row."""

    source: int
    destination: int
    rows: dict


class Method(NamedTuple):
    """Options, as `Labor` names them."""

    importance: int = 0
    layer_dependency: bool = True
    sequential: bool = True
    edge_norm: str | None = None
    batch_dependency: int = 1


def added(values):
    """The sum, added one after the other."""
    total = 0.0
    for value in values:
        total += value
    return total


def scale(row, count, masses):
    """c_s: the least c with sum_t 1 / min(1, c pi_t) = d^2 / k."""
    if count == len(row):
        return max((1 / masses[t] for t in row), default=0.0)
    sure = [False] * len(row)
    while True:
        inverse = added(0.0 if s else 1 / masses[t] for t, s in zip(row, sure, strict=True))
        found = inverse / (float(len(row)) * len(row) / count - sum(sure))
        more = [s or found * masses[t] >= 1 for t, s in zip(row, sure, strict=True)]
        if more == sure:
            return found
        sure = more


def masses_of(rows, iterations):
    """pi_t, after some iterations, or until a sum falls by less than 1 in 10,000."""
    masses = {t: 1.0 for row, _ in rows for t in row}  # in the order in which rows name them
    expected = float(len(masses))
    while iterations:
        highest = dict.fromkeys(masses, 0.0)
        for row, count in rows:
            c = scale(row, count, masses)
            highest |= {t: max(highest[t], c) for t in row}
        masses = {t: pi * highest[t] for t, pi in masses.items()}
        before, expected = expected, added(min(pi, 1.0) for pi in masses.values())
        iterations -= 1
        if iterations < 0 and expected >= before * (1 - 1e-4):
            break
    return masses


def smallest(row, count, variates, masses):
    """Positions of the `count` least r_t / pi_t, and the chance of each given the other nodes."""
    arrivals = [variates[t] / masses[t] for t in row]
    chances = {}
    for i in sorted(range(len(row)), key=lambda i: (arrivals[i], i))[:count]:
        others = sorted(a for a, t in zip(arrivals, row, strict=True) if t != row[i])
        left = count - row[:i].count(row[i])  # places that parallel edges before it leave
        sure = left > len(others)
        chances[i] = 1.0 if sure else min(masses[row[i]] * others[left - 1], 1.0)
        if count == len(row):
            chances[i] = 1.0
        elif set(masses.values()) == {1.0} and len(set(row)) == len(row):
            chances[i] = count / len(row)
    return dict(sorted(chances.items()))


def poisson(row, count, variates, masses):
    """Positions with r_t < c_s pi_t, and their chances."""
    c = scale(row, count, masses)
    chances = [1.0 if count == len(row) else min(c * masses[t], 1.0) for t in row]
    return {i: p for i, (t, p) in enumerate(zip(row, chances, strict=True)) if variates[t] < p}


def norms_of(chances, edge_norm):
    """Weights of a row's edges."""
    inverse = [1 / p for p in chances.values()]
    ratio = len(inverse) / added(inverse) if inverse else 0.0
    return [w * ratio if edge_norm == "hajek" else w for w in inverse]


def variate(method, run_key, batch, hop, node_type, node):
    """r_t of a node; with batch_dependency above 1 within 1e-13 or so."""
    step, period = 0 if method.layer_dependency else hop, method.batch_dependency

    def word(of_batch):
        place = oracle.step_key(run_key, of_batch, PROGRAM_HOP, VARIATES)
        key = oracle.step_key(place, 0, step, node_type)
        low, high = itertools.islice(oracle.words(key, node), 2)
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


def draw(relations, fanouts, seeds, method, run_key, batch):
    """Returns [nodes] of each type, and [(neighbour, row, edge, weight)] of each relation."""
    nodes = [list(s) for s in seeds]
    frontier, edges = [list(n) for n in nodes], [[] for _ in relations]
    for hop in range(len(fanouts[0])):
        picked = [[] for _ in relations]
        for source in range(len(nodes)):
            rows, places = [], []
            for r, relation in enumerate(relations):
                k = fanouts[r][hop]
                if relation.source != source or k == 0:
                    continue
                for v in frontier[relation.destination]:
                    entries = relation.rows.get(v, [])
                    count = len(entries) if k < 0 else min(k, len(entries))
                    rows.append(([t for t, _ in entries], count))
                    places.append((r, v, entries))
            masses = masses_of(rows, method.importance)
            numbers = {t: variate(method, run_key, batch, hop, source, t) for t in masses}
            for (row, count), (r, v, entries) in zip(rows, places, strict=True):
                take = smallest if method.sequential else poisson
                chances = take(row, count, numbers, masses)
                norms = norms_of(chances, method.edge_norm)
                for i, norm in zip(chances, norms, strict=True):
                    picked[r].append((entries[i][0], v, entries[i][1], norm))
        found = [[] for _ in nodes]
        for r, relation in enumerate(relations):
            for t, *_ in picked[r]:
                if t not in nodes[relation.source]:
                    nodes[relation.source].append(t)
                    found[relation.source].append(t)
            edges[r] += picked[r]
        frontier = found
    return nodes, edges
