"""Neighbours and training seeds of a graph that is not partitioned yet.

Partitioning methods that predict the batches of training use them.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import numpy as np

from khop import _native
from khop.data.arrays import check_range, to_int64
from khop.partition.source import GraphSource, NodeSource
from khop.partition.summary import TRAIN_MASK
from khop.sampler.drawing.hotness import TypedRows
from khop.typing import NODE, Array, ArrayLike, EdgeDir, Int64Array, NodeType


def typed_rows(source: GraphSource, edge_dir: EdgeDir) -> TypedRows:
    """Return the neighbour lists of all nodes, in original ids.

    `edge_dir` 'in' lists in-neighbours, which sampling draws by default, and 'out' lists
    out-neighbours.
    """
    counts = {node_type: node.count for node_type, node in source.nodes.items()}
    index = {node_type: i for i, node_type in enumerate(counts)}
    relations, csrs = [], []
    for (src_type, _, dst_type), edge in source.edges.items():
        neighbors, drawing, (others, keys) = src_type, dst_type, edge.endpoints()
        if edge_dir == "out":
            neighbors, drawing, others, keys = drawing, neighbors, keys, others
        indptr, indices, _ = _native.coo_to_csr(
            keys, others, counts[drawing], counts[neighbors], with_edge_ids=False
        )
        relations.append((index[neighbors], index[drawing]))
        csrs.append(_native.Csr(indptr, indices))
    return TypedRows(list(counts.values()), relations, csrs, list(counts))


SeedNodes: TypeAlias = ArrayLike | tuple[NodeType, ArrayLike | None] | None
"""Ids of seeds, or (node type, ids), or None for the nodes of `train_mask`."""


def seeds_of(source: GraphSource, seeds: SeedNodes) -> tuple[NodeType, Int64Array]:
    """Return the node type of the training seeds, and their sorted distinct ids [num_seeds] int64.

    Args:
        source: the graph.
        seeds: ids, or (node type, ids). If ids are None, the nodes of `train_mask`, or all nodes if
            the type has no mask.

    Raises:
        ValueError: the node type is unknown, or not named for a heterogeneous graph.
    """
    node_type = None if source.heterogeneous else NODE
    if isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str):
        node_type, values = seeds
    else:
        values = cast("ArrayLike | None", seeds)
    if node_type is None:
        if values is not None:
            raise ValueError("seeds of a heterogeneous graph must be (node type, ids)")
        node_type = trained_type(source)
    if node_type not in source.nodes:
        raise ValueError(f"seeds are of node type '{node_type}': there are {list(source.nodes)}")
    node = source.nodes[node_type]
    if values is not None:
        ids = np.unique(to_int64(values, "seeds"))
        check_range(ids, node.count, "seeds")
        return node_type, ids
    mask = train_mask(node)
    return node_type, np.arange(node.count) if mask is None else np.flatnonzero(mask)


def trained_type(source: GraphSource) -> NodeType:
    """Return the only node type with a `train_mask` that selects nodes.

    Raises:
        ValueError: no type has such a mask, or several have.
    """
    trained = [t for t, node in source.nodes.items() if train_mask(node) is not None]
    if len(trained) == 1:
        return trained[0]
    known = f"node types {trained} have" if trained else f"no node type of {list(source.nodes)} has"
    raise ValueError(
        f"{known} a 'train_mask': say which one is trained on (seeds=(node type, None), or "
        "--seed-type)"
    )


def train_mask(node: NodeSource) -> Array | None:
    """Return the [num_nodes] boolean `train_mask` of a node type, or None if it selects no node."""
    mask = node.attrs.get(TRAIN_MASK)
    if mask is None or mask.dtype != "bool" or mask.row_shape != () or not mask.array.any():
        return None
    return mask.array
