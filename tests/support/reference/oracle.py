"""Brute-force references, written from the contracts in the kernels' headers and PyG's docs.

Nothing here uses khop: its results are compared with these few lines of plain Python.
"""

import numpy as np

_M32, _M64 = 2**32 - 1, 2**64 - 1


def philox(key, c0, c1, c2, c3):
    """Return the random words of Philox4x32-10 (Salmon et al., SC 2011)."""
    k0, k1 = key & _M32, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _M32, (a >> 32) ^ c3 ^ k1, a & _M32
        k0, k1 = (k0 + 0x9E3779B9) & _M32, (k1 + 0xBB67AE85) & _M32
    return c0, c1, c2, c3


def _key(key, low, high, c2, c3):
    words = philox(key, low, high, c2, c3)
    return words[1] << 32 | words[0]


def run_key(seed, epoch, stream):
    """Return the key of one epoch of one trainer."""
    return _key(seed, epoch & _M32, epoch >> 32, stream & _M32, stream >> 32)


def step_key(run, batch, hop, edge_type):
    """Return the key of one hop over one edge type in one batch."""
    return _key(run, batch & _M32, batch >> 32, hop, edge_type)


def labor_key(run, batch, node_type, hop):
    """Return the key of LABOR's random numbers of a type's nodes in a hop."""
    return step_key(step_key(run, batch, 0xFFFFFFFD, node_type), 0, hop, 0)


def words(key, node, tree=0):
    """Yield the 32-bit random words that a node draws in one step."""
    node, block = node & _M64, 0
    while True:
        yield from philox(key, node & _M32, node >> 32, block, tree)
        block += 1


def draws(key, node, degree, tree=0):
    """Generate numbers below each bound sent: of 32-bit words, or of 64-bit words.

    Rows of more than 2^16 neighbours use 64-bit words.
    """
    stream = words(key, node, tree)
    while True:
        bound = yield
        if degree > 2**16:
            word = next(stream) | next(stream) << 32
            yield word * bound >> 64
        else:
            yield next(stream) * bound >> 32


def picks(key, node, degree, fanout, replace, tree=0):
    """Return the positions that a node's row contributes, in order (Floyd's algorithm)."""
    if degree == 0 or fanout == 0:
        return []
    if fanout < 0 or (not replace and fanout >= degree):
        return list(range(degree))
    source = draws(key, node, degree, tree)

    def below(bound):
        next(source)
        return source.send(bound)

    if replace:
        return [below(degree) for _ in range(fanout)]
    chosen = []
    for last in range(degree - fanout, degree):
        t = below(last + 1)
        chosen.append(last if t in chosen else t)
    return chosen


def csr(keys, neighbors, num_rows):
    """Return compressed rows (indptr, indices, position of each entry) by NumPy's stable sort."""
    keys, neighbors = np.asarray(keys), np.asarray(neighbors)
    order = np.argsort(keys, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=num_rows))])
    return indptr.astype(np.int64), neighbors[order], order


def full_neighborhood(edge_index, seeds, num_hops):
    """Return node ids, and (source, destination, edge id) triples of each hop, for fan-outs -1.

    Follows PyG's contract: hop by hop, each node of the frontier in order takes its in-edges in the
    order of the edge list. A new node joins the next frontier.
    """
    src, dst = (list(map(int, side)) for side in edge_index)
    into = {}
    for e, (u, v) in enumerate(zip(src, dst, strict=True)):
        into.setdefault(v, []).append((u, e))
    nodes, known, edges, frontier = list(seeds), set(seeds), [], list(seeds)
    nodes_per_hop, edges_per_hop = [len(seeds)], []
    for _ in range(num_hops):
        found, taken = [], []
        for v in frontier:
            for u, e in into.get(v, []):
                taken.append((u, v, e))
                if u not in known:
                    known.add(u)
                    found.append(u)
        nodes += found
        edges += taken
        nodes_per_hop.append(len(found))
        edges_per_hop.append(len(taken))
        frontier = found
    return nodes, edges, nodes_per_hop, edges_per_hop
