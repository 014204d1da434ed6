"""New cut of a graph that a partition folder holds, without the original input.

The graph is read from the folder, in original ids. Edge lists take 8 bytes of memory per edge, or
16 beyond 2^31 nodes. Positions of edges take 4 or 8 bytes more. Attributes stay in the folder's
mapped files, and are copied row by row.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from khop.data import RowStore
from khop.data.arrays import check_pointers, narrowest_int
from khop.data.joined import JoinedFeature, TakenFeature
from khop.log import shown
from khop.partition.base import PartitionerBase
from khop.partition.batches import seeds_of
from khop.partition.cut import PARTITIONERS, make_partitioner, options_of
from khop.partition.methods.frequency import FrequencyPartitioner
from khop.partition.options import CutOptions
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.partition.summary import FolderSummary
from khop.partition.writing.cluster_ids import CLUSTER
from khop.storage.folder import EdgeTypeMeta, FolderMeta, NodeTypeMeta, PartitionFolder, edge_array
from khop.storage.part import Part
from khop.typing import IntArray

if TYPE_CHECKING:
    from typing_extensions import Unpack

# meta.json has the name of the partitioner's class. Only names of khop's own classes are resolved:
# no folder, but this process's user alone, decides on imports.
_METHOD_OF = {method.__name__: name for name, method in PARTITIONERS.builtin.items()}
_METHOD_OF[FrequencyPartitioner.__name__] = "frequency"
_UNKNOWN = object()
_OF_ALL_METHODS = {"seed", "order", "cluster_ids"}


def repartition(
    folder: str | os.PathLike[str] | PartitionFolder,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    *,
    method: str | type[PartitionerBase] | None = None,
    **options: Unpack[CutOptions],
) -> FolderSummary:
    """Cut the graph of a folder again, without its original input.

    Original ids, edge ids, attributes, masks, times, weights and neighbours' ids stay as they are.
    Attributes that are stored in fewer bits keep their bits.
    With the same number of parts, method and options, the new folder equals the folder that
    `partition_graph` makes of the input, byte for byte.

    Args:
        folder: the folder, or its path, with all parts on this machine.
        output_dir: the partition folder to write.
        num_parts: number of parts of the new folder.
        method: as for `partition_graph`. If None, the folder's method with its options and seed.
        **options: as for `partition_graph`. By default, `edge_dir`, `time_attr`, `weight_attr`,
            `neighbor_ids`, `edge_ids` and `order` are as in the folder. If the folder has no
            original ids of edges, `edge_ids=True` keeps the folder's ids.

    Returns:
        The summary of the new folder.

    Raises:
        FolderError: the folder is missing or damaged, or parts are on other machines.
        ValueError: the method that cut the folder cannot be repeated, or options do not fit.

    Example:
        >>> repartition(folder, path / "parts", 3).nodes
        [2, 2, 2]
    """
    make_repartitioner(folder, output_dir, num_parts, method=method, **options).partition()
    return FolderSummary.of(PartitionFolder(output_dir))


def make_repartitioner(
    folder: str | os.PathLike[str] | PartitionFolder,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    *,
    method: str | type[PartitionerBase] | None = None,
    **options: Unpack[CutOptions],
) -> PartitionerBase:
    """Return the partitioner that `repartition` would run with the same arguments.

    `method` names a method, and `options` are its options. Nothing is cut yet. Its `plan()`
    estimates memory, disk and time, and `partition()` cuts.

    Example:
        >>> make_repartitioner(folder, path / "parts", 3).plan().num_edges
        12
    """
    if not isinstance(folder, PartitionFolder):
        folder = PartitionFolder(folder)
    meta = folder.meta
    chosen: dict[str, Any] = {
        "edge_dir": meta.edge_dir,
        "time_attr": None if meta.time_attr is None else meta.time_attr.name,
        "weight_attr": meta.weight_attr,
        "neighbor_ids": bool(meta.edge_types) and all(t.neighbor_ids for t in meta.edge_types),
        "edge_ids": all(t.edge_ids for t in meta.edge_types),
        "order": meta.order,
    }
    name: str | type[PartitionerBase]
    if method is None:
        recorded = recorded_options(meta)
        name = recorded.pop("method")
        chosen |= recorded
    else:
        name = method
    chosen |= options
    remade = chosen.get("cluster_ids") and meta.method.get("cluster_ids")
    source = folder_source(folder, without=(CLUSTER,) if remade else ())
    if method is None and name == "frequency":
        _check_seeds(meta, source, chosen)
    return make_partitioner(source, output_dir, num_parts, method=name, **chosen)


def recorded_options(meta: FolderMeta) -> dict[str, Any]:
    """Return the method that cut a folder, and its options, as arguments of `partition_graph`.

    They are read from meta.json.

    Raises:
        ValueError: the method is not one of khop's, or meta.json lacks some of its options.
    """
    options = dict(meta.method)
    name = options.pop("name", "an unknown partitioner")
    method = _METHOD_OF.get(str(name))
    if method in (None, "assigned") or (method == "frequency" and "batch_size" not in options):
        raise ValueError(
            f"the folder was made by {name} with arguments that it does not hold: name a method "
            "(--method)"
        )
    if method == "frequency":
        options.pop("num_seeds", None)
        if "seed_type" in options:
            options["seeds"] = (options.pop("seed_type"), None)
        if "base" in options:
            options["base"] = _METHOD_OF.get(str(options["base"]), _UNKNOWN)
        if isinstance(options["num_neighbors"], dict):
            names = {" ".join(t.name): t.name for t in meta.edge_types}
            hops = options["num_neighbors"].items()
            options["num_neighbors"] = {names.get(key, key): value for key, value in hops}
    unknown = sorted(options.keys() - options_of(method) - _OF_ALL_METHODS)
    unknown += [key for key, value in options.items() if value is _UNKNOWN]
    if unknown:
        raise ValueError(
            f"the folder was made by {name} with {shown(unknown)}, which cannot be repeated: name "
            "a method (--method)"
        )
    return {"method": method, **options}


def _check_seeds(meta: FolderMeta, source: GraphSource, options: dict[str, Any]) -> None:
    """Raise ValueError if the cut of a folder had the user's own seeds, which it does not keep.

    Such a cut cannot be repeated, unless `options` have the seeds.
    """
    known = meta.method.get("num_seeds")
    seeds = options.get("seeds")
    is_named = seeds is not None and not (isinstance(seeds, tuple) and seeds[1] is None)
    if known is None or is_named:
        return
    count = len(seeds_of(source, seeds)[1])
    if count != known:
        raise ValueError(
            f"the folder was made for {known} seeds of the user's own, which it does not hold, not "
            f"for the {count} of its masks: pass seeds=, or name another method"
        )


def folder_source(folder: PartitionFolder, without: tuple[str, ...] = ()) -> GraphSource:
    """Read the graph of a folder. All parts must be on this machine.

    Args:
        folder: the folder.
        without: names of node attributes to leave out.

    Returns:
        The graph that the folder was made of, with original ids and the original order of edges.

    Raises:
        FolderError: a part is missing, or the folder is damaged.

    Example:
        >>> source = folder_source(PartitionFolder(folder))
        >>> source.nodes["node"].count, list(source.nodes["node"].attrs)
        (6, ['x', 'y', 'train_mask'])
    """
    parts = [Part(folder, p) for p in range(folder.num_parts)]
    for node_type in folder.meta.node_types:
        folder.original_ids(node_type.name)  # checks the map
    nodes = {
        t.name: NodeSource(t.count, _attrs(parts, "node", i, folder.id_map(t.name), without))
        for i, t in enumerate(folder.meta.node_types)
    }
    edges = {t.name: _edges(parts, i) for i, t in enumerate(folder.meta.edge_types)}
    return GraphSource(nodes, edges, folder.meta.heterogeneous)


def _attrs(
    parts: list[Part],
    level: Literal["node", "edge"],
    index: int,
    positions: IntArray,
    without: tuple[str, ...] = (),
) -> dict[str, RowStore]:
    meta: NodeTypeMeta | EdgeTypeMeta = parts[0].meta.types(level)[index]
    return {
        name: TakenFeature(
            JoinedFeature([p.feature(level, index, name).as_stored for p in parts]), positions
        )
        for name in meta.attrs
        if name not in without
    }


def _edges(parts: list[Part], index: int) -> EdgeSource:
    folder, meta = parts[0].folder, parts[0].meta
    edge_type = meta.edge_types[index]
    row_type, neighbor_type = meta.row_type(edge_type), meta.neighbor_type(edge_type)
    row_ids, neighbor_ids = (folder.original_ids(t.name) for t in (row_type, neighbor_type))
    positions = np.full(edge_type.count, -1, narrowest_int(edge_type.count))
    rows = np.empty(edge_type.count, row_ids.dtype)
    neighbors = np.empty(edge_type.count, neighbor_ids.dtype)
    with folder.complete(positions, f"list of original ids of edge type {edge_type.name}"):
        for part in parts:
            ids = edge_array(folder, part.part, edge_type.name, "edge_id")
            first = row_type.bounds[part.part]
            indptr, columns = part.rows(index)
            check_pointers(indptr, len(columns), f"part-{part.part}, edge type {edge_type.name}")
            positions[ids] = (
                np.arange(len(ids), dtype=positions.dtype) + edge_type.bounds[part.part]
            )
            rows[ids] = np.repeat(row_ids[first : first + len(indptr) - 1], np.diff(indptr))
            neighbors[ids] = neighbor_ids[columns]
    ends = (neighbors, rows) if meta.edge_dir == "in" else (rows, neighbors)
    return EdgeSource(*ends, _attrs(parts, "edge", index, positions))
