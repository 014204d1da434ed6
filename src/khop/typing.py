"""Type aliases: node and edge types, fan-outs, arrays. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

NodeType: TypeAlias = str
EdgeType: TypeAlias = tuple[str, str, str]
"""(source node type, relation, destination node type)."""

FeatureKey: TypeAlias = str | tuple[NodeType, str] | tuple[EdgeType, str]
"""Attribute: a name for all types that have it, or (node type or edge type, name)."""

EdgeDir: TypeAlias = Literal["in", "out"]
"""Direction of draws: 'in' follows edges against their direction (PyG's), 'out' along it."""

NumNeighbors: TypeAlias = Sequence[int] | Mapping[EdgeType, Sequence[int]]
"""Fan-out of each hop, for all edge types or by edge type. -1 takes all neighbours."""

EdgeNorm: TypeAlias = Literal["ht", "hajek"]
"""Weights of drawn edges: 'ht' keeps sums of messages unbiased, 'hajek' gives weighted means."""

GraphLayout: TypeAlias = Literal["COO", "CSR", "CSC"]
"""Layout of an edge list: pairs of nodes, or row pointers and neighbours, by source or target."""

WorkerType: TypeAlias = Literal["thread", "process"]
"""Meaning of `num_workers`: threads or processes."""

PadSizes: TypeAlias = int | Sequence[int] | Mapping[Any, int | Sequence[int]]
"""Padded number of nodes or edges: a total, or one per hop, in one type or by type."""

Pad: TypeAlias = Literal["auto"] | Mapping[Literal["nodes", "edges"], PadSizes]
"""Argument `pad` of loaders: bounds that grow with the batches, or sizes."""

Transform: TypeAlias = Callable[[Any], Any]
"""Function that takes PyG's `Data` or `HeteroData` and returns one."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Callback with the name of a step, the amount of work done, and the total amount."""

Array: TypeAlias = npt.NDArray[Any]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Int32Array: TypeAlias = npt.NDArray[np.int32]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
Float64Array: TypeAlias = npt.NDArray[np.float64]

# Aliases are evaluated where options are read, also where torch is not installed.
if TYPE_CHECKING:
    ArrayLike: TypeAlias = Array | Tensor | Sequence[float | Array | Tensor | Sequence[float]]
else:
    ArrayLike = Any
"""A NumPy array, a CPU torch tensor, or a sequence of numbers."""

RowInit: TypeAlias = "str | tuple[str, int] | ArrayLike"
"""First values of a tensor: 'zeros', ('normal', seed), or [num_rows, *shape] by original id."""

Reduce: TypeAlias = Literal["set", "add", "min", "max"]
"""Change of a row: replace it, add to it, or keep the smaller or larger value of each column."""

Numbers: TypeAlias = "Tensor | Array | Sequence[float]"
"""Numbers or booleans, one per node, edge or link: ids, a mask, times, labels, weights."""

SeedNodes: TypeAlias = "Numbers | NodeType | tuple[NodeType, Numbers | None] | None"
"""Seeds: ids, a mask, or None for all nodes. In a heterogeneous graph, a type or (type, seeds)."""

Links: TypeAlias = "Tensor | Array | Sequence[Numbers]"
"""[2, num_links] sources and destinations, also as two rows."""

AnyEdgeType: TypeAlias = EdgeType | tuple[str, str]
"""An edge type in full, or (source node type, destination node type)."""

SeedLinks: TypeAlias = "Links | AnyEdgeType | tuple[AnyEdgeType | None, Links | None] | None"
"""Links, or None for all edges. In a heterogeneous graph, an edge type or (edge type, links)."""

NODE: NodeType = "node"
"""The node type of homogeneous graphs."""

EDGE: EdgeType = (NODE, "to", NODE)
"""The edge type of homogeneous graphs."""

TrainerNodes: TypeAlias = "SeedNodes | Sequence[Numbers] | tuple[NodeType, Sequence[Numbers]]"
"""Seeds of a trainer, the name of a split, or one set of seeds per graph server."""

TrainerLinks: TypeAlias = "SeedLinks | Sequence[Links] | tuple[EdgeType, Sequence[Links]]"
"""Links of a trainer, or one set of links per graph server."""

TrainerValues: TypeAlias = "Numbers | Sequence[Numbers]"
"""Values of links, or one array of values per graph server."""
