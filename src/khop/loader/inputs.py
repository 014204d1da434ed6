"""Checks of users' seeds and links, with their times, labels and ids, for all loaders.

Runs in trainers. These checks need only a `GraphInfo`, so the graph may be in memory, partitioned
or on servers. `khop.distributed.loaders.trainer_inputs` adds what only distributed loaders accept.
"""

from __future__ import annotations

import os
import reprlib
import warnings
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from khop.data.arrays import check_range
from khop.data.info import GraphInfo
from khop.typing import EDGE, NODE, EdgeType, NodeType

_NODES, _LINKS = "input_nodes", "edge_label_index"


class CheckedNodes(NamedTuple):
    """Node ids that have been checked: they exist in the graph.

    Attributes:
        ids: [n] integers.
        input_id: [n] PyG's `input_id` of each node. For a mask, the ids. If None, positions.
    """

    ids: Tensor
    input_id: Tensor | None


def split_nodes(info: GraphInfo, nodes: Any, name: str = _NODES) -> tuple[NodeType, Any]:
    """Split a user's `input_nodes` argument into (node type, seeds).

    `name` is the argument's name in error messages.

    Raises:
        ValueError: the node type is missing or unknown, or is passed for a homogeneous graph.
    """
    if not info.heterogeneous:
        _check_no_type(nodes, name, "node type")
        return NODE, nodes
    node_type, ids = nodes, None
    if isinstance(nodes, (tuple, list)) and len(nodes) == 2:
        node_type, ids = nodes
    if not isinstance(node_type, str) or node_type not in info.node_counts:
        raise ValueError(
            f"{name} of a heterogeneous graph must be a node type, or (node type, seeds), with a "
            f"type of {info.node_types} (got {reprlib.repr(nodes)})"
        )
    return node_type, ids


def checked_nodes(
    info: GraphInfo, node_type: NodeType, nodes: Any, name: str = _NODES
) -> CheckedNodes:
    """Check a user's nodes: [n] ids, a boolean mask over all nodes, or None for all nodes.

    `name` is the argument's name in error messages.

    Raises:
        IndexError, TypeError, ValueError: nodes do not exist, or are malformed.
    """
    count = info.node_counts[node_type]
    if nodes is None:
        return CheckedNodes(torch.arange(count), None)
    ids = as_tensor(nodes, name)
    if ids.dim() != 1:
        raise ValueError(f"{name} must have one dimension (got shape {list(ids.shape)})")
    if ids.dtype == torch.bool:
        if ids.numel() != count:
            raise ValueError(
                f"{name} is a mask of {ids.numel()} entries for {count} nodes: it needs one for "
                "each, or pass ids"
            )
        ids = ids.nonzero().view(-1)
        return CheckedNodes(ids, ids)
    _check_ids(ids, name)
    check_range(ids.cpu().numpy(), count, name)
    return CheckedNodes(ids, None)


def split_links(info: GraphInfo, seed_links: Any, name: str = _LINKS) -> tuple[EdgeType, Any]:
    """Split a user's `edge_label_index` argument into (edge type, links).

    An edge type may be (source type, destination type), which is completed. (None, links) is PyG's
    form for stores without types. `name` is the argument's name in error messages.

    Raises:
        ValueError: the edge type is missing or has unknown node types, or is passed for a
            homogeneous graph.
    """
    is_pair = isinstance(seed_links, (tuple, list)) and len(seed_links) == 2
    if not info.heterogeneous:
        links = seed_links[1] if is_pair and seed_links[0] is None else seed_links
        _check_no_type(links, name, "edge type")
        return EDGE, links
    has_links = is_pair and not isinstance(seed_links[0], str)
    edge_type, links = seed_links if has_links else (seed_links, None)
    is_type = isinstance(edge_type, (tuple, list)) and len(edge_type) in (2, 3)
    if not is_type or not all(isinstance(name, str) for name in edge_type):
        raise ValueError(
            f"{name} of a heterogeneous graph must be an edge type, or (edge type, links); there "
            f"are the types {list(info.edge_types)} (got {reprlib.repr(seed_links)})"
        )
    full = _in_full(info, tuple(edge_type), name)
    for node_type in (full[0], full[2]):
        if node_type not in info.node_counts:
            raise ValueError(
                f"links of type {full} join nodes of type '{node_type}', but there are "
                f"{info.node_types}"
            )
    return full, links


def check_all_edges(info: GraphInfo, edge_type: EdgeType) -> None:
    """Raise ValueError unless the graph has edges of this type, all of which are to be links."""
    if edge_type not in info.edge_types:
        raise ValueError(
            f"{_LINKS} takes all edges of type {edge_type}, but there are the types "
            f"{list(info.edge_types)}"
        )


