"""A graph as the engine sees it, whole or a part. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from khop import _native
from khop.data import Graph, Topology
from khop.storage.part import Part
from khop.typing import Int64Array, NodeType


class GraphView:
    """A graph for the engine: local rows, and the owners of the others.

    Attributes:
        num_nodes: number of nodes of each node type.
        relations: (node type of neighbours, node type whose neighbours are drawn), for each edge
            type.
        csrs: local rows, for each edge type.
        bounds: range bounds of the parts, for each node type.
        edge_bounds: the same of edges, for each edge type.
        part: index of the local part.
        storage: the local part, if the graph is a partition.
        topologies: the rows of each edge type, of a graph in memory.
        node_types: names of the node types.
    """

    def __init__(
        self,
        num_nodes: list[int],
        relations: list[tuple[int, int]],
        csrs: list[_native.Csr],
        bounds: list[list[int]],
        edge_bounds: list[list[int]],
        part: int,
        storage: Part | None = None,
        topologies: Sequence[Topology] = (),
        node_types: Sequence[NodeType] = (),
    ) -> None:
        self.num_nodes = num_nodes
        self.relations = relations
        self.csrs = csrs
        self.bounds = bounds
        self.edge_bounds = edge_bounds
        self.part = part
        self.storage = storage
        self.topologies = topologies
        self.node_types = node_types

    @property
    def is_whole(self) -> bool:
        """True if all rows are local."""
        return all(len(bounds) == 2 for bounds in self.bounds)

    def own_ids(self, node_type: int, original_ids: Int64Array) -> Int64Array:
        """Return the ids that the view gives nodes, given their original ids."""
        if self.storage is None:
            return original_ids
        id_map = self.storage.folder.id_map(self.node_types[node_type])
        return np.ascontiguousarray(id_map[original_ids], np.int64)

    @classmethod
    def of_graph(cls, graph: Graph) -> GraphView:
        """Return the view of a graph in memory."""
        place = {t: i for i, t in enumerate(graph.node_types)}
        counts = list(graph.num_nodes.values())
        return cls(
            counts,
            [
                (place[graph.neighbor_type(t)], place[graph.frontier_type(t)])
                for t in graph.edge_types
            ],
            [topology.csr() for topology in graph.topologies.values()],
            [[0, count] for count in counts],
            [[0, topology.num_edges] for topology in graph.topologies.values()],
            0,
            topologies=list(graph.topologies.values()),
            node_types=graph.node_types,
        )

    @classmethod
    def of_part(cls, part: Part) -> GraphView:
        """Return the view of a partition."""
        return cls(
            [t.count for t in part.meta.node_types],
            part.relations,
            part.csrs,
            [t.bounds for t in part.meta.node_types],
            [t.bounds for t in part.meta.edge_types],
            part.part,
            part,
            node_types=[t.name for t in part.meta.node_types],
        )
