"""Graphs with hubs, and walks over them by a kernel."""

import itertools

import numpy as np

from khop import _native
from support.reference import oracle

ONE = 1 << 32


def rows_of(indptr, indices):
    """Return {node: [(neighbour, edge), ...]} of compressed rows."""
    ends = itertools.pairwise(indptr.tolist())
    return {v: [(int(indices[e]), e) for e in range(a, b)] for v, (a, b) in enumerate(ends)}


def star(repeats):
    """Return a graph of two joined hubs, 0 and 1, with edges to nodes 2 to 200.

    Each of these nodes is also joined to the next one.
    """
    pairs = [(hub, v) for hub in (0, 1) for v in range(2, 201)] + [(0, 1)]
    pairs += [(v, v + 1) for v in range(2, 200)]
    both = np.array(pairs + [(b, a) for a, b in pairs] + pairs[: 3 * repeats])
    order = np.argsort(both[:, 0] * 1000 + (both[:, 1] * 37) % 201, kind="stable")
    counts = np.bincount(both[:, 0], minlength=202)  # node 201 has no neighbours
    return np.concatenate([[0], np.cumsum(counts)]), both[order, 1]


def chances_of(p, q):
    """Return the chances, times 2^32, to accept the previous node, its neighbours and others."""
    weights = 1 / p, 1, 1 / q
    return tuple(max(1, round(w / max(weights) * ONE)) for w in weights)


def walked(graph, starts, length, chances=(ONE, ONE, ONE), stops=None, walk=None, **options):
    """Return nodes and edges of walks over one edge type, by a device (`walk`) or the CPU."""
    walk = walk or _native.random_walks
    starts = np.asarray(starts, np.int64)
    nodes = np.empty((len(starts), length + 1), np.int64)
    edges = np.empty((len(starts), length), np.int64)
    stops = stops or [0] * length
    place = oracle.run_key(7, 0, 0), 3, options.pop("first_step", 2)
    walk([graph], [0] * length, stops, chances, *place, starts, nodes, edges, **options)
    return nodes, edges
