"""References of methods that choose nodes: `Hgt`, `RippleWalk` and `SaintNodes`."""

import math
from fractions import Fraction

from support.reference import oracle

PROGRAM_HOP = 0xFFFFFFFC
SOURCES, RACES, SHARES, RESTARTS = 18, 19, 20, 21


def key_of(place, purpose, step=0, index=0):
    """Return the key of a step of the batch `place`, (run key, batch)."""
    return oracle.step_key(oracle.step_key(*place, PROGRAM_HOP, purpose), 0, step, index)


def words_of(key, node, count):
    """Return the first 64-bit random words of a node."""
    stream = oracle.words(key, node)
    return [next(stream) | next(stream) << 32 for _ in range(count)]


def below(key, bound, count):
    """Return random numbers below a bound, from node 0's words, whose high half comes last."""
    return [word * bound >> 64 for word in words_of(key, 0, count)]


def hgt(graph, seeds, samples, place):
    """Return the nodes of each type that `Hgt` draws.

    Args:
        graph: ({node type: number of nodes}, {edge type: its rows, a list for each destination}).
        seeds: (node type, ids).
        samples: {node type: numbers}.
        place: see `key_of`.
    """
    counts, rows = graph
    types = list(counts)
    nodes = {t: list(seeds[1]) if t == seeds[0] else [] for t in types}
    budgets = {t: {} for t in types}
    given = {t: set() for t in types}
    scale = 1 << min(40, 62 - (sum(counts.values()) * max(len(rows), 1)).bit_length())
    for iteration in range(len(next(iter(samples.values())))):
        for (source, _, destination), of_node in rows.items():
            for w in set(nodes[destination]) - given[destination]:
                for v in of_node[w]:
                    share = max(scale // len(of_node[w]), 1)
                    budgets[source][v] = budgets[source].get(v, 0) + share
        given = {t: set(nodes[t]) for t in types}
        for i, t in enumerate(types):
            key, race = key_of(place, RACES, iteration, i), {}
            for v, budget in budgets[t].items():
                if v not in given[t]:
                    uniform = ((words_of(key, v, 1)[0] >> 12) + 0.5) / 2**52
                    race[v] = -math.log(uniform) / float(budget) ** 2
            nodes[t] += sorted(race, key=lambda v: (race[v], v))[: samples[t][iteration]]
    return nodes


def ripple(rows, roots, wanted, ratio, place):
    """Return the nodes of a ripple walk."""
    nodes, step = list(roots), 0
    wanted = min(wanted, len(rows))
    while (left := wanted - len(set(nodes))) > 0:
        border = {u for v in nodes for u in rows[v]} - set(nodes)
        if border:
            key = key_of(place, SHARES, step)
            count = min(left, max(1, math.floor(Fraction(ratio) * len(border))))
            nodes += sorted(border, key=lambda v: (words_of(key, v, 1)[0], v))[:count]
        else:
            trials = (below(key_of(place, RESTARTS, step, t), len(rows), 64) for t in range(999))
            nodes.append(next(v for drawn in trials for v in drawn if v not in nodes))
        step += 1
    return nodes


def sources(rows, roots, count, place):
    """Return the roots, and then the sources of uniform edges."""
    nodes = [v for v, row in enumerate(rows) for _ in row]
    drawn = (
        [nodes[e] for e in sorted(below(key_of(place, SOURCES), len(nodes), count))]
        if nodes
        else []
    )
    return [*roots, *dict.fromkeys(v for v in drawn if v not in roots)]
