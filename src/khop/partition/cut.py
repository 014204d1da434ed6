"""The cut of a graph in one call: `khop.partition_graph(data, "parts", num_parts=2)`."""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable
from typing import Any

from khop.options import options_of as declared_options
from khop.partition.base import PartitionerBase
from khop.partition.methods.assigned import AssignedPartitioner
from khop.partition.methods.frequency import FrequencyPartitioner
from khop.partition.methods.metis import ClusterMetisPartitioner, MetisPartitioner
from khop.partition.methods.random import RandomPartitioner
from khop.partition.methods.seeded import FrequencyGroup, frequency_partitioner
from khop.partition.methods.stream import StreamPartitioner
from khop.partition.methods.structure import StructuralPartitioner
from khop.partition.source import GraphSource, check_masks
from khop.partition.summary import FolderSummary
from khop.plugins import Registry, subclass_of
from khop.storage.folder import PartitionFolder, check_output

_MAX_PARTS = 4096
_ADVICE = (
    "a part is what one machine or GPU samples, and has some 20 files of its own; ask for as many "
    "as you will train with"
)
PARTITIONERS: Registry[type[PartitionerBase]] = Registry(
    "khop.partitioners",
    {
        "assigned": AssignedPartitioner,
        "cluster-metis": ClusterMetisPartitioner,
        "frequency": FrequencyPartitioner,
        "metis": MetisPartitioner,
        "random": RandomPartitioner,
        "stream": StreamPartitioner,
    },
    subclass_of(PartitionerBase),
    "method",
)
"""All methods by name. `of_method` computes the probabilities that 'frequency' takes."""
# Options that have a meaning with method 'frequency' alone, and its defaults.
FREQUENCY_OPTIONS: dict[str, Any] = {
    "num_neighbors": (15, 10, 5),
    **{name: option.default for name, option in declared_options(FrequencyGroup).items()},
}


def partition_graph(
    data: Any,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    *,
    method: str | type[PartitionerBase] = "random",
    edge_dir: str = "in",
    **options: Any,
) -> FolderSummary:
    """Cut a graph into a partition folder, and summarise it.

    `khop.partition_graph(...)` is this function; `khop partition` is it on the command line.

    Args:
        data: a PyG `Data` or `HeteroData`, or a `GraphSource`.
        output_dir: the partition folder to write.
        num_parts: number of parts, 1 to 4,096, at most one for each node.
        method: 'random'; 'frequency', by how likely each part's batches touch a node, with options
            `num_neighbors` (default: [15, 10, 5]), `batch_size` (1,024), `seeds`, `cache_ratio`,
            `cache_memory_budget` and `base`, the method that places nodes ('stream', 'metis',
            'cluster-metis'; see `frequency_partition`); 'stream', 'metis' or 'cluster-metis',
            by the edges that are cut, with `balance`, `slack` and more (see `StreamPartitioner`,
            `MetisPartitioner`, `ClusterMetisPartitioner`); 'assigned', with `owners` (see
            `AssignedPartitioner`); or a subclass of `PartitionerBase`, with its own options, as a
            class, by 'package:Class', or by the name that an installed package gives it (group
            `khop.partitioners`).
        edge_dir: neighbours are drawn against the edges ('in', as PyG does) or along them ('out').
        **options: `PartitionOptions`, and those of the method.

    Returns:
        The summary of the folder; notebooks show it as a table. Its `left_out` names attributes
        without a row for each node or edge, which the folder does not hold.

    Raises:
        ValueError, TypeError: options that do not fit the method or the graph.
        PluginError: the method cannot be imported.
        FileExistsError: `output_dir` exists and `overwrite` is False.

    Example:
        >>> import khop
        >>> summary = khop.partition_graph(data, f"{path}/parts", num_parts=2)
        >>> summary.nodes, summary.edge_dir
        ([3, 3], 'in')
    """
    make_partitioner(
        data, output_dir, num_parts, method=method, edge_dir=edge_dir, **options
    ).partition()
    return FolderSummary.of(PartitionFolder(output_dir))


