"""Import of a DistDGL folder, as the input of a partitioner. Imports no torch.

Edge lists are read into memory. With the cut, they take about 55 bytes per edge. Attributes stay in
DistDGL's mapped files, and are copied row by row.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from khop.data import Feature, RowStore
from khop.data.arrays import storage_dtype
from khop.data.joined import JoinedFeature, TakenFeature
from khop.errors import FolderError
from khop.options import takes_options
from khop.partition.cut import make_partitioner
from khop.partition.formats.distdgl.byte_stream import ByteReader, Tensor, read_tensors
from khop.partition.formats.distdgl.config import (
    DGL_EDGE,
    DGL_NODE,
    DistDGLConfig,
    TypedIds,
    read_config,
)
from khop.partition.formats.distdgl.graph_file import read_graph
from khop.partition.options import PartitionOptions
from khop.partition.source import EdgeSource, GraphSource, NodeSource, no_progress
from khop.partition.summary import FolderSummary
from khop.storage.folder import PartitionFolder, check_output
from khop.typing import Array, Int32Array, Int64Array, IntArray, NodeType, Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LEAST = 4  # bytes of an id in a file


@takes_options(PartitionOptions)
def from_distdgl(
    config: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    **options: Unpack[PartitionOptions],
) -> FolderSummary:
    """Write a partition folder from DistDGL's partitions. Nodes stay in their parts.

    DGL is not needed, and nothing is unpickled. Original ids are read from `orig_nids.dgl` and
    `orig_eids.dgl` in the folders of parts. Without these files, original ids are DistDGL's own ids
    within each type, which its scripts use. One-dimensional uint8 attributes whose names end with
    'mask' become bool, since DGL stores bool as uint8.

    Args:
        config: the folder that DistDGL wrote, or its JSON file.
        output_dir: the partition folder to write.
        **options: `PartitionOptions`.

    Returns:
        The summary of the folder.

    Raises:
        FileNotFoundError: `config` does not exist.
        FolderError: the folder is damaged, or only DGL can read it.
        FileExistsError: `output_dir` exists.

    Example:
        >>> to_distdgl(folder, path / "dgl")
        >>> from_distdgl(path / "dgl", path / "parts").nodes
        [6]
    """
    check_output(output_dir, bool(options.get("overwrite")))
    known = read_config(config)
    source, owners = read_distdgl(known, options.get("progress") or no_progress)
    make_partitioner(
        source, output_dir, known.num_parts, method="assigned", owners=owners, **options
    ).partition()
    return FolderSummary.of(PartitionFolder(output_dir))


def read_distdgl(
    config: DistDGLConfig, progress: Progress
) -> tuple[GraphSource, dict[NodeType, Int32Array]]:
    """Read the graph of a DistDGL folder in original ids, and the part of each node.

    Args:
        config: the folder's JSON file.
        progress: called as progress(step, done, total).

    Returns:
        The graph, and {node type: [num_nodes] int32 parts}.

    Raises:
        FolderError: the folder is damaged, or only DGL can read it.
    """
    _check_sizes(config)
    node_names: list[str] = list(config.node_types) if config.heterogeneous else [DGL_NODE]
    edge_names = [":".join(t) for t in config.edge_types] if config.heterogeneous else [DGL_EDGE]
    nodes = _original_ids(config, config.nodes, "orig_nids.dgl", node_names)
    edges = _original_ids(config, config.edges, "orig_eids.dgl", edge_names)
    ends = [np.full((2, len(ids)), -1, np.int64) for ids in edges]
    for part in range(config.num_parts):
        progress("reading edges", part, config.num_parts)
        _read_edges(config, part, nodes, edges, ends)
    for name, pair in zip(config.edge_types, ends, strict=True):
        if pair.min(initial=0) < 0:
            raise FolderError(f"'{config.root}' is damaged: not every edge of {name} is in a part")
    node_attrs = _attributes(config, "node_feats", config.nodes, nodes, node_names)
    edge_attrs = _attributes(config, "edge_feats", config.edges, edges, edge_names)
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
    """Raise FolderError if files are too small for the counts in the JSON file."""
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


def _original_ids(
    config: DistDGLConfig, ids: TypedIds, file: str, names: list[str]
) -> list[Int64Array]:
    """Return, for each type, the original ids [num_ids] in the order of DistDGL's ids.

    Args:
        config: the folder.
        ids: DistDGL's numbering of nodes, or of edges.
        file: name of the file with original ids in each part's folder.
        names: names of the types in this file.
    """
    paths = [config.beside(part, file) for part in range(config.num_parts)]
    there = [os.path.lexists(config.root / path) for path in paths]
    if not any(there):
        return [np.arange(count, dtype=np.int64) for count in ids.sizes.sum(axis=0)]
    if not all(there):
        raise FolderError(
            f"'{config.root}' has {file} for some parts only: copy the others, or remove these "
            "to go by DistDGL's ids"
        )
    pieces: list[list[Array]] = [[] for _ in names]
    for part, path in enumerate(paths):
        tensors = read_tensors(config.root, path)
        for i, name in enumerate(names):
            size = int(ids.sizes[part, i])
            values = tensors[name].values if name in tensors else np.empty(0, np.int64)
            if values.shape != (size,) or values.dtype.kind not in "iu":
                raise FolderError(
                    f"'{config.root / path}' must hold {size} ids of '{name}' (got {values.dtype} "
                    f"of shape {list(values.shape)})"
                )
            pieces[i].append(values.astype(np.int64))
    originals = []
    for name, of_type in zip(names, pieces, strict=True):
        original = np.concatenate(of_type)
        seen = np.zeros(len(original), bool)
        if len(original) and 0 <= int(original.min()) <= int(original.max()) < len(original):
            seen[original] = True
        if not seen.all():
            raise FolderError(
                f"{file} does not hold each id of '{name}' from 0 to {len(original) - 1} once; "
                "without these files khop goes by DistDGL's ids"
            )
        originals.append(original)
    return originals


def _read_edges(
    config: DistDGLConfig,
    part: int,
    nodes: list[Int64Array],
    edges: list[Int64Array],
    ends: list[Int64Array],
) -> None:
    """Write a part's own edges, in original ids, into `ends`: [2, num_edges] for each edge type.

    `nodes` and `edges` have, for each type, original ids in the order of DistDGL's ids.
    """
    graph = read_graph(config.root, _graph_path(config, part))
    name = f"the graph of part {part} in '{config.root}'"
    node_ids = _ids_of(graph.nodes, "node", config.nodes, name)
    edge_ids = _ids_of(graph.edges, "edge", config.edges, name)
    first, end = config.edges.of_part(part)
    own = np.flatnonzero((edge_ids >= first) & (edge_ids < end))
    if len(own) != end - first:
        raise FolderError(f"{name} has {len(own)} edges of its own, not {end - first}")
    types, within = config.edges.split(edge_ids[own])
    pair = [config.nodes.split(node_ids[side[own]]) for side in (graph.src, graph.dst)]
    for i, (source, _, target) in enumerate(config.edge_types):
        of_type = np.flatnonzero(types == i)
        positions = edges[i][within[of_type]]
        for side, node_type in enumerate((source, target)):
            index = config.node_types.index(node_type)
            if (pair[side][0][of_type] != index).any():
                raise FolderError(
                    f"{name} has edges of {config.edge_types[i]} not at '{node_type}'"
                )
            ends[i][side, positions] = nodes[index][pair[side][1][of_type]]


def _graph_path(config: DistDGLConfig, part: int) -> str:
    """Return the path of a part's graph in DGL's format. GraphBolt's users save it, too."""
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


