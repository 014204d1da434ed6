"""A graph as the sampling engine sees it: a whole graph, or a part of it. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from khop import _native
from khop.data import Graph, Topology
from khop.storage.part import Part
from khop.typing import Int64Array, NodeType


@dataclass(eq=False)
class GraphView:
    """A graph for the engine: the rows of this process, and the owners of other rows.

    A row is a node with its neighbours. Its owner is the part that has it.

    Attributes:
        num_nodes: number of nodes of each node type.
        relations: (node type of neighbours, node type whose neighbours are drawn), for each edge
            type.
        csrs: local rows, for each edge type.
        bounds: range bounds of the parts, for each node type.
        edge_bounds: range bounds of the parts' edges, for each edge type.
        part: index of the local part.
        storage: the local part, if the graph is a partition.
        topologies: the rows of each edge type, of a graph in memory.
        node_types: names of the node types.
    """

    num_nodes: list[int]
    relations: list[tuple[int, int]]
    csrs: list[_native.Csr]
    bounds: list[list[int]]
    edge_bounds: list[list[int]]
    part: int
    storage: Part | None = None
    topologies: Sequence[Topology] = ()
    node_types: Sequence[NodeType] = ()

    @property
    def is_whole(self) -> bool:
        """True if all rows are local."""
        return all(len(bounds) == 2 for bounds in self.bounds)

    def own_ids(self, node_type: int, original_ids: Int64Array) -> Int64Array:
        """Convert original node ids to the engine's ids, which differ in a partition."""
        if self.storage is None:
            return original_ids
        id_map = self.storage.folder.id_map(self.node_types[node_type])
        return np.ascontiguousarray(id_map[original_ids], np.int64)

    @classmethod
    def whole(
        cls,
        num_nodes: Sequence[int],
        relations: Sequence[tuple[int, int]],
        csrs: Sequence[_native.Csr],
        node_types: Sequence[NodeType],
        topologies: Sequence[Topology] = (),
    ) -> GraphView:
        """Return the view of a graph with all rows in this process. Arguments: see the class."""
        return cls(
            list(num_nodes),
            list(relations),
            list(csrs),
            [[0, count] for count in num_nodes],
            [[0, csr.num_edges] for csr in csrs],
            0,
            topologies=topologies,
            node_types=node_types,
        )

    @classmethod
    def of_graph(cls, graph: Graph) -> GraphView:
        """Return the view of a graph in memory, whose rows are all local."""
        index = {t: i for i, t in enumerate(graph.node_types)}
        topologies = list(graph.topologies.values())
        return cls.whole(
            list(graph.num_nodes.values()),
            [
                (index[graph.neighbor_type(t)], index[graph.frontier_type(t)])
                for t in graph.edge_types
            ],
            [topology.csr() for topology in topologies],
            graph.node_types,
            topologies,
        )

    @classmethod
    def of_part(cls, part: Part) -> GraphView:
        """Return the view of a partition that this process has loaded."""
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
