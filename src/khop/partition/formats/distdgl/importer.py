"""A DistDGL folder as the input of a partitioner. Imports no torch.

Edge lists are read into memory (with the cut about 55 bytes an edge). Attributes stay in DistDGL's
files, mapped, and are copied row by row.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from khop.data import Feature, RowStore
from khop.data.arrays import storage_dtype
from khop.data.joined import JoinedFeature, TakenFeature
from khop.errors import FolderError
from khop.partition.cut import make_partitioner
from khop.partition.formats.distdgl.byte_stream import ByteReader, Tensor
from khop.partition.formats.distdgl.config import (
    DGL_EDGE,
    DGL_NODE,
    DistDGLConfig,
    TypedIds,
    read_config,
)
from khop.partition.formats.distdgl.graph_file import read_graph
from khop.partition.formats.distdgl.tensor_file import read_tensors
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.partition.summary import FolderSummary
from khop.storage.folder import PartitionFolder, check_output
from khop.typing import Array, Int32Array, Int64Array, IntArray, NodeType, Progress

_LEAST = 4  # bytes of the id of a node or edge


def from_distdgl(
    config: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> FolderSummary:
    """Write a partition folder from DistDGL's partitions; nodes stay in their parts.

    DGL is not needed, and nothing is unpickled. Original ids are those of `orig_nids.dgl` and
    `orig_eids.dgl` in the folders of parts; where there are none, DistDGL's own ids of each type,
    which its scripts see. One-dimensional uint8 attributes whose names end with 'mask' become
    bool: DGL stores bool so.

    Args:
        config: the folder that DistDGL wrote, or its JSON file.
        output_dir: the partition folder to write.
        progress: called as progress(what, done, total).
        **options: `overwrite`, `time_attr`, `weight_attr`, `neighbor_ids`, `order` and others of
            `PartitionerBase`.

    Returns:
        The summary of the folder.

    Raises:
        FileNotFoundError: there is no such folder.
        FolderError: it is damaged, or has what only DGL can read; the message says what to do.
        FileExistsError: `output_dir` exists.

    Example:
        >>> to_distdgl(folder, path / "dgl")
        >>> from_distdgl(path / "dgl", path / "parts").nodes
        [6]
    """
    check_output(output_dir, bool(options.get("overwrite")))
    known = read_config(config)
    show = progress or (lambda what, done, total: None)
    source, owners = read_distdgl(known, show)
    partitioner = make_partitioner(
        source,
        output_dir,
        known.num_parts,
        method="assigned",
        owners=owners,
        progress=progress,
        **options,
    )
    partitioner.partition()
    return FolderSummary.of(PartitionFolder(output_dir))


def read_distdgl(
    config: DistDGLConfig, progress: Progress
) -> tuple[GraphSource, dict[NodeType, Int32Array]]:
    """Read a graph by original ids, and the part of each node.

    Raises:
        FolderError: as for `from_distdgl`.
    """
    _check_sizes(config)
    nodes = _original_ids(config, config.nodes, "orig_nids.dgl", _node_names(config))
    edges = _original_ids(config, config.edges, "orig_eids.dgl", _edge_names(config))
    ends = [np.full((2, len(ids)), -1, np.int64) for ids in edges]
    for part in range(config.num_parts):
        progress("reading edges", part, config.num_parts)
        _read_edges(config, part, nodes, edges, ends)
    for name, pair in zip(config.edge_types, ends, strict=True):
        if pair.min(initial=0) < 0:
            raise FolderError(f"'{config.root}' is damaged: not every edge of {name} is in a part")
    node_attrs = _attributes(config, "node_feats", config.nodes, nodes, _node_names(config))
    edge_attrs = _attributes(config, "edge_feats", config.edges, edges, _edge_names(config))
    source = GraphSource(
        {
            name: NodeSource(len(ids), attrs)
            for name, ids, attrs in zip(config.node_types, nodes, node_attrs, strict=True)
        },
        {
            name: EdgeSource(pair[0], pair[1], attrs)
            for name, pair, attrs in zip(config.edge_types, ends, edge_attrs, strict=True)
        },
        config.heterogeneous,
    )
    parts = np.arange(config.num_parts, dtype=np.int32)
    owners = {}
    for node_type, ids, sizes in zip(config.node_types, nodes, config.nodes.sizes.T, strict=True):
        owners[node_type] = np.empty(len(ids), np.int32)
        owners[node_type][ids] = np.repeat(parts, sizes)
    return source, owners


def _check_sizes(config: DistDGLConfig) -> None:
    """Check that files hold what the JSON file says, before memory is taken for it."""
    for part in range(config.num_parts):
        path = _graph_path(config, part)
        size = ByteReader(config.root, path).size
        ranges = [ids.of_part(part) for ids in (config.nodes, config.edges)]
        count = sum(end - first for first, end in ranges)
        if size < _LEAST * count:
            raise FolderError(
                f"'{config.root / path}' has {size:,} bytes, too few for the {count:,} nodes and "
                "edges that the JSON file names"
            )


def _node_names(config: DistDGLConfig) -> list[str]:
    """Return DGL's names of node types."""
    return list(config.node_types) if config.heterogeneous else [DGL_NODE]


