"""Batches drawn by the kernels in the sampling engine's three ways, which must be equal."""

import itertools

import numpy as np

from khop import _native
from support.kernels import hop_calls
from support.reference.sampler import Batch


def begin(subgraph, seeds, options):
    """Add seeds and exclusions to a subgraph."""
    subgraph.begin()
    for node_type, *arrays in seeds:
        ids, times = (None if a is None else np.array(a, np.int64) for a in arrays)
        subgraph.add_seeds(node_type, ids, times)
    for relation, pairs in options.excluded.items():
        subgraph.exclude(relation, *pair_arrays(pairs))


def pair_arrays(pairs):
    pairs = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def complete(subgraph, csrs, options):
    """Add reverses or all edges to the drawn ones, as options say. All rows are local."""
    if options.induced:
        subgraph.induce(csrs)
    if options.reversals:
        subgraph.add_reverses(options.reversals, options.keep_edges)


def at_once(subgraph, csrs, seeds, options):
    """Draw a batch by one call for all hops."""
    begin(subgraph, seeds, options)
    hop_calls.sample(
        subgraph,
        csrs,
        options.fanouts,
        options.replace,
        options.weighted,
        options.last,
        options.run,
        options.batch,
        method=options.method,
    )
    complete(subgraph, csrs, options)


def hop_arguments(options, hop, relation, csr):
    """Return fan-out, replace, key, weighted and last of one hop over one edge type."""
    key = options.key(hop, relation, options.sources[relation] if options.sources else 0)
    last = options.last and csr.has_times
    return options.fanouts[relation][hop], options.replace, key, options.weighted[relation], last


def by_hops(subgraph, csrs, seeds, options):
    """Draw a batch by one call for each hop and edge type."""
    begin(subgraph, seeds, options)
    for hop in range(len(options.fanouts[0]) if options.fanouts else 0):
        for relation, csr in enumerate(csrs):
            arguments = hop_arguments(options, hop, relation, csr)
            hop_calls.hop(subgraph, relation, csr, *arguments, **options.method)
        subgraph.end_hop()
    complete(subgraph, csrs, options)


class Owners:
    """Rows divided among owners, each of which draws for its own.

    Args:
        graph: the graph.
        cuts: positions at which each node type is divided.
    """

    def __init__(self, graph, cuts):
        self.num_nodes = graph.num_nodes
        self.pairs = graph.pairs()
        self.bounds, self.csrs = graph.parts(cuts)

    def draw(self, subgraph, seeds, options):
        begin(subgraph, seeds, options)
        with_edges = options.with_edges
        for hop in range(len(options.fanouts[0]) if options.fanouts else 0):
            for relation, (_, destination) in enumerate(self.pairs):

                def sample(csr, ids, excluded, trees, times, relation=relation, hop=hop):
                    fanout, replace, key, *rest = hop_arguments(options, hop, relation, csr)
                    where = (trees, times, excluded)
                    return hop_calls.sample_rows(
                        csr, ids, fanout, replace, key, with_edges, *rest, *where, **options.method
                    )

                rows = subgraph.frontier(destination)
                subgraph.merge(relation, *self._ask(relation, rows, options, sample))
            subgraph.end_hop()
        if options.induced:
            self._induce(subgraph, options)
        if options.reversals:
            subgraph.add_reverses(options.reversals, options.keep_edges)

    def _induce(self, subgraph, options):
        for relation, (source, destination) in enumerate(self.pairs):
            keys = subgraph.keys(source)

            def induce(csr, ids, excluded, trees, times, keys=keys, source=source):
                return _native.induce_rows(
                    csr,
                    ids,
                    keys,
                    self.num_nodes[source],
                    options.with_edges,
                    options.disjoint,
                    trees,
                    times,
                    excluded,
                )

            rows = subgraph.members(destination)
            subgraph.merge_induced(relation, *self._ask(relation, rows, options, induce))

    def _ask(self, relation, rows, options, answer):
        """Return the owner of each row, and each owner's result for its rows."""
        bounds = self.bounds[self.pairs[relation][1]]
        ids, trees, times = rows
        owners, _, places, offsets = _native.split_by_owner(ids, bounds)
        pairs = options.excluded.get(relation)
        replies = []
        for part, (a, b) in enumerate(itertools.pairwise(offsets)):
            share = places[a:b]
            mine = {p for p in pairs or () if bounds[part] <= p[0] < bounds[part + 1]}
            replies.append(
                answer(
                    self.csrs[part][relation],
                    ids[share],
                    pair_arrays(mine) if mine else None,
                    None if trees is None else trees[share],
                    None if times is None else times[share],
                )
            )
        return owners, replies


def read(subgraph, graph, options):
    """Return a drawn batch in the form of the reference."""
    nodes, trees, edges = [], [], []
    for t in range(len(graph.counts)):
        node, tree = np.empty((2, subgraph.num_nodes(t)), np.int64)
        subgraph.write_nodes(t, node)
        subgraph.write_trees(t, tree)
        nodes.append(node.tolist())
        trees.append(tree.tolist())
    for r in range(len(graph.relations)):
        row, col = np.empty((2, subgraph.num_edges(r)), np.int64)
        subgraph.write_edge_index(r, row, col)
        edge = [None] * len(row)
        if options.records_edges(r):
            numbers = np.empty(len(row), np.int64)
            subgraph.write_edges(r, numbers)
            edge = numbers.tolist()
        edges.append(list(zip(row.tolist(), col.tolist(), edge, strict=True)))
    return Batch(
        nodes,
        trees,
        edges,
        [subgraph.nodes_per_hop(t) for t in range(len(nodes))],
        [subgraph.edges_per_hop(r) for r in range(len(edges))],
    )
