"""Checks of the seeds and links of one trainer's loader.

Runs in trainers. `khop.loader.inputs` checks the forms that in-memory loaders accept, too. Here are
names of boolean attributes, lists for graph servers, and the trainer's share of all edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.sampler import NegativeSampling

from khop.data.arrays import to_int64
from khop.data.info import GraphInfo
from khop.distributed.graph import PartitionedGraph
from khop.distributed.loaders.split import node_split
from khop.distributed.options import WorkerOptions, check_lists
from khop.loader.inputs import (
    check_all_edges,
    checked_links,
    checked_nodes,
    split_links,
    split_nodes,
)
from khop.sampler.drawing.negative import Candidates
from khop.sampler.link_spec import LinkSpec
from khop.sampler.pyg.links import negative_weights
from khop.typing import (
    Array,
    EdgeType,
    Int64Array,
    NodeType,
    TrainerLinks,
    TrainerNodes,
    TrainerValues,
)

_NODES, _LINKS = "input_nodes", "edge_label_index"


def node_input(
    graph: PartitionedGraph, nodes: TrainerNodes, options: WorkerOptions | None, is_whole: bool
) -> tuple[NodeType, Int64Array, Int64Array, list[int] | None]:
    """Check a loader's seeds and return them.

    Args:
        graph: the graph.
        nodes: `input_nodes` of `DistNeighborLoader`.
        options: the loader's worker options. With a list of servers, `nodes` may be a list of seed
            lists.
        is_whole: True if the name of a boolean attribute selects all of its nodes, not this
            trainer's share.

    Returns:
        Node type, original ids, PyG's `input_id` of each seed, and the lengths of the servers' seed
        lists. The lengths are None if there is one list for all.

    Raises:
        IndexError, KeyError, TypeError, ValueError: seeds do not exist, or are malformed.
    """
    info = graph.info
    node_type, seeds = split_nodes(info, nodes)
    if isinstance(seeds, str):
        share = _share_of_split(graph, node_type, seeds, is_whole)
        return node_type, share, share, None
    if isinstance(seeds, (list, tuple)) and any(map(_is_row, seeds)):
        check_lists(seeds, options, _NODES)
        ids = [
            _node_ids(info, node_type, part, f"{_NODES}[{i}]")[0] for i, part in enumerate(seeds)
        ]
        every, lists = np.concatenate(ids), [len(part) for part in ids]
        return node_type, every, np.arange(len(every)), lists
    return node_type, *_node_ids(info, node_type, seeds, _NODES), None


def _share_of_split(
    graph: PartitionedGraph, node_type: NodeType, name: str, is_whole: bool
) -> Int64Array:
    splits = graph.meta.node_type(node_type).splits
    if name not in splits:
        raise KeyError(
            f"{_NODES}={name!r} is no boolean attribute of '{node_type}': there are {splits}. "
            "Paths are not read: pass what torch.load(path) returns"
        )
    if is_whole:
        return np.sort(graph.to_original_ids(graph.split(node_type, name), node_type))
    share = node_split(name, graph, node_type=node_type if graph.meta.heterogeneous else None)
    ids: Int64Array = share.numpy()
    return ids


def _node_ids(
    info: GraphInfo, node_type: NodeType, seeds: Any, name: str
) -> tuple[Int64Array, Int64Array]:
    """Check seeds without a type. Return their ids, and PyG's `input_id` of each."""
    nodes = checked_nodes(info, node_type, seeds, name)
    ids = to_int64(nodes.ids.cpu(), name)
    return ids, np.arange(len(ids)) if nodes.input_id is None else ids


def _is_row(part: Any) -> bool:
    """Return True if an entry of a user's list is itself a list or an array."""
    return isinstance(part, (list, tuple)) or getattr(part, "ndim", 0) > 0


def link_input(
    graph: PartitionedGraph, links: TrainerLinks, options: WorkerOptions | None, is_whole: bool
) -> tuple[EdgeType, Int64Array, list[int] | None]:
    """Check a loader's links and return them.

    Args:
        graph: the graph.
        links: `edge_label_index` of `DistLinkNeighborLoader`. If None, this trainer's share of the
            edges, which may be empty.
        options: the loader's worker options. With a list of servers, `links` may be a list of lists
            of links.
        is_whole: True if `links` must have the links of all trainers.

    Returns:
        Edge type, which need not be one of the folder's. [2, num_links] int64 original ids of
        sources and destinations. Lengths of the servers' lists, or None if there is one for all.

    Raises:
        IndexError, TypeError, ValueError: links do not exist, or are malformed, or there is not one
            list for each server.
    """
    info = graph.info
    link_type, seeds = split_links(info, links)
    if seeds is None and is_whole:
        raise ValueError(
            f"with num_virtual_ranks, pass the links of all trainers ({_LINKS}): a trainer has "
            "only the edges of its own partition"
        )
    if seeds is None:
        check_all_edges(info, link_type)
        return link_type, graph.owned_edges(link_type), None
    if isinstance(seeds, (list, tuple)) and seeds and all(map(_is_list_of_links, seeds)):
        check_lists(seeds, options, _LINKS)
        ends = [_link_ends(info, link_type, part, f"{_LINKS}[{i}]") for i, part in enumerate(seeds)]
        return link_type, np.concatenate(ends, axis=1), [part.shape[1] for part in ends]
    return link_type, _link_ends(info, link_type, seeds, _LINKS), None


def _link_ends(info: GraphInfo, link_type: EdgeType, links: Any, name: str) -> Int64Array:
    ends = checked_links(info, link_type, links, name).cpu()
    return np.ascontiguousarray(ends.numpy(), np.int64)


def _is_list_of_links(part: Any) -> bool:
    """Return True if an entry of a user's list is a list of links [2, n], not a row of ends."""
    if isinstance(part, (list, tuple)):
        return len(part) == 2 and all(map(_is_row, part))
    return getattr(part, "ndim", 0) == 2


def joined(
    values: TrainerValues | None, lists: Sequence[int] | None, name: str
) -> TrainerValues | None:
    """Concatenate one list of values per graph server. Other values are returned unchanged.

    Args:
        values: the user's argument, such as labels.
        lists: number of links of each server. If None, there is one list for all.
        name: name of the argument in error messages.

    Raises:
        ValueError: a list of values is not as long as its list of links.
    """
    if lists is None or not isinstance(values, (list, tuple)) or not values:
        return values
    if not all(map(_is_row, values)):
        return values
    parts = [torch.as_tensor(part) for part in values]
    if [len(part) for part in parts] != list(lists):
        raise ValueError(
            f"{name} has lists of {[len(part) for part in parts]} entries for lists of "
            f"{list(lists)} links"
        )
    return torch.cat(parts)


def checked_weights(
    info: GraphInfo, spec: LinkSpec, negatives: NegativeSampling | None
) -> dict[str, Array]:
    """Check the sampling weights of ends of negative links, and return them by name.

    Raises:
        ValueError: weights are not one per node, are negative, not finite or all zero.
    """
    weights = negative_weights(negatives)
    counts = list(info.node_counts.values())
    for side, node_type in (("dst_weight", spec.dst_type), ("src_weight", spec.src_type)):
        if side in weights:
            # Raises the error here. Samplers would fail only when they make a batch.
            Candidates(counts[node_type], weights[side], None, side)
    return weights