def _edge_names(config: DistDGLConfig) -> list[str]:
    """Return DGL's names of edge types."""
    return [":".join(t) for t in config.edge_types] if config.heterogeneous else [DGL_EDGE]


def _original_ids(
    config: DistDGLConfig, ids: TypedIds, file: str, names: list[str]
) -> list[Int64Array]:
    """Return, for each type, the original id of each of DistDGL's ids."""
    paths = [config.beside(part, file) for part in range(config.num_parts)]
    there = [os.path.lexists(config.root / path) for path in paths]
    if not any(there):
        return [np.arange(count, dtype=np.int64) for count in ids.counts()]
    if not all(there):
        raise FolderError(
            f"'{config.root}' has {file} for some parts only: copy the others, or remove these "
            "to go by DistDGL's ids"
        )
    pieces: list[list[Array]] = [[] for _ in names]
    for part, path in enumerate(paths):
        found = read_tensors(config.root, path)
        for i, name in enumerate(names):
            size = int(ids.sizes[part, i])
            values = found[name].values if name in found else np.empty(0, np.int64)
            if values.shape != (size,) or values.dtype.kind not in "iu":
                raise FolderError(
                    f"'{config.root / path}' must hold {size} ids of '{name}' (got {values.dtype} "
                    f"of shape {list(values.shape)})"
                )
            pieces[i].append(values.astype(np.int64))
    return [_checked(np.concatenate(p), file, name) for p, name in zip(pieces, names, strict=True)]


def _checked(ids: Int64Array, file: str, name: str) -> Int64Array:
    """Check that ids are each number once."""
    seen = np.zeros(len(ids), bool)
    if len(ids) and 0 <= int(ids.min()) <= int(ids.max()) < len(ids):
        seen[ids] = True
    if not seen.all():
        raise FolderError(
            f"{file} does not hold each id of '{name}' from 0 to {len(ids) - 1} once; without "
            f"these files khop goes by DistDGL's ids"
        )
    return ids


def _read_edges(
    config: DistDGLConfig,
    part: int,
    nodes: list[Int64Array],
    edges: list[Int64Array],
    ends: list[Int64Array],
) -> None:
    """Store the ends of a part's edges, by original id; those of other parts are passed over."""
    graph = read_graph(config.root, _graph_path(config, part))
    what = f"the graph of part {part} in '{config.root}'"
    node_ids = _ids_of(graph.nodes, "node", config.nodes, what)
    edge_ids = _ids_of(graph.edges, "edge", config.edges, what)
    first, end = config.edges.of_part(part)
    own = np.flatnonzero((edge_ids >= first) & (edge_ids < end))
    if len(own) != end - first:
        raise FolderError(f"{what} has {len(own)} edges of its own, not {end - first}")
    kinds, within = config.edges.split(edge_ids[own])
    pair = [config.nodes.split(node_ids[side[own]]) for side in (graph.src, graph.dst)]
    for i, (source, _, target) in enumerate(config.edge_types):
        of_type = np.flatnonzero(kinds == i)
        places = edges[i][within[of_type]]
        for side, name in enumerate((source, target)):
            kind = config.node_types.index(name)
            if (pair[side][0][of_type] != kind).any():
                raise FolderError(f"{what} has edges of {config.edge_types[i]} not at '{name}'")
            ends[i][side, places] = nodes[kind][pair[side][1][of_type]]


