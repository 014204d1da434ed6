"""Drawn subgraphs as tensors, and in PyG's form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop import _native
from khop.channel.pool import BufferPool
from khop.data import Graph
from khop.sampler.spec import SamplingSpec
from khop.typing import IntArray

_INT64 = np.dtype(np.int64)


class DrawnSubgraph(NamedTuple):
    """A batch's subgraph, an entry for each node type or edge type, in the graph's order.

    Attributes:
        nodes: [num_nodes] ids.
        edge_index: [2, num_edges] numbers of sources and destinations in `nodes`.
        edges: [num_edges] the user's edge ids; None of a type whose edges have none.
        trees: [num_nodes] the tree of each node; None unless the batch is disjoint.
        nodes_per_hop: number of seeds, then of the nodes that each hop added; None where hops
            cannot be told apart.
        edges_per_hop: number of edges that each hop added, likewise.
    """

    nodes: list[Tensor]
    edge_index: list[Tensor]
    edges: list[Tensor | None]
    trees: list[Tensor] | None
    nodes_per_hop: list[list[int]] | None
    edges_per_hop: list[list[int]] | None


class SubgraphWriter:
    """Writes what an engine drew to tensors of their own.

    Args:
        graph: the graph that subgraphs are drawn from.
        spec: how they are drawn.
        backward: neighbours were drawn along the edges: rows and columns are exchanged.
    """

    def __init__(self, graph: Graph, spec: SamplingSpec, backward: bool = False) -> None:
        self._node_types = range(len(graph.node_types))
        self._spec = spec
        self._backward = backward
        self._pool = BufferPool()
        self._has_ids = [spec.records_edge(r) for r in range(len(graph.edge_types))]
        self._edge_ids: list[IntArray | None] = [t.edge_ids for t in graph.topologies.values()]

    def write(self, subgraph: _native.Subgraph) -> DrawnSubgraph:
        """A subgraph that the engine returned."""
        node_types, edge_types = self._node_types, range(len(self._has_ids))
        counts_hops = self._spec.counts_hops
        return DrawnSubgraph(
            [self._nodes_of(subgraph, t) for t in node_types],
            [self._ends_of(subgraph, r) for r in edge_types],
            [self._edges_of(subgraph, r) if self._has_ids[r] else None for r in edge_types],
            [self._trees_of(subgraph, t) for t in node_types] if self._spec.disjoint else None,
            [subgraph.nodes_per_hop(t) for t in node_types] if counts_hops else None,
            [subgraph.edges_per_hop(r) for r in edge_types] if counts_hops else None,
        )

    def _nodes_of(self, subgraph: _native.Subgraph, node_type: int) -> Tensor:
        nodes = self._pool.empty((subgraph.num_nodes(node_type),), _INT64)
        subgraph.write_nodes(node_type, nodes)
        return torch.from_numpy(nodes)

    def _trees_of(self, subgraph: _native.Subgraph, node_type: int) -> Tensor:
        trees = self._pool.empty((subgraph.num_nodes(node_type),), _INT64)
        subgraph.write_trees(node_type, trees)
        return torch.from_numpy(trees)

    def _ends_of(self, subgraph: _native.Subgraph, relation: int) -> Tensor:
        ends = self._pool.empty((2, subgraph.num_edges(relation)), _INT64)
        row, col = ends
        if self._backward:
            row, col = col, row
        subgraph.write_edge_index(relation, row, col)
        return torch.from_numpy(ends)

    def _edges_of(self, subgraph: _native.Subgraph, relation: int) -> Tensor:
        edges = self._pool.empty((subgraph.num_edges(relation),), _INT64)
        subgraph.write_edges(relation, edges)
        names = self._edge_ids[relation]
        if names is not None:
            _native.rename(edges, names)
        return torch.from_numpy(edges)


def to_pyg(
    drawn: DrawnSubgraph, graph: Graph, metadata: tuple[Any, ...]
) -> SamplerOutput | HeteroSamplerOutput:
    """A subgraph in PyG's form; every type of a heterogeneous graph is there.

    Args:
        drawn: the subgraph.
        graph: the graph that it was drawn from.
        metadata: what a loader shall find in the output.
    """
    nodes, _, edges, trees, node_hops, edge_hops = drawn
    # Halves of one tensor, which loaders need not stack again.
    ends = [edge_index.unbind() for edge_index in drawn.edge_index]
    rows, cols = [row for row, _ in ends], [col for _, col in ends]
    if not graph.is_heterogeneous:
        return SamplerOutput(
            nodes[0],
            rows[0],
            cols[0],
            edges[0],
            trees and trees[0],
            node_hops and node_hops[0],
            edge_hops and edge_hops[0],
            metadata=metadata,
        )
    node_types, edge_types = graph.node_types, graph.edge_types
    return HeteroSamplerOutput(
        node=_by_type(node_types, nodes),
        row=_by_type(edge_types, rows),
        col=_by_type(edge_types, cols),
        edge=_by_type(edge_types, edges),
        batch=_by_type(node_types, trees),
        num_sampled_nodes=_by_type(node_types, node_hops),
        num_sampled_edges=_by_type(edge_types, edge_hops),
        metadata=metadata,
    )


def _by_type(types: list[Any], values: list[Any] | None) -> dict[Any, Any] | None:
    return None if values is None else dict(zip(types, values, strict=True))
