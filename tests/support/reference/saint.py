"""GraphSAINT's draws in plain Python: roots, walks, sources of edges, and the counts of norms."""

from collections import Counter
from types import SimpleNamespace

from support.reference import oracle

PROGRAM_HOP = 0xFFFFFFFC
WALK, ROOTS, EDGES = 16, 17, 18


def key_of(place, purpose, step=0):
    """Return the key of a step of the batch `place`, (run key, batch)."""
    return oracle.step_key(oracle.step_key(*place, PROGRAM_HOP, purpose), 0, step, 0)


def rows_of(neighbors, of, num_nodes):
    """Return the neighbours of each node, in the order of the edge list."""
    rows = [[] for _ in range(num_nodes)]
    for node, neighbor in zip(of.tolist(), neighbors.tolist(), strict=True):
        rows[node].append(neighbor)
    return rows


def below(key, bound, count):
    """Return random numbers below a bound, from the 64-bit words of node 0."""
    stream, found = oracle.words(key, 0), []
    for _ in range(count):
        low, high = next(stream), next(stream)
        found.append((high << 32 | low) * bound >> 64)
    return found


def walked(rows, roots, length, place):
    """Return the nodes of walks, step by step. A walk without a neighbour stays."""
    nodes = [list(roots)]
    for step in range(length):
        key = key_of(place, WALK, step)
        nodes.append(
            [
                rows[v][oracle.picks(key, v, len(rows[v]), 1, True, walk)[0]] if rows[v] else v
                for walk, v in enumerate(nodes[-1])
            ]
        )
    return [v for step in nodes for v in step]


def walks_of(rows, count, length, place):
    """Return the nodes of a batch of walks from uniform roots, ascending."""
    roots = below(key_of(place, ROOTS), len(rows), count)
    return sorted(set(walked(rows, roots, length, place)))


def sources_of(rows, count, place):
    """Return the nodes of a batch: the sources of uniform edges, ascending."""
    sources = [v for v, row in enumerate(rows) for _ in row]
    drawn = below(key_of(place, EDGES), len(sources), count)
    return sorted({sources[e] for e in drawn})


def norms(data, draw, coverage, seed):
    """Return `node_norm` and `edge_norm`, from counts in subgraphs of `draw(place)`."""
    run = oracle.run_key(seed, 2**64 - 1, 0)
    nodes, edges, steps, seen = Counter(), Counter(), 0, 0
    ends = data.edge_index.T.tolist()
    while seen < coverage * data.num_nodes:
        chosen = set(draw((run, steps)))
        nodes.update(chosen)
        edges.update(e for e, (u, v) in enumerate(ends) if u in chosen and v in chosen)
        steps, seen = steps + 1, seen + len(chosen)

    def of_edge(e, v):
        if nodes[v] == 0:
            return 0.1
        return min(nodes[v] / edges[e], 1e4) if edges[e] else 1e4

    return SimpleNamespace(
        node=[steps / (nodes[v] or 0.1) / data.num_nodes for v in range(data.num_nodes)],
        edge=[of_edge(e, v) for e, (_, v) in enumerate(ends)],
    )
