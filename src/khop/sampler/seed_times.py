"""Times at which seeds and links see the graph. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from khop.data.info import GraphInfo
from khop.data.times import seed_time_keys
from khop.typing import ArrayLike, Int64Array, NodeType


def check_times(name: str, is_given: bool, is_temporal: bool, *, required: bool) -> None:
    """Raise ValueError unless times and a time attribute come together.

    Args:
        name: name of the argument with times, 'input_time' or 'edge_label_time'.
        is_given: the argument is given.
        is_temporal: a time attribute is given.
        required: with a time attribute, times are needed: nothing else has them.
    """
    if is_given and not is_temporal:
        there, missing = name, "time_attr"
    elif required and is_temporal and not is_given:
        there, missing = "time_attr", name
    else:
        return
    raise ValueError(
        f"temporal sampling needs both '{name}' and 'time_attr': '{there}' is set, '{missing}' is "
        "not set"
    )


def given_times(info: GraphInfo, given: ArrayLike, count: int, name: str, unit: str) -> Int64Array:
    """Return times that a user gave, as [count] keys that kernels compare.

    Args:
        info: the graph.
        given: [count] times.
        count: number of seeds or links.
        name: name of the argument.
        unit: 'seeds' or 'links'.

    Raises:
        TypeError, ValueError: no times, or not as many.
    """
    keys = seed_time_keys(given, info.floating_times, name)
    if len(keys) != count:
        raise ValueError(
            f"{name} must hold an entry for each of {count} {unit} (got shape {list(keys.shape)})"
        )
    return keys


def seed_times(
    info: GraphInfo,
    node_type: NodeType,
    count: int,
    given: ArrayLike | None,
    times_of_nodes: Callable[[], Int64Array | None],
) -> Int64Array | None:
    """Return keys of the times of seeds. None in a graph without times.

    Args:
        info: the graph.
        node_type: the seeds' node type.
        count: number of seeds.
        given: [count] times. If None, those of the nodes.
        times_of_nodes: returns the [count] keys of the nodes' times, or None if they have none.

    Raises:
        TypeError, ValueError: times in a graph without times, no times, or not as many as seeds. No
            times where the nodes have none.
    """
    check_times("input_time", given is not None, info.is_temporal, required=False)
    if info.timed is None:
        return None
    if given is not None:
        return given_times(info, given, count, "input_time", "seeds")
    own = times_of_nodes()
    if own is None:
        of = f"nodes of types {list(info.timed)}" if info.timed else "edges"
        raise ValueError(
            f"times are those of {of}, not of nodes of type '{node_type}': pass the time at which "
            "each seed sees the graph ('input_time')"
        )
    return own
