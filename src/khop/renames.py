"""Table of options that have a new spelling, and acceptance of the old spelling.

An old spelling works for one minor version, with a `DeprecationWarning` at the user's line.
`khop.rename` reads the same table to change a user's code. Any process, no torch.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])

_HERE = str(Path(__file__).parent) + "/"


class Renamed(NamedTuple):
    """New name of a keyword option, and new spellings of its values.

    Attributes:
        name: new name of the option.
        values: {old value: new value}. Other values stay as they are.
        every_value: True if all old values have changed. `khop.rename` then changes only arguments
            whose value it can read.
    """

    name: str
    values: Mapping[Any, Any] = {}
    every_value: bool = False


_LOADERS = {
    "random_seed": Renamed("seed"),
    "to_device": Renamed("device"),
    "with_weight": Renamed("weight_attr", {False: None}),
}

_TIMEOUT = {"rpc_timeout": Renamed("timeout")}

_PARTITIONERS = {
    "edge_assign_strategy": Renamed("edge_dir", {"by_dst": "in", "by_src": "out"}, every_value=True)
}

RENAMED: Mapping[str, Mapping[str, Renamed]] = {
    **dict.fromkeys(
        (
            *("DistNeighborLoader", "DistSubGraphLoader", "DistLinkNeighborLoader"),
            "DistClusterLoader",
        ),
        _LOADERS,
    ),
    **dict.fromkeys(
        (
            *("CollocatedDistSamplingWorkerOptions", "RemoteDistSamplingWorkerOptions"),
            *("CooperativeLoader", "layerwise_inference"),
        ),
        _TIMEOUT,
    ),
    "MpDistSamplingWorkerOptions": {**_TIMEOUT, "channel_size": Renamed("buffer_size")},
    **dict.fromkeys(
        (
            *("PartitionerBase", "RandomPartitioner", "AssignedPartitioner", "StreamPartitioner"),
            *("MetisPartitioner", "ClusterMetisPartitioner", "FrequencyPartitioner"),
            *("from_data", "frequency_partition"),
        ),
        _PARTITIONERS,
    ),
}
"""{class or function of khop: {old name of an option: its new spelling}}."""


_REST = (
    *("batch_size", "shuffle", "drop_last", "with_edge", "with_weight", "edge_dir"),
    *("collect_features", "to_device", "random_seed", "worker_options"),
)

_GRAPH = ("output_dir", "num_parts", "num_nodes", "edge_index")
_FEATURES = (
    *("node_feat", "node_feat_dtype", "edge_feat", "edge_feat_dtype", "edge_weights"),
    "edge_assign_strategy",
)
_IGNORED = ("chunk_size", "device")  # only classes of `khop.glt` have these now

POSITIONAL: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "DistNeighborLoader": (3, ("data", "num_neighbors", "input_nodes", *_REST)),
    "DistSubGraphLoader": (3, ("data", "input_nodes", "num_neighbors", *_REST)),
    "DistLinkNeighborLoader": (
        2,
        (
            *("data", "num_neighbors", "batch_size", "edge_label_index", "edge_label"),
            *("neg_sampling", *_REST[1:]),
        ),
    ),
    "DistClusterLoader": (2, ("data", "clusters", "batch_size")),
    **dict.fromkeys(
        (
            *("RandomPartitioner", "AssignedPartitioner", "StreamPartitioner"),
            *("MetisPartitioner", "ClusterMetisPartitioner"),
        ),
        (4, (*_GRAPH, *_FEATURES, *_IGNORED)),
    ),
    "FrequencyPartitioner": (
        5,
        (*_GRAPH, "probs", *_FEATURES, "cache_memory_budget", "cache_ratio", *_IGNORED),
    ),
    "from_data": (3, ("data", "output_dir", "num_parts", "edge_assign_strategy")),
}
"""{class or function: (number of positional arguments, names of all in earlier versions)}."""


def with_new_names(owner: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments by their new names, and warn of old names.

    Args:
        owner: the class or function that was called, a key of `RENAMED`.
        arguments: the keyword arguments.

    Raises:
        TypeError: an option has different values under both names.
    """
    named = dict(arguments)
    for old, renamed in RENAMED.get(owner, {}).items():
        if old not in named:
            continue
        before = value = named.pop(old)
        value = renamed.values.get(value, value) if type(value) in (bool, str) else value
        new = named.setdefault(renamed.name, value)
        if new is not value and new != value and value not in (None, True):
            raise TypeError(f"{owner}: {renamed.name}={new!r} contradicts {old}={before!r}")
        warn_of_old_name(f"{owner}: {old}= is called {renamed.name}= now")
    return named


def accepts_old_names(called: _F) -> _F:
    """Decorate a function or class so that it also accepts old names of keyword arguments."""
    function: Any = vars(called)["__init__"] if isinstance(called, type) else called

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **with_new_names(called.__name__, kwargs))

    if not isinstance(called, type):
        return cast("_F", call)
    setattr(called, "__init__", call)  # noqa: B010 (mypy refuses an assignment)
    return called


def warn_of_old_name(message: str) -> None:
    """Warn of an old spelling, at the line outside khop that uses it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    message = f"{message}: `python -m khop.rename --write` changes your code"
    warnings.warn(message, DeprecationWarning, level)
