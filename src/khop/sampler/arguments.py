"""Checks of users' arguments: seeds of random numbers, and times at which seeds see the graph.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable

from khop.data.info import GraphInfo
from khop.data.times import seed_time_keys
from khop.typing import ArrayLike, Int64Array, NodeType


def check_key_part(name: str, value: object) -> None:
    """Check that a `seed` or `stream` (`name`) is None or an integer from 0 to 2^64 - 1.

    Raises:
        TypeError: not an integer.
        ValueError: an integer outside [0, 2^64).
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer (got {value!r})")
    if not 0 <= value < 2**64:
        raise ValueError(f"{name} must lie in [0, 2^64) (got {value})")


def check_times(name: str, is_given: bool, is_temporal: bool, *, required: bool) -> None:
    """Raise ValueError if seeds have times and the graph none, or if they lack required times.

    Args:
        name: name of the argument with times, 'input_time' or 'edge_label_time'.
        is_given: the argument is not None.
        is_temporal: the graph has times: the loader has a time attribute.
        required: in a graph with times, the argument is required. True for links, which have no
            times of their own.
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


def given_times(info: GraphInfo, times: ArrayLike, count: int, name: str, unit: str) -> Int64Array:
    """Return a user's times as [count] int64 keys, which kernels compare.

    Args:
        info: the graph.
        times: [count] times.
        count: number of seeds or links.
        name: name of the argument.
        unit: 'seeds' or 'links'.

    Raises:
        TypeError, ValueError: malformed times, or another number of times.
    """
    keys = seed_time_keys(times, info.floating_times, name)
    if len(keys) != count:
        raise ValueError(
            f"{name} must hold an entry for each of {count} {unit} (got shape {list(keys.shape)})"
        )
    return keys


def seed_times(
    info: GraphInfo,
    node_type: NodeType,
    count: int,
    times: ArrayLike | None,
    times_of_nodes: Callable[[], Int64Array | None],
) -> Int64Array | None:
    """Return the times of seeds as int64 keys, which kernels compare.

    None in a graph without times.

    Args:
        info: the graph.
        node_type: the seeds' node type.
        count: number of seeds.
        times: [count] times. If None, the nodes' own.
        times_of_nodes: returns the [count] keys of the nodes' times, or None if they have none.

    Raises:
        TypeError, ValueError: times in a graph without times, malformed times, another number of
            times than seeds, or no times for nodes that have none of their own.
    """
    check_times("input_time", times is not None, info.is_temporal, required=False)
    if info.timed is None:
        return None
    if times is not None:
        return given_times(info, times, count, "input_time", "seeds")
    own = times_of_nodes()
    if own is None:
        of = f"nodes of types {list(info.timed)}" if info.timed else "edges"
        raise ValueError(
            f"times are those of {of}, not of nodes of type '{node_type}': pass the time at which "
            "each seed sees the graph ('input_time')"
        )
    return own
