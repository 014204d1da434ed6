"""Description of a graph for checks of users' input.

All graphs have such a description: in memory (`khop.data.Graph`), in PyG's stores
(`sampler.pyg.source`), in partitions and on servers (`khop.distributed.graph`). So all loaders
accept and refuse the same input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from khop.typing import EdgeDir, EdgeType, NodeType


@dataclass(frozen=True)
class GraphInfo:
    """Types, counts and direction of a graph, and which of its attributes are times and weights.

    Attributes:
        node_counts: number of nodes of each node type, in the graph's order.
        edge_types: edge types, in the graph's order.
        heterogeneous: True if types have names.
        edge_dir: neighbours are in-neighbours ('in') or out-neighbours ('out').
        timed: node types whose nodes have times, empty if edges have. If None, there are no times.
        floating_times: True if keys of times come from floating-point times.
        weighted: for each edge type, True if its edges have weights.

    Example:
        >>> info = DistDataset().load(folder, partition_idx=0).info
        >>> dict(info.node_counts), info.edge_dir
        ({'node': 6}, 'in')
    """

    node_counts: Mapping[NodeType, int]
    edge_types: Sequence[EdgeType]
    heterogeneous: bool
    edge_dir: EdgeDir = "in"
    timed: Sequence[NodeType] | None = None
    floating_times: bool = False
    weighted: Sequence[bool] = ()

    @property
    def node_types(self) -> list[NodeType]:
        """Node types, in the graph's order."""
        return list(self.node_counts)

    @property
    def is_temporal(self) -> bool:
        """True if nodes or edges have times."""
        return self.timed is not None
