"""Links as users hand them over, checked against a folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from khop.data.arrays import check_range, to_int64
from khop.distributed.graph import LoaderGraph
from khop.sampler.negative import Candidates
from khop.typing import EDGE, Array, EdgeType, Int64Array

_WHAT = "edge_label_index"


def split_links(data: LoaderGraph, links: Any) -> tuple[EdgeType, Any]:
    """Edge type of links, and the links: users name the type where there are several.

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


def link_ends(data: LoaderGraph, link_type: EdgeType, links: Any) -> Int64Array:
    """Ends of links.

    Args:
        data: the dataset.
        link_type: their edge type, which need not be one of the folder's.
        links: [2, num_links] original ids of sources and destinations.

    Returns:
        [2, num_links] int64 original ids.

    Raises:
        IndexError: an end that does not exist.
        TypeError: ends that are no integers.
        ValueError: not two rows of one length, or no such node type.
    """
    if not isinstance(links, (tuple, list)):
        links = np.empty(0) if links is None else torch.as_tensor(links)
    if getattr(links, "ndim", 2) != 2 or len(links) != 2:
        got = list(links.shape) if hasattr(links, "shape") else f"{len(links)} rows"
        raise ValueError(f"{_WHAT} must have shape [2, num_links] (got {got})")
    ends: list[Int64Array] = []
    names = [t.name for t in data.meta.node_types]
    for side, name in zip(links, ("sources", "destinations"), strict=True):
        node_type = link_type[2 * len(ends)]
        if node_type not in names:
            raise ValueError(
                f"links of type {link_type} join nodes of type '{node_type}', but there are {names}"
            )
        ends.append(to_int64(side, f"{_WHAT} ({name})"))
        check_range(ends[-1], data.meta.node_type(node_type).count, f"{_WHAT} ({name})")
    if len(ends[0]) != len(ends[1]):
        raise ValueError(f"{_WHAT} has {len(ends[0])} sources, but {len(ends[1])} destinations")
    return np.stack(ends)


def link_labels(labels: Any, num_links: int, negatives: NegativeSampling | None) -> Tensor | None:
    """Labels of links; with negatives they count from 1, as 0 is for these.

    Raises:
        ValueError: labels of another number, or with triplets.
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
    """Raises ValueError unless there is an entry for each link."""
    if values.dim() == 0 or len(values) != num_links:
        raise ValueError(
            f"{what} must hold an entry for each of {num_links} links (got shape "
            f"{list(values.shape)})"
        )


def negative_weights(
    data: LoaderGraph, link_type: EdgeType, negatives: NegativeSampling | None
) -> dict[str, Array]:
    """How likely nodes are drawn as ends of negatives.

    Args:
        data: the dataset.
        link_type: the edge type of links.
        negatives: PyG's description of negatives.

    Returns:
        'src_weight' and 'dst_weight', as far as they are given and have an effect: [num_nodes]
        float64 each.

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
            # Samplers would refuse them, too, but only when batches are due.
            Candidates(data.meta.node_type(node_type).count, weights[side], None, side)
    return weights
