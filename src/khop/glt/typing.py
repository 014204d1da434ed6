"""GLT's types: names of node and edge types, data of a part, and arguments of loaders."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

NodeType: TypeAlias = str
EdgeType: TypeAlias = tuple[str, str, str]
EDGE_TYPE_STR_SPLIT = "__"

TensorDataType: TypeAlias = Tensor | np.ndarray
NodeLabel: TypeAlias = TensorDataType | Mapping[NodeType, TensorDataType]
NodeIndex: TypeAlias = TensorDataType | Mapping[NodeType, TensorDataType]
EdgeIndexTensor: TypeAlias = Tensor | tuple[Tensor, Tensor]
NumNeighbors: TypeAlias = list[int] | dict[EdgeType, list[int]]
Device: TypeAlias = torch.device | str | int | None


class Split(Enum):
    """Part of a data set's nodes: for training, validation or test."""

    train = "train"
    valid = "valid"
    test = "test"


Seeds: TypeAlias = Tensor | str | Split
InputNodes: TypeAlias = Seeds | list[Seeds] | tuple[NodeType, Seeds | list[Seeds]]
InputEdges: TypeAlias = EdgeIndexTensor | EdgeType | tuple[EdgeType, EdgeIndexTensor | None]


class GraphPartitionData(NamedTuple):
    """Edges of a type in one part, from `load_partition`.

    Attributes:
        edge_index: sources and destinations, [n] int64 each, by original id.
        eids: [n] int64 edge ids.
        weights: [n] weights, or None.
    """

    edge_index: tuple[Tensor, Tensor]
    eids: Tensor
    weights: Tensor | None = None


class FeaturePartitionData(NamedTuple):
    """Feature rows of a type in one part, from `load_partition`.

    Attributes:
        feats: [n, ...] rows that the part owns.
        ids: [n] int64 original ids.
        cache_feats: [m, ...] copies of other parts' rows, hottest first, or None.
        cache_ids: [m] int64 original ids, or None.
    """

    feats: Tensor | None
    ids: Tensor | None
    cache_feats: Tensor | None
    cache_ids: Tensor | None


HeteroGraphPartitionData: TypeAlias = dict[EdgeType, GraphPartitionData]
HeteroFeaturePartitionData: TypeAlias = dict[NodeType | EdgeType, FeaturePartitionData]


def as_str(type: NodeType | EdgeType) -> str:
    """Return a type as one string: edge types joined by '__'.

    Example:
        >>> as_str(("user", "buys", "item"))
        'user__buys__item'
    """
    return type if isinstance(type, str) else EDGE_TYPE_STR_SPLIT.join(type)


def reverse_edge_type(etype: EdgeType) -> EdgeType:
    """Return the reversed edge type. Batches of out-neighbours have edges under this type.

    Example:
        >>> reverse_edge_type(("user", "buys", "item"))
        ('item', 'rev_buys', 'user')
        >>> reverse_edge_type(("item", "rev_buys", "user"))
        ('user', 'buys', 'item')
        >>> reverse_edge_type(("item", "like", "item"))
        ('item', 'like', 'item')
    """
    src, relation, dst = etype
    if src == dst:
        return etype
    bare = relation.removeprefix("rev_")
    return dst, f"rev_{relation}" if bare == relation else bare, src