def make_partitioner(
    data: Any,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    *,
    method: Any = "random",
    edge_dir: str = "in",
    **options: Any,
) -> PartitionerBase:
    """Return the partitioner that `partition_graph` runs; takes the same arguments.

    Its `plan()` tells what it would read, write and take.

    Example:
        >>> make_partitioner(data, path / "parts", 2).plan().num_edges
        12
    """
    if edge_dir not in ("in", "out"):
        raise ValueError(f"edge_dir must be 'in' or 'out' (got {edge_dir!r})")
    if not isinstance(output_dir, (str, os.PathLike)):
        raise TypeError(
            f"output_dir must be the path of the folder to write (got {type(output_dir)}): call "
            "khop.partition_graph(data, 'parts', num_parts=2)"
        )
    check_num_parts(num_parts)
    _check_options(method, options)
    check_output(output_dir, bool(options.get("overwrite")))
    source = data if isinstance(data, GraphSource) else GraphSource.from_data(data)
    check_masks(source)
    check_num_parts(num_parts, sum(node.count for node in source.nodes.values()))
    options["edge_dir"] = edge_dir
    return of_method(source, output_dir, num_parts, method, options)


def of_method(
    source: GraphSource,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    method: Any,
    options: dict[str, Any],
) -> PartitionerBase:
    """Return the partitioner of a method, with options that fit it."""
    if method != "frequency":
        return _partitioner(method).from_data(source, output_dir, num_parts, **options)
    chosen = {**FREQUENCY_OPTIONS, **options}
    chosen["num_neighbors"] = _as_list(chosen["num_neighbors"])
    if chosen["base"] is not None:
        chosen["base"] = base_of(chosen["base"])
    return frequency_partitioner(source, output_dir, num_parts, **chosen)


def options_of(method: str) -> set[str]:
    """Return the names of the options that a method has of its own."""
    if method == "frequency":
        return set(FREQUENCY_OPTIONS)
    return _keywords(_partitioner(method)._configure)


def shared_options() -> set[str]:
    """Return the names of the arguments that all methods have."""
    return {*inspect.signature(PartitionerBase.from_data).parameters, "method", "edge_dir"}


def base_of(name: Any) -> type[StructuralPartitioner]:
    """Return the class that places nodes for method 'frequency', given as `base`."""
    partitioner = _partitioner(name, "base")
    if not issubclass(partitioner, StructuralPartitioner):
        raise ValueError(
            "base must be 'stream', 'metis', 'cluster-metis' or another subclass of "
            f"khop.partition.StructuralPartitioner (got {name!r})"
        )
    return partitioner


def _check_options(method: Any, options: dict[str, Any]) -> None:
    """Refuse options that a method does not have."""
    if method == "frequency":
        known = {*FREQUENCY_OPTIONS, *_keywords(PartitionerBase.from_data)}
    else:
        partitioner = _partitioner(method)
        of_its_own = inspect.signature(partitioner._configure).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in of_its_own):
            return  # it checks them itself
        known = _keywords(partitioner.from_data) | _keywords(partitioner._configure)
    for name in options.keys() - known:
        if name in FREQUENCY_OPTIONS:
            raise ValueError(f"{name} needs method='frequency' (got method={method!r})")
        raise TypeError(f"no option {name!r} of method={method!r}: there are {sorted(known)}")


def _keywords(function: Callable[..., Any]) -> set[str]:
    """Return the options of `from_data`, or of a `_configure`, that a caller may name."""
    parameters = inspect.signature(function).parameters.values()
    given = {"self", "data", "output_dir", "num_parts", "edge_dir"}
    return {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - given


def _partitioner(method: Any, argument: str = "method") -> type[PartitionerBase]:
    try:
        return PARTITIONERS.checked(method)
    except TypeError as error:
        raise TypeError(f"{argument} {error}") from None


def check_num_parts(num_parts: int, num_nodes: int | None = None, name: str = "num_parts") -> None:
    """Check a number of parts, if `num_nodes` is given against the number of nodes, too.

    Raises:
        TypeError: it is no integer.
        ValueError: it is not positive, above 4,096, or above the number of nodes.
    """
    try:
        operator.index(num_parts)
    except TypeError:
        raise TypeError(f"{name} must be an integer, 2 for example (got {num_parts!r})") from None
    if num_parts < 1:
        raise ValueError(f"{name} must be at least 1 (got {num_parts})")
    if num_parts > _MAX_PARTS:
        raise ValueError(f"{name} {num_parts} is more than {_MAX_PARTS}: {_ADVICE}")
    if num_nodes is not None and num_parts > max(1, num_nodes):
        raise ValueError(
            f"{name} {num_parts} is more than the graph's {num_nodes} nodes: {_ADVICE}"
        )


def _as_list(num_neighbors: Any) -> Any:
    return list(num_neighbors) if isinstance(num_neighbors, tuple) else num_neighbors
