"""Batches that devices drew, read in the form of the CPU's, and a graph with hubs."""

import numpy as np

from support.devices import address_of, empty, get
from support.kernels import cases
from support.reference.sampler import Batch


def read(device, subgraph, graph, options):
    """Return what a device drew, in the form of `runs.read`."""
    num_nodes, num_edges, node_hops, edge_hops = subgraph.sizes()
    nodes, trees = ([empty(device, n, np.int64) for n in num_nodes] for _ in range(2))
    ends = [empty(device, (2, n), np.int64) for n in num_edges]
    edges = [empty(device, n, np.int64) for n in num_edges]
    recorded = [options.records_edges(r) for r in range(len(edges))]
    subgraph.write(
        [address_of(n) for n in nodes],
        [address_of(e) for e in ends],
        [address_of(e) if has_ids else 0 for e, has_ids in zip(edges, recorded, strict=True)],
        [address_of(t) for t in trees],
        [],
    )
    device.synchronize()
    named = []
    for end, edge, has_ids in zip(ends, edges, recorded, strict=True):
        row, col = get(end)
        names = get(edge).tolist() if has_ids else [None] * len(row)
        named.append(list(zip(row.tolist(), col.tolist(), names, strict=True)))
    nodes, trees = ([get(array).tolist() for array in of] for of in (nodes, trees))
    return Batch(nodes, trees, named, node_hops, edge_hops)


def hub_graph(num_nodes=70_010, hub_degree=70_000, weighted=False):
    """Return a graph where nodes 0 to 9 have many neighbours, node 0 more than 65,536.

    The other nodes have ten each.
    """
    rng = np.random.default_rng(5)
    degrees = np.full(num_nodes, 10)
    degrees[:10] = rng.integers(40, 3000, 10)
    degrees[0] = hub_degree
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, num_nodes, indptr[-1]).astype(np.int32)
    relation = cases.Relation(0, 0, indptr, indices)
    if weighted:
        relation.weights = rng.random(len(indices)).astype(np.float32)
    return cases.Graph([num_nodes], [0], [num_nodes], [relation])
