"""Checks of the seed nodes that users pass to loaders. Runs in trainers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from khop.distributed.graph import PartitionedGraph, seeds_of
from khop.distributed.loaders.split import node_split
from khop.distributed.options import WorkerOptions, check_lists
from khop.typing import Int64Array, NodeType

_WHAT = "input_nodes"


class NodeInput(NamedTuple):
    """Seeds of a loader.

    Attributes:
        node_type: their node type.
        ids: [n] int64 original ids.
        input_id: [n] int64 PyG's `input_id` of each.
        lists: lengths of the seed lists, one for each server of the loader; None if there is one
            list for all.
    """

    node_type: NodeType
    ids: Int64Array
    input_id: Int64Array
    lists: list[int] | None


def node_input(graph: PartitionedGraph, nodes: Any, options: WorkerOptions | None) -> NodeInput:
    """Check a loader's seeds and return them.

    Args:
        graph: the graph.
        nodes: as `DistNeighborLoader` takes them.
        options: the loader's worker options; with a list of servers, `nodes` may be a list of seed
            lists.

    Raises:
        IndexError, KeyError, TypeError, ValueError: seeds do not exist, or are malformed.
    """
    node_type, given = graph.seed_type(nodes, _WHAT)
    if isinstance(given, str):
        splits = graph.meta.node_type(node_type).splits
        if given not in splits:
            raise KeyError(
                f"{_WHAT}={given!r} is no boolean attribute of '{node_type}': there are {splits}. "
                "Paths are not read: pass what torch.load(path) returns"
            )
        ids = node_split(given, graph, node_type=node_type if graph.meta.heterogeneous else None)
        share = ids.numpy()
        return NodeInput(node_type, share, share, None)
    if _is_list_of_lists(given):
        return _of_lists(graph, node_type, given, options)
    return NodeInput(node_type, *seeds_of(graph, given, _WHAT, node_type), None)


def _is_list_of_lists(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and any(
        isinstance(seeds, (list, tuple)) or getattr(seeds, "ndim", 0) > 0 for seeds in given
    )


def _of_lists(
    graph: PartitionedGraph, node_type: NodeType, given: Any, options: WorkerOptions | None
) -> NodeInput:
    """Return seeds given as a list for each server; `input_id` counts through all lists."""
    check_lists(given, options, _WHAT)
    ids = [seeds_of(graph, seeds, f"{_WHAT}[{i}]", node_type)[0] for i, seeds in enumerate(given)]
    every = np.concatenate(ids)
    return NodeInput(node_type, every, np.arange(len(every)), [len(part) for part in ids])
