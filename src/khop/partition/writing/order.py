"""Orders of a part's nodes: which nodes' rows lie together in the files.

Batches do not depend on the order: draws are keyed by original ids, and edges keep their order
within a row. The order of rows decides how many pages and cache lines the rows of a batch touch.
"""

from __future__ import annotations

import numpy as np

from khop.partition.batches import train_mask, typed_rows
from khop.partition.source import GraphSource
from khop.partition.writing.cluster_ids import CLUSTER_NODES, clusters_by_type
from khop.sampler.drawing.hotness import Seeds, independent_prob
from khop.storage.folder import ORDERS
from khop.typing import Array, EdgeDir, NodeType, Progress

FANOUTS = (15, 10, 5)
"""Fan-outs of the batches that order 'hotness' assumes."""


def check_order(order: str) -> None:
    """Raise ValueError if `order` is none of `ORDERS`, the names of orders of rows."""
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(map(repr, ORDERS))} (got {order!r})")


def row_keys(
    source: GraphSource, edge_dir: EdgeDir, order: str, seed: int, progress: Progress
) -> dict[NodeType, Array]:
    """Return {node type: [num_nodes] keys} by which nodes of a part are sorted, ascending.

    - 'hotness': nodes that batches touch most likely come first.
    - 'degree': nodes that are neighbours of most other nodes come first.
    - 'cluster': nodes of a cluster lie together.
    - 'original': there are no keys.
    """
    if order == "cluster":
        clusters = max(1, source.num_nodes // CLUSTER_NODES)
        return {**clusters_by_type(source, clusters, seed, progress)}
    if order == "degree":
        return _degrees(source, edge_dir)
    return _hotness(source, edge_dir) if order == "hotness" else {}


def _degrees(source: GraphSource, edge_dir: EdgeDir) -> dict[NodeType, Array]:
    keys = {t: np.zeros(node.count, np.int64) for t, node in source.nodes.items()}
    for (src, _, dst), edge in source.edges.items():
        drawn, ends = (src, edge.src) if edge_dir == "in" else (dst, edge.dst)
        keys[drawn] -= np.bincount(ends, minlength=len(keys[drawn]))
    return {**keys}


def _hotness(source: GraphSource, edge_dir: EdgeDir) -> dict[NodeType, Array]:
    """Return {node type: [num_nodes] minus the probability that a batch touches a node}."""
    rows = typed_rows(source, edge_dir)
    fanouts = [FANOUTS] * len(rows.csrs)
    masks = [train_mask(node) for node in source.nodes.values()]
    keys = [np.zeros(node.count) for node in source.nodes.values()]
    for i, (node, mask) in enumerate(zip(source.nodes.values(), masks, strict=True)):
        if mask is None and any(of_type is not None for of_type in masks):
            continue  # other types are trained on
        ids = np.arange(node.count) if mask is None else np.flatnonzero(mask)
        # Batch size 1: in larger batches many nodes have probability 1 and cannot be ranked.
        touched = independent_prob(rows, fanouts, Seeds(i, ids, 1))
        keys = [np.minimum(known, -new) for known, new in zip(keys, touched, strict=True)]
    return dict(zip(source.nodes, keys, strict=True))