def _ids_of(data: dict[str, Tensor], level: str, ids: TypedIds, graph: str) -> IntArray:
    """Return DistDGL's ids of the nodes, or edges, in the graph file of a part.

    Args:
        data: arrays of the graph's nodes, or edges.
        level: 'node' or 'edge'.
        ids: DistDGL's numbering.
        graph: path of the file, for messages.
    """
    if "_ID" not in data:
        raise FolderError(
            f"{graph} has no {level} data '_ID', the ids of its {level}s"
            + (": partition with store_eids=True" if level == "edge" else "")
        )
    values = data["_ID"].values
    in_range = values.ndim == 1 and values.dtype.kind in "iu"
    if in_range and len(values):
        in_range = 0 <= int(values.min()) <= int(values.max()) < ids.starts[-1]
    if not in_range:
        raise FolderError(f"{graph} holds {level} ids that are not those of the JSON file")
    return values.astype(np.int64)


def _attributes(
    config: DistDGLConfig, file: str, ids: TypedIds, original: list[Int64Array], names: list[str]
) -> list[dict[str, RowStore]]:
    """Return, for each type, its attributes by name, with rows in the order of original ids.

    Args:
        config: the folder.
        file: key of the JSON file: 'node_feats' or 'edge_feats'.
        ids: DistDGL's numbering.
        original: for each type, original ids in the order of DistDGL's ids.
        names: names of the types in these files.
    """
    pieces: list[dict[str, list[Tensor | None]]] = [{} for _ in names]
    for part in range(config.num_parts):
        path = config.files[part][file]
        for key, tensor in read_tensors(config.root, path).items():
            # Early versions have names without a type.
            type_name, _, name = key.rpartition("/") if "/" in key else (names[0], "", key)
            if type_name not in names:
                raise FolderError(f"'{config.root / path}' has '{key}', of no known type")
            of_type = pieces[names.index(type_name)]
            of_type.setdefault(name, [None] * config.num_parts)[part] = tensor
    attributes = []
    for i, of_type in enumerate(pieces):
        positions = np.empty_like(original[i])
        positions[original[i]] = np.arange(len(positions))
        attributes.append(
            {
                name: _attribute(f"'{names[i]}/{name}'", tensors, ids.sizes[:, i], positions)
                for name, tensors in of_type.items()
            }
        )
    return attributes


def _attribute(
    name: str, tensors: list[Tensor | None], sizes: Int64Array, positions: Int64Array
) -> RowStore:
    """Join the rows of an attribute in all parts, in the order of original ids.

    `tensors` and `sizes` have the array and the number of rows of each part. `positions` is the
    position of each original id in the joined rows.
    """
    known = next(t for t in tensors if t is not None)
    if known.values.ndim == 0:
        raise FolderError(f"attribute {name} is a single number, without rows")
    row_shape = known.values.shape[1:]
    none = Tensor(np.empty((0, *row_shape), storage_dtype(known.dtype)), known.dtype)
    parts = []
    for part, tensor in enumerate(tensors):
        size = int(sizes[part])
        here = none if tensor is None and size == 0 else tensor
        if here is None:
            raise FolderError(f"attribute {name} is missing in part {part}")
        if (here.dtype, here.values.shape) != (known.dtype, (size, *row_shape)):
            raise FolderError(
                f"attribute {name} has {here.dtype} {list(here.values.shape)} in part {part}, "
                f"not {known.dtype} {[size, *row_shape]}"
            )
        parts.append(here.values)
    dtype = known.dtype
    is_mask = (dtype, row_shape) == ("uint8", ()) and name.endswith("mask'")
    if is_mask and max(int(values.max(initial=0)) for values in parts) <= 1:
        dtype, parts = "bool", [values.view(np.bool_) for values in parts]
    return TakenFeature(JoinedFeature([Feature(values, dtype) for values in parts]), positions)
