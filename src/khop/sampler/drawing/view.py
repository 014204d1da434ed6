"""A graph as the sampling engine sees it: a whole graph, or a part of it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from khop import _native
from khop.data import Graph, Topology
from khop.sampler.drawing.disk_rows import DiskRows
from khop.storage.part import Part
from khop.typing import Int64Array, NodeType

# Kernels have buffers of 10 kB for each part, per hop.
_MOST_PARTS = 256


@dataclass(eq=False)
class GraphView:
    """A graph for the engine: the rows of this process, and the owners of other rows.

    A row is a node with its neighbours. Its owner is the part that has it.

    Attributes:
        num_nodes: number of nodes of each node type.
        relations: (node type of neighbours, node type whose neighbours are drawn), for each edge
            type.
        csrs: rows of the home part, for each edge type.
        bounds: range bounds of the parts, for each node type.
        edge_bounds: range bounds of the parts' edges, for each edge type.
        part: index of the home part.
        others: {index: rows of each edge type} of further parts whose rows are local.
        on_disk: {index: rows of each edge type, None if mapped} of local parts with rows that are
            read past the page cache.
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
    others: Mapping[int, list[_native.Csr]] = field(default_factory=dict)
    on_disk: Mapping[int, list[DiskRows | None]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """True if the home part is the whole graph."""
        return all(len(bounds) == 2 for bounds in self.bounds)

    @property
    def is_local(self) -> bool:
        """True if all rows are local."""
        return all(len(bounds) == 2 + len(self.others) for bounds in self.bounds)

    def parts_of(self, relation: int) -> list[_native.Csr] | None:
        """Return the rows of all parts, if all are local and kernels can read them together."""
        if not self.is_local or self.on_disk or len(self.others) >= _MOST_PARTS:
            return None
        csrs = [self.rows_of(part, relation) for part in range(1 + len(self.others))]
        parts = [csr for csr in csrs if csr is not None]
        return parts if len({csr.widths for csr in parts}) == 1 else None

    def rows_of(self, part: int, relation: int) -> _native.Csr | None:
        """Return a part's rows of an edge type. If they are not local, None."""
        if part == self.part:
            return self.csrs[relation]
        csrs = self.others.get(part)
        return None if csrs is None else csrs[relation]

    def disk_rows_of(self, part: int, relation: int) -> DiskRows | None:
        """Return a part's rows of an edge type that are read past the page cache, or None."""
        rows = self.on_disk.get(part)
        return None if rows is None else rows[relation]

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
        """Return the view of a graph with all rows in this process. Arguments are attributes."""
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
        disk = part.folder.disk
        reads_disk = disk is not None and disk.structure
        local = {part.part: part, **part.others} if reads_disk else {}
        return cls(
            [t.count for t in part.meta.node_types],
            part.relations,
            part.csrs,
            [t.bounds for t in part.meta.node_types],
            [t.bounds for t in part.meta.edge_types],
            part.part,
            part,
            node_types=[t.name for t in part.meta.node_types],
            others={index: other.csrs for index, other in part.others.items()},
            on_disk={index: DiskRows.of_part(some) for index, some in local.items()},
        )
