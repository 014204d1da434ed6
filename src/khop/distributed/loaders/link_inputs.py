"""Checks of the links that users pass to loaders. Runs in trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from khop.data.arrays import check_range, to_int64
from khop.distributed.graph import PartitionedGraph, check_no_paths
from khop.distributed.options import WorkerOptions, check_lists
from khop.sampler.negative import Candidates
from khop.typing import EDGE, Array, EdgeType, Int64Array

_WHAT = "edge_label_index"


class LinkInput(NamedTuple):
    """Links of a loader.

    Attributes:
        ends: [2, num_links] int64 original ids of sources and destinations.
        lists: lengths of the lists of links, one for each server of the loader; None if there is
            one list for all.
    """

    ends: Int64Array
    lists: list[int] | None


def link_input(
    graph: PartitionedGraph, link_type: EdgeType, links: Any, options: WorkerOptions | None
) -> LinkInput:
    """Check a loader's links and return them.

    Args:
        graph: the graph.
        link_type: their edge type.
        links: as `DistLinkNeighborLoader` takes them. If None, this trainer's share of the edges.
        options: the loader's worker options; with a list of servers, `links` may be a list of lists
            of links.

    Raises:
        IndexError, TypeError, ValueError: as `link_ends`; not one list for each server.
    """
    if links is None:
        return LinkInput(graph.owned_edges(link_type), None)
    if not _is_list_of_lists(links):
        return LinkInput(link_ends(graph, link_type, links), None)
    check_lists(links, options, _WHAT)
    parts = [link_ends(graph, link_type, part, f"{_WHAT}[{i}]") for i, part in enumerate(links)]
    return LinkInput(np.concatenate(parts, axis=1), [part.shape[1] for part in parts])


def _is_list_of_lists(links: Any) -> bool:
    """Return whether these are lists of links; two rows of ends are one list."""
    if not isinstance(links, (list, tuple)) or not len(links):
        return False
    return all(getattr(part, "ndim", 0) == 2 or _is_pair_of_rows(part) for part in links)


def _is_pair_of_rows(part: Any) -> bool:
    is_pair = isinstance(part, (list, tuple)) and len(part) == 2
    return is_pair and all(isinstance(r, (list, tuple)) or getattr(r, "ndim", 0) for r in part)


def joined(values: Any, lists: Sequence[int] | None, what: str) -> Any:
    """Concatenate values that come in as many lists as the links; return others as they are.

    Raises:
        ValueError: the lists have other lengths than those of the links.
    """
    if lists is None or not isinstance(values, (list, tuple)) or not len(values):
        return values
    if not all(isinstance(part, (list, tuple)) or getattr(part, "ndim", 0) for part in values):
        return values
    parts = [torch.as_tensor(part) for part in values]
    if [len(part) for part in parts] != list(lists):
        raise ValueError(
            f"{what} has lists of {[len(part) for part in parts]} entries for lists of "
            f"{list(lists)} links"
        )
    return torch.cat(parts)


def split_links(data: PartitionedGraph, links: Any) -> tuple[EdgeType, Any]:
    """Return the edge type of links, and the links.

    Args:
        data: the dataset.
        links: links; of a heterogeneous graph an edge type, or (edge type, links).

    Raises:
        ValueError: no edge type is named.
    """
    if not data.meta.heterogeneous:
        return EDGE, links
    link_type, given = links, None
    if isinstance(links, (tuple, list)) and len(links) == 2:
        link_type, given = links
    if (
        not isinstance(link_type, (tuple, list))
        or len(link_type) != 3
        or not all(isinstance(name, str) for name in link_type)
    ):
        raise ValueError(
            f"{_WHAT} of a heterogeneous graph must be an edge type or (edge type, links), with "
            f"types such as {[t.name for t in data.meta.edge_types]} (got {links!r})"
        )
    source, relation, destination = link_type
    return (source, relation, destination), given


def link_ends(
    data: PartitionedGraph, link_type: EdgeType, links: Any, what: str = _WHAT
) -> Int64Array:
    """Check links and return their ends.

    Args:
        data: the dataset.
        link_type: their edge type, which need not be one of the folder's.
        links: [2, num_links] original ids of sources and destinations.
        what: name of the argument, for error messages.

    Returns:
        [2, num_links] int64 original ids.

    Raises:
        IndexError: an end does not exist.
        TypeError: ends are not integers.
        ValueError: not two rows of one length, or no such node type.
    """
    check_no_paths(links, what)
    if not isinstance(links, (tuple, list)):
        links = np.empty(0) if links is None else torch.as_tensor(links)
    if getattr(links, "ndim", 2) != 2 or len(links) != 2:
        got = list(links.shape) if hasattr(links, "shape") else f"{len(links)} rows"
        raise ValueError(f"{what} must have shape [2, num_links] (got {got})")
    ends: list[Int64Array] = []
    names = [t.name for t in data.meta.node_types]
    for side, name in zip(links, ("sources", "destinations"), strict=True):
        node_type = link_type[2 * len(ends)]
        if node_type not in names:
            raise ValueError(
                f"links of type {link_type} join nodes of type '{node_type}', but there are {names}"
            )
        ends.append(to_int64(side, f"{what} ({name})"))
        check_range(ends[-1], data.meta.node_type(node_type).count, f"{what} ({name})")
    if len(ends[0]) != len(ends[1]):
        raise ValueError(f"{what} has {len(ends[0])} sources, but {len(ends[1])} destinations")
    return np.stack(ends)


def link_labels(labels: Any, num_links: int, negatives: NegativeSampling | None) -> Tensor | None:
    """Return the labels of links; with negatives, increased by 1 if they begin at 0.

    Negatives have label 0.

    Raises:
        ValueError: another number of labels than links, or labels with triplets.
    """
    if labels is None:
        return None
    if negatives is not None and negatives.is_triplet():
        raise ValueError("edge_label has no meaning with triplets: leave it out")
    labels = torch.as_tensor(labels)
    check_length(labels, num_links, "edge_label")
    if negatives is not None and num_links and labels.min() == 0:
        labels = labels + 1
    checked: Tensor = labels
    return checked


def check_length(values: Tensor, num_links: int, what: str) -> None:
    """Raise ValueError unless there is an entry for each link."""
    if values.dim() == 0 or len(values) != num_links:
        raise ValueError(
            f"{what} must hold an entry for each of {num_links} links (got shape "
            f"{list(values.shape)})"
        )


def negative_weights(
    data: PartitionedGraph, link_type: EdgeType, negatives: NegativeSampling | None
) -> dict[str, Array]:
    """Return the sampling weights of nodes as ends of negatives.

    Args:
        data: the dataset.
        link_type: the edge type of links.
        negatives: PyG's description of negatives.

    Returns:
        'src_weight' and 'dst_weight', if given and used: [num_nodes] float64 each.

    Raises:
        ValueError: weights of another number than nodes, negative, not finite or all zero.
    """
    if negatives is None:
        return {}
    given = {"dst_weight": (link_type[2], negatives.dst_weight)}
    if negatives.is_binary():
        given["src_weight"] = (link_type[0], negatives.src_weight)
    weights = {}
    for side, (node_type, weight) in given.items():
        if weight is not None:
            weights[side] = torch.as_tensor(weight).double().cpu().numpy()
            # Checks the weights here; samplers would fail only when they make a batch.
            Candidates(data.meta.node_type(node_type).count, weights[side], None, side)
    return weights
