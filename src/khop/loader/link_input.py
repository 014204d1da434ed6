"""Checks of a user's links, and their form for PyG's `LinkLoader`. Runs in the trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from khop.data.arrays import check_range
from khop.loader.arguments import as_tensor, check_no_type
from khop.loader.collate import stack_endpoints
from khop.sampler.source import GraphInput, open_input
from khop.typing import EDGE, EdgeType

_WHAT = "edge_label_index"


def checked_links(data: Any, edge_label_index: Any) -> tuple[Any, int]:
    """Check links and return them for PyG, and their number.

    Args:
        data: a `Data`, a `HeteroData` or a (feature store, graph store) tuple.
        edge_label_index: [2, num_links] ids, or None for all edges. For a heterogeneous graph: an
            edge type, in full or (source type, destination type), or (edge type, such links).

    Returns:
        `edge_label_index` for PyG's loaders, with links as an integer tensor; the number of links.

    Raises:
        IndexError, TypeError, ValueError: links do not exist, are not integers, or are malformed.
    """
    source = open_input(data)
    if not source.heterogeneous:
        given = edge_label_index
        if isinstance(given, (tuple, list)) and len(given) == 2 and given[0] is None:
            given = given[1]  # PyG's form for stores without types
        check_no_type(given, _WHAT, "edge type")
        ends = _ends(source, EDGE, given)
        return (ends if isinstance(data, Data) else (None, ends)), ends.size(1)
    edge_type, given = _split(source, edge_label_index)
    ends = _ends(source, edge_type, given)
    return (edge_type, ends), ends.size(1)


def check_times(edge_label_time: Any, time_attr: str | None) -> None:
    """Raise ValueError if only one of the two is given."""
    given = {"edge_label_time": edge_label_time is not None, "time_attr": time_attr is not None}
    if len(set(given.values())) == 2:
        there, missing = sorted(given, key=lambda name: not given[name])
        raise ValueError(
            f"temporal sampling needs both 'edge_label_time' and 'time_attr': '{there}' is set, "
            f"'{missing}' is not set"
        )


def _split(source: GraphInput, given: Any) -> tuple[EdgeType, Any]:
    """Split a user's argument into the full edge type and the links."""
    edge_type, links = given, None
    if isinstance(given, (tuple, list)) and len(given) == 2 and not isinstance(given[0], str):
        edge_type, links = given
    is_type = isinstance(edge_type, (tuple, list)) and len(edge_type) in (2, 3)
    if not is_type or not all(isinstance(name, str) for name in edge_type):
        raise ValueError(
            f"{_WHAT} of a heterogeneous graph must be an edge type, or (edge type, links); there "
            f"are the types {list(source.edges)} (got {given!r})"
        )
    full = _in_full(source, tuple(edge_type))
    for node_type in (full[0], full[2]):
        if node_type not in source.num_nodes:
            raise ValueError(
                f"{_WHAT} has edge type {full}, but node types are {list(source.num_nodes)}"
            )
    return full, links


def _in_full(source: GraphInput, edge_type: tuple[str, ...]) -> EdgeType:
    if len(edge_type) == 3:
        return edge_type[0], edge_type[1], edge_type[2]
    src, dst = edge_type
    known = [t for t in source.edges if (t[0], t[2]) == (src, dst)]
    if len(known) > 1:
        raise ValueError(f"{_WHAT} has edge type {edge_type}, which could be any of {known}")
    return known[0] if known else (src, "to", dst)


def _ends(source: GraphInput, edge_type: EdgeType, links: Any) -> Tensor:
    if links is not None:
        return _checked_ends(links, [source.num_nodes[edge_type[i]] for i in (0, 2)])
    if edge_type not in source.edges:
        raise ValueError(
            f"{_WHAT} takes all edges of type {edge_type}, but there are the types "
            f"{list(source.edges)}"
        )
    edges = source.edges[edge_type]
    if edges.num_edges == 0:
        raise ValueError(f"{_WHAT} takes all edges, but there are none: pass links")
    src, dst = (torch.as_tensor(ends) for ends in edges.ends())
    return stack_endpoints(src, dst)  # no copy of an edge_index


def _checked_ends(links: Any, num_nodes: list[int]) -> Tensor:
    if isinstance(links, (tuple, list)) and len(links) == 2:
        src, dst = (as_tensor(ends, f"a row of {_WHAT}") for ends in links)
        if src.shape != dst.shape:
            raise ValueError(f"{_WHAT} has {src.numel()} sources, but {dst.numel()} destinations")
        links = torch.stack([src, dst])
    both = as_tensor(links, _WHAT)
    if both.dim() != 2 or both.size(0) != 2:
        remedy = ": transpose it" if both.dim() == 2 and both.size(1) == 2 else ""
        raise ValueError(f"{_WHAT} must have shape [2, num_links] (got {list(both.shape)}){remedy}")
    if both.numel() == 0:
        both = both.long()
    if both.dtype == torch.bool or both.dtype.is_floating_point or both.dtype.is_complex:
        raise TypeError(f"{_WHAT} must hold integers (got '{both.dtype}')")
    for name, ends, count in zip(("sources", "destinations"), both, num_nodes, strict=True):
        check_range(ends.cpu().numpy(), count, f"{_WHAT} ({name})")
    return both
