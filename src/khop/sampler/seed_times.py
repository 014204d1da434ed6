"""Times at which seeds see the graph."""

from __future__ import annotations

from khop.data import Graph
from khop.data.times import seed_time_keys
from khop.typing import ArrayLike, Int64Array, NodeType


def seed_times(
    graph: Graph, node_type: NodeType, seeds: Int64Array, given: ArrayLike | None
) -> Int64Array | None:
    """Return keys of the times of seeds; None in a graph without times.

    Args:
        graph: the graph.
        node_type: the seeds' node type.
        seeds: [n] ids.
        given: [n] times. If None, those of the nodes.

    Raises:
        ValueError: times in a graph without times, or not as many as seeds; no times where the
            nodes have none.
    """
    if not graph.is_temporal:
        if given is not None:
            raise ValueError(
                "seeds have times ('input_time'), but the graph has none: pass time_attr, too"
            )
        return None
    if given is not None:
        keys = seed_time_keys(given, graph.floating_times, "times of seeds")
        if len(keys) != len(seeds):
            raise ValueError(f"{len(keys)} times for {len(seeds)} seeds")
        return keys
    own = graph.node_times.get(node_type)
    if own is None:
        of = "edges" if not graph.node_times else f"nodes of types {list(graph.node_times)}"
        raise ValueError(
            f"times are those of {of}, not of nodes of type '{node_type}': pass the time at which "
            "each seed sees the graph ('input_time')"
        )
    return own[seeds]
