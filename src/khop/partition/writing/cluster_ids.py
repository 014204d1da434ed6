"""Clusters of all nodes, and their numbers as a node attribute, for training by clusters."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from khop.data import Feature
from khop.partition.source import GraphSource
from khop.partition.writing.both_directions import undirected
from khop.partition.writing.undirected import cluster_nodes, split_by_type
from khop.typing import IntArray, NodeType

CLUSTER = "cluster"
"""Name of the node attribute that holds clusters."""

CLUSTER_NODES = 64
"""Nodes of a cluster in the mean, if its users name no number: their rows fill some pages."""


def check_cluster_ids(
    cluster_ids: int | bool, source: GraphSource, partitioner: str, makes_clusters: bool
) -> None:
    """Check a partitioner's option `cluster_ids`.

    Args:
        cluster_ids: the number of clusters, 0 for none, True for the partitioner's own.
        source: the graph, whose nodes would have them as an attribute.
        partitioner: the partitioner's name.
        makes_clusters: it makes clusters of its own.

    Raises:
        ValueError: no such number, True for a partitioner without clusters, or a node type that
            has an attribute of that name.
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


def clusters_by_type(
    source: GraphSource, clusters: int, seed: int, progress: Callable[[str, int, int], None]
) -> dict[NodeType, IntArray]:
    """Return {node type: [num_nodes] cluster of each node}, clusters of equal numbers of nodes."""
    graph = undirected(source, progress=progress)
    sizes = np.ones(graph.num_nodes, np.int32)
    return split_by_type(source, cluster_nodes(graph, sizes, clusters, seed, progress).of_node)


def with_clusters(source: GraphSource, clusters: Mapping[NodeType, IntArray]) -> GraphSource:
    """Return a copy of a graph whose nodes have clusters as an attribute."""
    nodes = {}
    for node_type, node in source.nodes.items():
        attrs = {**node.attrs, CLUSTER: Feature(clusters[node_type])}
        nodes[node_type] = replace(node, attrs=attrs)
    return replace(source, nodes=nodes)
