"""Batches of devices, read as those of the CPU are, and a graph with hubs to draw them from."""

import numpy as np

import kernel_cases
from devices import empty, get
from oracle_options import Batch


def read(device, subgraph, graph, options):
    """What a device drew, in the form of `kernel_runs.read`."""
    nodes, trees, edges = [], [], []
    for t in range(len(graph.counts)):
        node = empty(device, subgraph.num_nodes(t), np.int64)
        tree = empty(device, subgraph.num_nodes(t), np.int64)
        subgraph.write_nodes(t, node)
        subgraph.write_trees(t, tree)
        device.synchronize()
        nodes.append(get(node).tolist())
        trees.append(get(tree).tolist())
    for r in range(len(graph.relations)):
        count = subgraph.num_edges(r)
        row, col, edge = (empty(device, count, np.int64) for _ in range(3))
        subgraph.write_edge_index(r, row, col)
        names = [None] * count
        if options.records_edges(r):
            subgraph.write_edges(r, edge)
            device.synchronize()
            names = get(edge).tolist()
        device.synchronize()
        edges.append(list(zip(get(row).tolist(), get(col).tolist(), names, strict=True)))
    return Batch(
        nodes,
        trees,
        edges,
        [subgraph.nodes_per_hop(t) for t in range(len(nodes))],
        [subgraph.edges_per_hop(r) for r in range(len(edges))],
    )


def hub_graph(num_nodes=70_010, hub_degree=70_000, weighted=False):
    """Nodes 0 .. 9 have many neighbours, node 0 more than 65,536; the others ten each."""
    rng = np.random.default_rng(5)
    degrees = np.full(num_nodes, 10)
    degrees[:10] = rng.integers(40, 3000, 10)
    degrees[0] = hub_degree
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, num_nodes, indptr[-1]).astype(np.int32)
    relation = kernel_cases.Relation(0, 0, indptr, indices)
    if weighted:
        relation.weights = rng.random(len(indices)).astype(np.float32)
    return kernel_cases.Graph([num_nodes], [0], [num_nodes], [relation])
