"""Cut of a graph in one call: `khop.partition_graph(data, "parts", num_parts=2)`."""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from khop.options import takes_options
from khop.partition.base import PartitionerBase
from khop.partition.methods.assigned import AssignedPartitioner
from khop.partition.methods.metis import ClusterMetisPartitioner, MetisPartitioner
from khop.partition.methods.random import RandomPartitioner
from khop.partition.methods.seeded import SeededPartitioner
from khop.partition.methods.stream import StreamPartitioner
from khop.partition.methods.structure import StructuralPartitioner
from khop.partition.options import CutOptions, PartitionOptions
from khop.partition.source import GraphSource, check_masks
from khop.partition.summary import FolderSummary
from khop.plugins import Registry, subclass_of
from khop.storage.folder import PartitionFolder, check_output

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from typing_extensions import Unpack

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
        "frequency": SeededPartitioner,
        "metis": MetisPartitioner,
        "random": RandomPartitioner,
        "stream": StreamPartitioner,
    },
    subclass_of(PartitionerBase),
    "method",
)
"""All methods by name."""


@takes_options(PartitionOptions, further=True)
def partition_graph(
    data: Data | HeteroData | GraphSource,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    *,
    method: str | type[PartitionerBase] = "random",
    **options: Unpack[CutOptions],
) -> FolderSummary:
    """Cut a graph into a partition folder, and summarise it.

    `khop.partition_graph` is this function, and `khop partition` its command. Methods:

    - 'random': at random.
    - 'frequency': places nodes where batches most likely use them. Options: see
      `frequency_partition`. `num_neighbors` is [15, 10, 5] by default, and `base` may be a name.
    - 'stream', 'metis' and 'cluster-metis': cut few edges. Options: see `StreamPartitioner`,
      `MetisPartitioner` and `ClusterMetisPartitioner`.
    - 'assigned': takes the parts from option `owners`, see `AssignedPartitioner`.
    - a subclass of `PartitionerBase` with its own options: the class, 'package:Class', or a name
      that an installed package registers (entry points `khop.partitioners`).

    Args:
        data: a PyG `Data` or `HeteroData`, or a `GraphSource`.
        output_dir: the partition folder to write.
        num_parts: number of parts, 1 to 4,096, at most one per node.
        method: one of the methods above.
        **options: options of the method.

    Returns:
        The summary of the folder, which notebooks show as a table. `left_out` names attributes that
        the folder does not hold, as they have no row for each node or edge.

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
    make_partitioner(data, output_dir, num_parts, method=method, **options).partition()
    return FolderSummary.of(PartitionFolder(output_dir))


def make_partitioner(
    data: Data | HeteroData | GraphSource,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    *,
    method: str | type[PartitionerBase] = "random",
    **options: Unpack[CutOptions],
) -> PartitionerBase:
    """Return the partitioner that `partition_graph` would run with the same arguments.

    Nothing is cut yet. Its `plan()` estimates memory, disk and time, and `partition()` cuts.

    Example:
        >>> make_partitioner(data, path / "parts", 2).plan().num_edges
        12
    """
    edge_dir = options.setdefault("edge_dir", "in")
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
    check_num_parts(num_parts, source.num_nodes)
    return of_method(source, output_dir, num_parts, method, options)


def of_method(
    source: GraphSource,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    method: str | type[PartitionerBase],
    options: Mapping[str, Any],
) -> PartitionerBase:
    """Create the partitioner of a partitioning method, after a check of its options.

    Args:
        source: the graph.
        output_dir: the partition folder to write.
        num_parts: number of parts.
        method: name of the method, or a subclass of `PartitionerBase`.
        options: options by name. Each must be an option of the method.
    """
    partitioner = _partitioner(method)
    if partitioner is SeededPartitioner and options.get("base") is not None:
        options = {**options, "base": base_of(options["base"])}
    return partitioner.from_data(source, output_dir, num_parts, **options)


def options_of(method: str | type[PartitionerBase]) -> set[str]:
    """Return the names of the options that a partitioning method has besides the shared ones."""
    return _keywords(_partitioner(method)._configure)


def shared_options() -> set[str]:
    """Return the names of the arguments that all partitioning methods have."""
    return {*inspect.signature(PartitionerBase.from_data).parameters, "method"}


def base_of(name: str | type[PartitionerBase]) -> type[StructuralPartitioner]:
    """Return the partitioner class that option `base` of method 'frequency' names.

    Raises:
        ValueError: the class does not cut by the graph's structure.
    """
    partitioner = _partitioner(name, "base")
    if not issubclass(partitioner, StructuralPartitioner):
        raise ValueError(
            "base must be 'stream', 'metis', 'cluster-metis' or another subclass of "
            f"khop.partition.StructuralPartitioner (got {name!r})"
        )
    return partitioner


def _check_options(method: str | type[PartitionerBase], options: Mapping[str, Any]) -> None:
    """Check that all options are options of the method.

    Raises:
        ValueError: an option needs method 'frequency'.
        TypeError: the method has no such option.
    """
    partitioner = _partitioner(method)
    own = inspect.signature(partitioner._configure).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in own):
        return  # it checks them itself
    known = _keywords(partitioner.from_data) | _keywords(partitioner._configure)
    for name in options.keys() - known:
        if name in options_of("frequency"):
            raise ValueError(f"{name} needs method='frequency' (got method={method!r})")
        raise TypeError(f"no option {name!r} of method={method!r}: there are {sorted(known)}")


def _keywords(function: Callable[..., Any]) -> set[str]:
    """Return the names of a function's parameters, except self, data, output_dir and num_parts."""
    parameters = inspect.signature(function).parameters.values()
    positional = {"self", "data", "output_dir", "num_parts"}
    return {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - positional


def _partitioner(
    method: str | type[PartitionerBase], argument: str = "method"
) -> type[PartitionerBase]:
    try:
        return PARTITIONERS.checked(method)
    except TypeError as error:
        raise TypeError(f"{argument} {error}") from None


def check_num_parts(num_parts: int, num_nodes: int | None = None, name: str = "num_parts") -> None:
    """Check that `num_parts` is in range, and at most the number of nodes if that is not None.

    Raises:
        TypeError: `num_parts` is no integer.
        ValueError: `num_parts` is not positive, above 4,096, or above the number of nodes.
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
