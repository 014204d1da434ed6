"""Streaming assignment of nodes to parts in plain Python, as the kernel's contract describes it."""

from fractions import Fraction
from math import floor, sqrt

ONE = 1 << 20


def rows_of(src, dst, num_nodes):
    """Return {neighbour: number of edges} of each node, in both directions, without loops."""
    rows = [{} for _ in range(num_nodes)]
    for u, v in zip(src, dst, strict=True):
        if u != v:
            rows[u][v] = rows[u].get(v, 0) + 1
            rows[v][u] = rows[v].get(u, 0) + 1
    return rows


def _excess(weights, loads, capacities, part):
    more = 0.0
    for w, load, capacity in zip(weights, loads, capacities, strict=True):
        over = min(w, load[part] + w - capacity[part])
        if over > 0:
            more += over / max(capacity[part], 1)
    return more


def assign_pass(rows, order, weights, capacities, labels, score):
    """Run one pass, which changes `labels` in place. Return the loads of the parts."""
    num_nodes, num_parts, kinds = len(rows), len(capacities[0]), range(len(weights))
    loads = [
        [sum(w[v] for v in range(num_nodes) if labels[v] == p) for p in range(num_parts)]
        for w in weights
    ]
    edges = sum(sum(row.values()) for row in rows) / 2
    factor = 1.5 * sqrt(num_parts) * edges / (num_nodes * sqrt(num_nodes)) / len(weights)

    def score_of(v, p, count, own):
        of_node = [(k, weights[k][v]) for k in kinds if weights[k][v]]
        if any(w > capacities[k][p] - loads[k][p] for k, w in of_node):
            return None
        room = [max(capacities[k][p] - loads[k][p], 0) for k in kinds]
        free = [floor(Fraction(room[k] * ONE, max(capacities[k][p], 1))) for k in kinds]
        least = min([ONE, *(free[k] for k, _ in of_node)])
        if score == "ldg":
            return (count * 1024 + 1) * least
        if score == "cut":
            return count * 4 * ONE + (2 * ONE if p == own else 0) + least
        cost = 0
        for k in kinds:
            total = float(sum(capacities[k]))
            scale = num_nodes / total if total else 0.0
            cost += weights[k][v] * int(factor * sqrt(loads[k][p] * scale) * scale * ONE)
        return count * ONE - cost

    for v in order:
        own = labels[v]
        for k in kinds if own < num_parts else ():
            loads[k][own] -= weights[k][v]
        labels[v] = num_parts
        counts = [sum(n for u, n in rows[v].items() if labels[u] == p) for p in range(num_parts)]
        scores = [score_of(v, p, counts[p], own) for p in range(num_parts)]
        possible = [s for s in scores if s is not None]
        if possible:
            labels[v] = scores.index(max(possible))
        else:
            of_node = [w[v] for w in weights]
            excess = [_excess(of_node, loads, capacities, p) for p in range(num_parts)]
            labels[v] = excess.index(min(excess))
        for k in kinds:
            loads[k][labels[v]] += weights[k][v]
    return loads


def cluster_pass(rows, order, weights, limit, labels):
    """Run one pass of size-constrained label propagation, which changes `labels` in place."""
    for v in order:
        loads = {}
        for u, label in enumerate(labels):
            loads[label] = loads.get(label, 0) + weights[u]
        gains = {}
        for u, n in rows[v].items():
            gains[labels[u]] = gains.get(labels[u], 0) + n
        own = labels[v]
        fits = {c: n for c, n in gains.items() if c == own or loads[c] + weights[v] <= limit}
        most = max([*fits.values(), 0])
        if most > gains.get(own, 0):
            labels[v] = min(c for c, n in fits.items() if n == most)
