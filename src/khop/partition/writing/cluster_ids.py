"""Clusters of nodes by label propagation, and their ids as a node attribute."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from khop import _native
from khop.data import Feature
from khop.data.arrays import narrowest_int
from khop.partition.source import GraphSource
from khop.partition.writing.undirected import NodeNumbering, Undirected, split_by_type, undirected
from khop.typing import Int32Array, IntArray, NodeType, Progress

CLUSTER = "cluster"
"""Name of the node attribute that holds clusters."""

CLUSTER_NODES = 64
"""Mean number of nodes in a cluster by default. Their rows fill some pages of memory."""

_PASSES = 4


def check_cluster_ids(
    cluster_ids: int | bool, source: GraphSource, partitioner: str, makes_clusters: bool
) -> None:
    """Check a partitioner's option `cluster_ids`: how many clusters attribute 'cluster' will have.

    Args:
        cluster_ids: the option. True takes the clusters that the partitioner itself makes.
        source: the graph.
        partitioner: name of the partitioner, for messages.
        makes_clusters: True if the partitioner makes clusters.

    Raises:
        ValueError: `cluster_ids` is out of range, or True without `makes_clusters`. Or a node type
            has an attribute 'cluster' already.
    """
    if not (cluster_ids is True or 0 <= operator.index(cluster_ids) < 2**31):
        raise ValueError(
            f"cluster_ids must be a number of clusters below 2^31, or True (got {cluster_ids})"
        )
    if cluster_ids is True and not makes_clusters:
        raise ValueError(
            f"{partitioner} makes no clusters of its own: say how many cluster_ids= should keep "
            "(--clusters)"
        )
    for node_type, node in source.nodes.items() if cluster_ids else ():
        if CLUSTER in node.attrs:
            raise ValueError(
                f"nodes of type '{node_type}' have an attribute '{CLUSTER}', where cluster_ids "
                "would keep the clusters: rename it"
            )


def cluster_nodes(
    graph: Undirected, weights: Int32Array, clusters: int, seed: int, progress: Progress
) -> NodeNumbering:
    """Divide nodes into about `clusters` clusters by label propagation.

    `weights` [num_nodes] int32 are sizes of nodes. No cluster grows beyond twice the mean size.
    Method: Meyerhenke, Sanders and Schulz, SEA 2014.
    """
    dtype = narrowest_int(graph.num_nodes)
    of_node: IntArray = np.arange(graph.num_nodes, dtype=dtype)
    loads = weights.astype(np.int64)
    limit = max(1, int(2 * loads.sum() // clusters))
    turn = _native.ClusterPass(weights, limit, of_node, loads)
    for i in range(_PASSES):
        for rows, order in graph.visits(seed, i, 1):
            turn.visit(rows, order)
        progress("clusters", i + 1, _PASSES)
    del turn, loads
    is_used = np.zeros(graph.num_nodes, bool)
    is_used[of_node] = True
    consecutive = np.cumsum(is_used, dtype=dtype) - 1
    return NodeNumbering(consecutive[of_node], int(np.count_nonzero(is_used)))


def clusters_by_type(
    source: GraphSource, clusters: int, seed: int, progress: Progress
) -> dict[NodeType, IntArray]:
    """Return {node type: [num_nodes] its cluster, of about `clusters`}, by label propagation."""
    graph = undirected(source, progress=progress)
    sizes = np.ones(graph.num_nodes, np.int32)
    return split_by_type(source, cluster_nodes(graph, sizes, clusters, seed, progress).of_node)


def with_clusters(source: GraphSource, clusters: Mapping[NodeType, IntArray]) -> GraphSource:
    """Return a copy of `source`, a graph, whose nodes have clusters as an attribute."""
    nodes = {
        node_type: replace(node, attrs={**node.attrs, CLUSTER: Feature(clusters[node_type])})
        for node_type, node in source.nodes.items()
    }
    return replace(source, nodes=nodes)