def _graph_path(config: DistDGLConfig, part: int) -> str:
    """Return the path of a part's graph.dgl; of GraphBolt's format, of one saved beside it."""
    files = config.files[part]
    if "part_graph" in files:
        return files["part_graph"]
    path = config.beside(part, "graph.dgl")
    if not os.path.lexists(config.root / path):
        raise FolderError(
            f"part {part} in '{config.root}' has GraphBolt's fused_csc_sampling_graph.pt alone, a "
            "pickle, which khop does not run: save it as graph.dgl beside it with DGL, by the "
            "lines that docs/migrate-from-distdgl.md has"
        )
    return path


def _ids_of(data: dict[str, Tensor], kind: str, ids: TypedIds, what: str) -> IntArray:
    """Return DistDGL's ids of a part's nodes or edges."""
    if "_ID" not in data:
        raise FolderError(
            f"{what} has no {kind} data '_ID', the ids of its {kind}s"
            + (": partition with store_eids=True" if kind == "edge" else "")
        )
    values = data["_ID"].values
    in_range = values.ndim == 1 and values.dtype.kind in "iu"
    if in_range and len(values):
        in_range = 0 <= int(values.min()) <= int(values.max()) < ids.starts[-1]
    if not in_range:
        raise FolderError(f"{what} holds {kind} ids that are not those of the JSON file")
    return values.astype(np.int64)


def _attributes(
    config: DistDGLConfig,
    file: str,
    ids: TypedIds,
    original: list[Int64Array],
    names: list[str],
) -> list[dict[str, RowStore]]:
    """Return, for each type, its attributes by original id."""
    pieces: list[dict[str, list[Tensor | None]]] = [{} for _ in names]
    for part in range(config.num_parts):
        path = config.files[part][file]
        for key, tensor in read_tensors(config.root, path).items():
            # Of early versions: names without a type.
            kind, _, name = key.rpartition("/") if "/" in key else (names[0], "", key)
            if kind not in names:
                raise FolderError(f"'{config.root / path}' has '{key}', of no known type")
            of_type = pieces[names.index(kind)]
            of_type.setdefault(name, [None] * config.num_parts)[part] = tensor
    found = []
    for i, of_type in enumerate(pieces):
        places = np.empty_like(original[i])
        places[original[i]] = np.arange(len(places))
        found.append(
            {
                name: _attribute(f"'{names[i]}/{name}'", tensors, ids.sizes[:, i], places)
                for name, tensors in of_type.items()
            }
        )
    return found


def _attribute(
    what: str, tensors: list[Tensor | None], sizes: Int64Array, places: Int64Array
) -> RowStore:
    """Put the rows of all parts together."""
    known = next(t for t in tensors if t is not None)
    if known.values.ndim == 0:
        raise FolderError(f"attribute {what} is a single number, without rows")
    row_shape = known.values.shape[1:]
    none = Tensor(np.empty((0, *row_shape), storage_dtype(known.dtype)), known.dtype)
    found = []
    for part, tensor in enumerate(tensors):
        size = int(sizes[part])
        here = none if tensor is None and size == 0 else tensor
        if here is None:
            raise FolderError(f"attribute {what} is missing in part {part}")
        if (here.dtype, here.values.shape) != (known.dtype, (size, *row_shape)):
            raise FolderError(
                f"attribute {what} has {here.dtype} {list(here.values.shape)} in part {part}, "
                f"not {known.dtype} {[size, *row_shape]}"
            )
        found.append(here.values)
    dtype = known.dtype
    is_mask = (dtype, row_shape) == ("uint8", ()) and what.endswith("mask'")
    if is_mask and max(int(values.max(initial=0)) for values in found) <= 1:
        dtype, found = "bool", [values.view(np.bool_) for values in found]
    return TakenFeature(JoinedFeature([Feature(values, dtype) for values in found]), places)
