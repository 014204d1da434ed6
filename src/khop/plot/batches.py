"""Picture of a batch: its nodes in rings by hop, and the edges that were drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from khop.plot.figures import COLORS, axes_or_new, write_note
from khop.typing import Float64Array, Int64Array, NodeType

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch_geometric.data import Data, HeteroData

_MAX_NODES = 5_000


def batch(batch: Data | HeteroData, axes: Axes | None = None) -> Axes:
    """Draw the nodes of a batch: seeds in the middle, each hop in a ring around them.

    A drawn node is placed near a node of the inner ring that drew it. Node types have colours.

    Args:
        batch: a batch of a loader, with `num_sampled_nodes`.
        axes: axes of matplotlib. If None, a new figure's.

    Raises:
        ValueError: the batch does not count its nodes by hop, or has more than 5,000: draw one with
            fewer seeds.

    Example:
        >>> loader = khop.loader.NeighborLoader(data, [2, 2], batch_size=1)
        >>> axes = batch(next(iter(loader)))
        >>> axes.get_title()
        '1 seeds, hop 1: 2, hop 2: 2'
    """
    axes = axes_or_new(axes)
    hops, first, edges = _content(batch)
    if len(hops) > _MAX_NODES:
        raise ValueError(
            f"the batch has {len(hops):,} nodes, a picture at most {_MAX_NODES:,}: draw one of "
            "fewer seeds, batch_size=4 for example"
        )
    if len(hops) == 0:
        write_note(axes, "the batch is empty")
        return axes
    positions = _positions(hops, edges)
    from matplotlib.collections import LineCollection

    lines = LineCollection(positions[edges.T], colors="0.75", linewidths=0.5, zorder=1)
    axes.add_collection(lines)
    bounds = [*first.values(), len(hops)]
    for index, (node_type, low) in enumerate(first.items()):
        points = positions[low : bounds[index + 1]]
        color = COLORS[index % len(COLORS)]
        axes.scatter(points[:, 0], points[:, 1], s=14, color=color, zorder=2, label=str(node_type))
    seeds = positions[hops == 0]
    axes.scatter(
        seeds[:, 0], seeds[:, 1], s=60, facecolors="none", edgecolors="0.1", zorder=3, label="seeds"
    )
    counts = np.bincount(hops)
    axes.set_title(
        f"{counts[0]:,} seeds" + "".join(f", hop {h}: {n:,}" for h, n in enumerate(counts[1:], 1))
    )
    axes.set_aspect("equal")
    axes.axis("off")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return axes


def _content(batch: Data | HeteroData) -> tuple[Int64Array, dict[NodeType, int], Int64Array]:
    """Return hops and edges of a batch, with nodes numbered type after type.

    Returns:
        The hop of each node, [num_nodes], the index of each type's first node, and [2, n] edges.
    """
    counted = getattr(batch, "num_sampled_nodes", None)
    if isinstance(counted, dict) or hasattr(batch, "num_sampled_nodes_dict"):
        counted = counted if isinstance(counted, dict) else batch.num_sampled_nodes_dict
        edge_index = batch.edge_index_dict
    else:
        edge_index = {("nodes", "to", "nodes"): batch.edge_index}
        counted = None if counted is None else {"nodes": counted}
    if counted is None:
        raise ValueError(
            "the batch does not count its nodes by hop (num_sampled_nodes): take one of a loader "
            "with subgraph_type='directional'"
        )
    hops: list[Int64Array] = []
    first: dict[NodeType, int] = {}
    total = 0
    for node_type, nodes_per_hop in counted.items():
        by_hop = np.asarray(nodes_per_hop, np.int64)
        first[node_type] = total
        hops.append(np.repeat(np.arange(len(by_hop)), by_hop))
        total += int(by_hop.sum())
    edges = [
        np.asarray(ends) + np.array([[first[source]], [first[destination]]])
        for (source, _, destination), ends in edge_index.items()
    ]
    empty = np.empty((2, 0), np.int64)
    return np.concatenate(hops or [empty[0]]), first, np.concatenate([empty, *edges], axis=1)


def _positions(hops: Int64Array, edges: Int64Array) -> Float64Array:
    """Return [num_nodes, 2] coordinates of nodes: hop h lies on a ring of radius h."""
    angle = np.zeros(len(hops))
    for hop in range(int(hops.max()) + 1):
        ring = np.flatnonzero(hops == hop)
        if hop:
            angle[ring] = _angles_of_parents(ring, hops, edges, angle)
        order = ring[np.argsort(angle[ring], kind="stable")]
        angle[order] = np.linspace(0, 2 * np.pi, len(order), endpoint=False)
    # A single seed is the centre, and several form the first ring.
    radius = hops + (0.0 if (hops == 0).sum() == 1 else 0.5)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _angles_of_parents(
    ring: Int64Array, hops: Int64Array, edges: Int64Array, angle: Float64Array
) -> Float64Array:
    """Return, for each node of a ring, the angle of the node of the inner ring that drew it.

    `hops` and `angle` have a node's hop and its angle in radians, known for the inner ring.
    """
    parent = np.full(len(hops), -1, np.int64)
    for child, inner in (edges, edges[::-1]):
        fits = hops[child] == hops[inner] + 1
        parent[child[fits]] = inner[fits]
    return np.where(parent[ring] >= 0, angle[parent[ring]], 2 * np.pi)
