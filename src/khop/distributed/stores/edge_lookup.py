"""Lookup of edges by the nodes of a sampler's output, for edge attributes in PyG's own loaders.

Runs in trainers and PyG's workers. PyG joins a batch from stores with `filter_custom_store` or
`filter_custom_hetero_store`. Both request rows by *node* ids only. The first sets `index` of every
listed attribute to `out.node`, also of edge attributes. The second requests all attributes whose
group is in `out.node`. So a sampler's edges must be found by its output's nodes:

- homogeneous: edge attributes are listed as `EdgeTensorAttr`. With the nodes of a
  `PartitionSampler`'s output as index, they refer to the edges of that output, which are found by
  the tensor of its nodes. With other nodes they are left out: never rows of the wrong edges.
- heterogeneous: `out.node` is a dictionary of nodes that also has entries for edge types.

The edges are looked up in the output when the batch is joined, so that a `transform_sampler_output`
may change them, on the output or on a copy. One case fails: a new output with the nodes of the old
one and other edges would get the edges of the old one. Give it `out.node.clone()`.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.data import TensorAttr
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.typing import EdgeType, Int64Array

# Kept in tables, not on the tensors, so that batches pickle and copy as any others.
_outputs: Any = WeakTensorKeyDictionary()  # nodes -> weak reference to their output
_stored: Any = WeakTensorKeyDictionary()  # edge ids -> (their StoredEdges, version of the tensor)


class StoredEdges(NamedTuple):
    """Positions of sampled edges in the partition folder.

    Attributes:
        folder: fingerprint of the partition folder.
        type_index: index of their edge type.
        positions: [num_edges] int64 positions among the stored edges of all parts.
    """

    folder: str
    type_index: int
    positions: Int64Array


@dataclass
class EdgeTensorAttr(TensorAttr):  # type: ignore[misc]
    """Edge attribute as `get_all_tensor_attrs` of a homogeneous `DistDataset` lists it.

    PyG sets its `index` to a sampler output's tensor of nodes, by which the edges are found.
    """

    def by_edge_id(self, edge: Any) -> TensorAttr:
        """Return the same attribute with original edge ids as index."""
        return TensorAttr(self.group_name, self.attr_name, edge)


class SampledEdges:
    """Index for edge attributes, where PyG has node ids: [num_edges] original ids of edges."""

    def __init__(self, edge: Tensor) -> None:
        self.edge = edge

    def size(self, dim: int) -> None:
        """Return None: PyG must not take the number of edges for a number of nodes."""
        del dim


class SampledNodes(dict):  # type: ignore[type-arg]
    """Nodes of a sampler's output by node type, and edges by edge type, for PyG's loaders."""

    def __init__(self, node: Mapping[str, Tensor], output: HeteroSamplerOutput) -> None:
        super().__init__(node)
        self._output = weakref.ref(output)

    def _edge(self, edge_type: Any) -> Tensor | None:
        output = self._output()
        edges = None if output is None else output.edge
        return edges.get(edge_type) if edges and isinstance(edge_type, tuple) else None

    def __contains__(self, group: object) -> bool:
        """Return True if there are nodes of a node type, or edges with ids of an edge type."""
        return super().__contains__(group) or self._edge(group) is not None

    def __missing__(self, edge_type: EdgeType) -> SampledEdges:
        edge = self._edge(edge_type)
        if edge is None:
            raise KeyError(edge_type)
        return SampledEdges(edge)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain dictionary. `HeteroPartitionSamplerOutput` restores the class."""
        return dict, (dict(self),)


@dataclass
class PartitionSamplerOutput(SamplerOutput):  # type: ignore[misc]
    """Homogeneous output of a `PartitionSampler`, which finds edges by its tensor of nodes."""

    node: Any

    def __post_init__(self) -> None:
        _outputs[self.node] = weakref.ref(self)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields, and the positions of the edges in the folder."""
        return {**self.__dict__, "": stored_edges(self.edge)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from a pickle, and register the nodes, so that PyG's loader finds the edges."""
        stored = state.pop("")
        self.__dict__.update(state)
        self.node = self.node[:]
        _outputs[self.node] = weakref.ref(self)
        remember(self.edge, stored)


@dataclass
class HeteroPartitionSamplerOutput(HeteroSamplerOutput):  # type: ignore[misc]
    """Heterogeneous output of a `PartitionSampler`. Its `node` also has entries for edge types."""

    node: Any

    def __post_init__(self) -> None:
        self.node = SampledNodes(self.node, self)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields, and the positions of the edges in the folder."""
        stored = {t: stored_edges(edge) for t, edge in (self.edge or {}).items()}
        return {**self.__dict__, "": stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from a pickle, and make `node` find the edges again, for PyG's loader."""
        stored = state.pop("")
        self.__dict__.update(state)
        self.node = SampledNodes(self.node, self)
        for edge_type, edge in (self.edge or {}).items():
            remember(edge, stored[edge_type])


def edges_of_nodes(index: object) -> Tensor | None:
    """Return the original ids of the edges that were sampled with the tensor of nodes `index`.

    None if the tensor is not a sampler's.
    """
    if isinstance(index, SampledEdges):
        return index.edge
    reference = _outputs.get(index) if isinstance(index, Tensor) else None
    output = None if reference is None else reference()
    return None if output is None else output.edge


def remember(edge: Tensor | None, stored: StoredEdges | None) -> None:
    """Record the positions in the folder of sampled edges, which saves a search by their ids."""
    if edge is not None and stored is not None:
        _stored[edge] = (stored, edge._version)


def stored_edges(edge: object) -> StoredEdges | None:
    """Return the recorded positions of sampled edges in the folder, or None if `edge` is new."""
    if not isinstance(edge, Tensor) or edge not in _stored:
        return None
    stored: StoredEdges
    stored, version = _stored[edge]
    return stored if version == edge._version else None
