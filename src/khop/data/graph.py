"""A whole graph in memory, as samplers use it."""

from __future__ import annotations

from collections.abc import Mapping

from khop.data.arrays import check_count
from khop.data.info import GraphInfo
from khop.data.topology import Topology
from khop.typing import EDGE, NODE, EdgeDir, EdgeType, Int64Array, NodeType


class Graph:
    """The adjacency of every edge type, and the number of nodes of every node type.

    Args:
        topology: a `Topology`, or one for each edge type (source, relation, destination).
        mode: memory from which samplers on devices read the graph. With 'CUDA' each sampler copies
            it to its device, and a sampler without a device draws on torch's current GPU. With
            'ZERO_COPY' devices read host memory in place. With 'CPU' the sampler's `DeviceOptions`
            decide. Samplers on the CPU draw the same in all modes.
        num_nodes: number of nodes of each node type. If a type is missing, as many as the
            topologies need.
        node_times: [num_nodes] int64 keys of times (`khop.data.times`), for each node type that has
            times. A seed without a time of its own takes its node's time.
        floating_times: True if all keys of times, also the topologies', come from floating-point
            times.

    Raises:
        ValueError: an unknown mode, or topologies that differ in direction or in a node type's
            size.

    Example:
        >>> graph = Graph(Topology(data.edge_index))
        >>> graph.node_types, graph.edge_types
        (['node'], [('node', 'to', 'node')])
    """

    def __init__(
        self,
        topology: Topology | Mapping[EdgeType, Topology],
        mode: str = "CPU",
        num_nodes: Mapping[NodeType, int] | None = None,
        node_times: Mapping[NodeType, Int64Array] | None = None,
        floating_times: bool = False,
    ) -> None:
        if mode not in ("CPU", "ZERO_COPY", "CUDA"):
            raise ValueError(f"mode must be 'CPU', 'ZERO_COPY' or 'CUDA' (got '{mode}')")
        self.mode = mode
        self.is_heterogeneous = not isinstance(topology, Topology)
        self.topologies: dict[EdgeType, Topology] = (
            {EDGE: topology} if isinstance(topology, Topology) else dict(topology)
        )
        directions = {t.edge_dir for t in self.topologies.values()}
        if len(directions) > 1:
            raise ValueError("all edge types of a graph must have the same edge_dir")
        self.edge_dir: EdgeDir = directions.pop() if directions else "in"
        self.num_nodes = self._count_nodes(
            {t: check_count(n, f"num_nodes of '{t}'") for t, n in (num_nodes or {}).items()}
        )
        self.node_times = dict(node_times or {})
        self.floating_times = floating_times

    @property
    def node_types(self) -> list[NodeType]:
        """Node types, in a fixed order."""
        return list(self.num_nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Edge types, in a fixed order: random draws depend on the index of an edge type."""
        return list(self.topologies)

    @property
    def is_temporal(self) -> bool:
        """True if edges or nodes have times."""
        return any(t.times is not None for t in self.topologies.values()) or bool(self.node_times)

    @property
    def is_weighted(self) -> list[bool]:
        """For each edge type, True if its edges have weights."""
        return [t.weight_sums is not None for t in self.topologies.values()]

    @property
    def info(self) -> GraphInfo:
        """Types, counts, times and weights, for checks of users' input."""
        return GraphInfo(
            self.num_nodes,
            self.edge_types,
            self.is_heterogeneous,
            self.edge_dir,
            list(self.node_times) if self.is_temporal else None,
            self.floating_times,
            self.is_weighted,
        )

    def frontier_type(self, edge_type: EdgeType) -> NodeType:
        """Return the type of the nodes whose neighbours are drawn over an edge type.

        With `edge_dir='in'` these are the destinations, else the sources.
        """
        return edge_type[2] if self.edge_dir == "in" else edge_type[0]

    def neighbor_type(self, edge_type: EdgeType) -> NodeType:
        """Return the type of the nodes that are drawn as neighbours over an edge type.

        With `edge_dir='in'` these are the sources, else the destinations.
        """
        return edge_type[0] if self.edge_dir == "in" else edge_type[2]

    def _count_nodes(self, num_nodes: dict[NodeType, int]) -> dict[NodeType, int]:
        for edge_type, topology in self.topologies.items():
            rows, cols = self.frontier_type(edge_type), self.neighbor_type(edge_type)
            if num_nodes.setdefault(rows, topology.num_rows) != topology.num_rows:
                raise ValueError(
                    f"edge type {edge_type} has rows for {topology.num_rows} nodes of type "
                    f"'{rows}', but there are {num_nodes[rows]}"
                )
            if num_nodes.setdefault(cols, topology.num_neighbors) < topology.num_neighbors:
                raise ValueError(
                    f"edge type {edge_type} names {topology.num_neighbors} nodes of type "
                    f"'{cols}', but there are {num_nodes[cols]}"
                )
        return num_nodes or {NODE: 0}
