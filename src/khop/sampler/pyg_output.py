"""Drawn subgraphs in PyG's form."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop import _native
from khop.channel.pool import BufferPool
from khop.data import Graph
from khop.sampler.spec import SamplingSpec
from khop.typing import Array

_INT64 = np.dtype(np.int64)


class OutputWriter:
    """Writes subgraphs as PyG's `SamplerOutput` and `HeteroSamplerOutput`.

    Args:
        graph: the graph that they are drawn from.
        spec: how they are drawn.
        backward: neighbours were drawn along the edges: rows and columns are exchanged.
    """

    def __init__(self, graph: Graph, spec: SamplingSpec, backward: bool = False) -> None:
        self._graph = graph
        self._spec = spec
        self._backward = backward
        self._pool = BufferPool()

    def write(
        self, subgraph: _native.Subgraph, metadata: tuple[Any, ...]
    ) -> SamplerOutput | HeteroSamplerOutput:
        """A subgraph; every type of a heterogeneous graph is there.

        Args:
            subgraph: as the engine returned it.
            metadata: what the loader shall find in the output.
        """
        node_types, edge_types = self._graph.node_types, self._graph.edge_types
        nodes = [self._nodes_of(subgraph, i) for i in range(len(node_types))]
        edges = [self._edges_of(subgraph, i) for i in range(len(edge_types))]
        num_nodes = num_edges = batch = None
        if self._spec.counts_hops:
            num_nodes = [subgraph.nodes_per_hop(i) for i in range(len(node_types))]
            num_edges = [subgraph.edges_per_hop(i) for i in range(len(edge_types))]
        if self._spec.disjoint:
            batch = [self._trees_of(subgraph, i) for i in range(len(node_types))]
        if not self._graph.is_heterogeneous:
            row, col, edge = edges[0]
            return SamplerOutput(
                nodes[0],
                row,
                col,
                edge,
                batch and batch[0],
                num_nodes and num_nodes[0],
                num_edges and num_edges[0],
                metadata=metadata,
            )
        rows, cols, ids = ([e[i] for e in edges] for i in range(3))
        return HeteroSamplerOutput(
            node=_by_type(node_types, nodes),
            row=_by_type(edge_types, rows),
            col=_by_type(edge_types, cols),
            edge=_by_type(edge_types, ids),
            batch=_by_type(node_types, batch),
            num_sampled_nodes=_by_type(node_types, num_nodes),
            num_sampled_edges=_by_type(edge_types, num_edges),
            metadata=metadata,
        )

    def _nodes_of(self, subgraph: _native.Subgraph, node_type: int) -> Tensor:
        node = self._pool.empty((subgraph.num_nodes(node_type),), _INT64)
        subgraph.write_nodes(node_type, node)
        return torch.from_numpy(node)

    def _trees_of(self, subgraph: _native.Subgraph, node_type: int) -> Tensor:
        tree = self._pool.empty((subgraph.num_nodes(node_type),), _INT64)
        subgraph.write_trees(node_type, tree)
        return torch.from_numpy(tree)

    def _edges_of(
        self, subgraph: _native.Subgraph, relation: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        edge_index = self._pool.empty((2, subgraph.num_edges(relation)), _INT64)
        if self._backward:
            subgraph.write_edge_index(relation, edge_index[1], edge_index[0])
        else:
            subgraph.write_edge_index(relation, edge_index[0], edge_index[1])
        row, col = torch.from_numpy(edge_index)
        recorded = self._spec.records_edge(relation)
        return row, col, self._edge_ids(subgraph, relation) if recorded else None

    def _edge_ids(self, subgraph: _native.Subgraph, relation: int) -> Tensor:
        count = subgraph.num_edges(relation)
        positions: Array = self._pool.empty((count,), _INT64)
        subgraph.write_edges(relation, positions)
        edge_ids = self._graph.topologies[self._graph.edge_types[relation]].edge_ids
        if edge_ids is None:
            return torch.from_numpy(positions)
        named = self._pool.empty((count,), edge_ids.dtype)
        _native.gather(edge_ids, positions, named)
        np.copyto(positions, named)
        return torch.from_numpy(positions)


def _by_type(types: list[Any], values: list[Any] | None) -> dict[Any, Any] | None:
    return None if values is None else dict(zip(types, values, strict=True))