def checked_links(info: GraphInfo, edge_type: EdgeType, links: Any, name: str = _LINKS) -> Tensor:
    """Check a user's links, and return them as an integer tensor [2, n] of node ids.

    `links` must exist as nodes. The graph may have no edges of type `edge_type`. `name` is the
    argument's name in error messages.

    Raises:
        IndexError, TypeError, ValueError: their nodes do not exist, or they are malformed.
    """
    if isinstance(links, (tuple, list)) and len(links) == 2:
        src, dst = (as_tensor(ends, f"a row of {name}") for ends in links)
        if src.dim() != 1 or dst.dim() != 1:
            raise ValueError(
                f"{name} must have shape [2, num_links] (got rows of shapes {list(src.shape)} and "
                f"{list(dst.shape)})"
            )
        if src.shape != dst.shape:
            raise ValueError(f"{name} has {src.numel()} sources, but {dst.numel()} destinations")
        links = torch.stack([src, dst])
    both = as_tensor(links, name)
    if both.dim() != 2 or both.size(0) != 2:
        remedy = ": transpose it" if both.dim() == 2 and both.size(1) == 2 else ""
        raise ValueError(f"{name} must have shape [2, num_links] (got {list(both.shape)}){remedy}")
    if both.numel() == 0:
        both = both.long()
    _check_ids(both, name)
    for side, ends, node_type in zip(
        ("sources", "destinations"), both, (edge_type[0], edge_type[2]), strict=True
    ):
        check_range(ends.cpu().numpy(), info.node_counts[node_type], f"{name} ({side})")
    return both


def checked_labels(
    labels: Any, num_links: int, negatives: NegativeSampling | None
) -> Tensor | None:
    """Return the labels of links as a tensor, or None if there are none.

    Raises:
        TypeError: the labels are not numbers.
        ValueError: there are not `num_links` labels, or negatives are triplets, which have none.
    """
    if labels is not None and negatives is not None and negatives.is_triplet():
        raise ValueError(
            "'edge_label' needs to be undefined for negatives of mode 'triplet', which have no "
            "labels: leave it out"
        )
    return checked_values(labels, num_links, "edge_label", "links")


def checked_times(times: Any, count: int, name: str, unit: str) -> Tensor | None:
    """Return the times of seeds or links as a tensor, checked by `checked_values`.

    A list of floats becomes float64, as in NumPy. Torch's float32 would keep only seven digits.
    """
    is_sequence = isinstance(times, (list, tuple)) and all(isinstance(t, Real) for t in times)
    return checked_values(np.asarray(times) if is_sequence else times, count, name, unit)


def checked_values(values: Any, count: int, name: str, unit: str) -> Tensor | None:
    """Return one value for each seed or link as a tensor, or None if `values` is None.

    `name` is the argument's name and `unit` is 'seeds' or 'links', for error messages.

    Raises:
        TypeError: the values are not numbers.
        ValueError: their number differs from `count`.
    """
    if values is None:
        return None
    scalar = isinstance(values, Real) or getattr(values, "ndim", 1) == 0
    tensor = torch.as_tensor(values) if scalar else as_tensor(values, name)
    if tensor.dim() == 0 or len(tensor) != count:
        raise ValueError(
            f"{name} must hold an entry for each of {count} {unit} (got shape {list(tensor.shape)})"
        )
    return tensor


def as_tensor(values: Any, name: str) -> Tensor:
    """Convert a tensor, an array or an iterable of numbers to a tensor.

    An empty list becomes int64. `name` is the argument's name in error messages.

    Raises:
        TypeError: it holds neither numbers nor booleans, or lists of different lengths.
    """
    if isinstance(values, Tensor):
        return values
    try:
        if isinstance(values, np.ndarray):
            return _over(values)
        listed = values if isinstance(values, (list, tuple)) else list(values)
        tensor: Tensor = torch.as_tensor(listed)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        first = values[0] if isinstance(values, (list, tuple)) and values else values
        remedy = ""
        if isinstance(first, (str, os.PathLike)):
            remedy = (
                ": paths are not read, here or on a server, and names are not looked up: pass "
                "data['name'] or torch.load(path)"
            )
        raise TypeError(
            f"{name} must be a tensor, an array or a sequence of numbers (got "
            f"{reprlib.repr(values)}){remedy}"
        ) from None
    return tensor.long() if tensor.numel() == 0 else tensor


def _over(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor that shares an array's memory, also if this is read-only.

    It is never written.
    """
    native = np.asarray(array, array.dtype.newbyteorder("="))
    if min(native.strides, default=0) < 0:
        native = native.copy()  # torch has no negative strides
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        tensor: Tensor = torch.as_tensor(native)
    return tensor


def _check_ids(values: Tensor, name: str) -> None:
    if values.dtype == torch.bool or values.dtype.is_floating_point or values.dtype.is_complex:
        raise TypeError(
            f"{name} must hold integers (got '{values.dtype}'): pass ids as .long(), a mask as "
            ".bool()"
        )


def _check_no_type(values: Any, name: str, unit: str) -> None:
    """Raise ValueError if a user passes (type, seeds or links) for a homogeneous graph.

    `name` is the argument's name, `unit` says whether it holds seeds or links.
    """
    is_pair = isinstance(values, (tuple, list)) and len(values) == 2
    named, rest = values if is_pair else (None, None)
    if isinstance(named, tuple):
        is_named = bool(named) and all(isinstance(name, str) for name in named)
    else:
        is_named = isinstance(named, str) and not isinstance(rest, str)
    if is_named:
        raise ValueError(
            f"{name} names {unit} {named!r}, but the graph is homogeneous and has no types: pass "
            f"what belongs to it alone (got {reprlib.repr(values)})"
        )


def _in_full(info: GraphInfo, edge_type: tuple[str, ...], name: str) -> EdgeType:
    if len(edge_type) == 3:
        return edge_type[0], edge_type[1], edge_type[2]
    src, dst = edge_type
    known = [t for t in info.edge_types if (t[0], t[2]) == (src, dst)]
    if len(known) > 1:
        raise ValueError(f"{name} has edge type {edge_type}, which could be any of {known}")
    return known[0] if known else (src, "to", dst)
