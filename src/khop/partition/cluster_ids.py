"""Clusters of all nodes, and their numbers as a node attribute, for training by clusters."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from khop.data import Feature
from khop.partition.both_directions import undirected
from khop.partition.source import GraphSource
from khop.partition.undirected import cluster_nodes, split_by_type
from khop.typing import IntArray, NodeType

CLUSTER = "cluster"
"""Name of the node attribute that holds clusters."""


def check_cluster_ids(cluster_ids: int | bool, partitioner: str, makes_clusters: bool) -> None:
    """Check a partitioner's option `cluster_ids`.

    Args:
        cluster_ids: the number of clusters, 0 for none, True for the partitioner's own.
        partitioner: its name.
        makes_clusters: it makes clusters of its own.

    Raises:
        ValueError: no such number, or True for a partitioner without clusters.
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


def clusters_by_type(
    source: GraphSource, clusters: int, seed: int, progress: Callable[[str, int, int], None]
) -> dict[NodeType, IntArray]:
    """Return {node type: [num_nodes] cluster of each node}, clusters of equal numbers of nodes."""
    graph = undirected(source, progress=progress)
    sizes = np.ones(graph.num_nodes, np.int32)
    return split_by_type(source, cluster_nodes(graph, sizes, clusters, seed, progress).of_node)


def with_clusters(source: GraphSource, clusters: Mapping[NodeType, IntArray]) -> GraphSource:
    """Return a copy of a graph whose nodes have clusters as an attribute.

    Raises:
        ValueError: a node type has an attribute of that name.
    """
    nodes = {}
    for node_type, node in source.nodes.items():
        if CLUSTER in node.attrs:
            raise ValueError(
                f"nodes of type '{node_type}' have an attribute '{CLUSTER}', where cluster_ids "
                "would keep the clusters: rename it"
            )
        attrs = {**node.attrs, CLUSTER: Feature(clusters[node_type])}
        nodes[node_type] = replace(node, attrs=attrs)
    return replace(source, nodes=nodes)
