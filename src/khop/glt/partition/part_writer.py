"""Writer of one part of a graph as a partition folder, for processes that have one part each.

Each process has the partition books (part of each id), which give the sizes of all parts. So every
process writes the same meta.json, and only its own part's files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from khop import _native
from khop.codec import AtMost
from khop.data import Feature, RowStore
from khop.data.arrays import narrowest_int, storage_dtype
from khop.data.weights import weight_values
from khop.partition.writing.numbering import Numbering
from khop.storage.folder import (
    AttrMeta,
    EdgeTypeMeta,
    FolderMeta,
    NodeTypeMeta,
    PartitionFolder,
    Written,
    attr_metas,
    description_of,
    edge_attr_path,
    edge_path,
    map_path,
    node_attr_path,
    node_path,
    npy_header,
)
from khop.storage.folder.checksums import hash_ranges, num_ranges
from khop.typing import Array, EdgeDir, EdgeType, Int64Array, NodeType

Files = Annotated[dict[str, Written], AtMost(1 << 24)]
Exchange = Callable[[Files], Files]
DType = np.dtype[Any]
Shape = tuple[int, ...]

WEIGHTS = "edge_weight"
"""Name of the attribute for weights of edges."""


@dataclass
class NodePart:
    """Nodes of one type that a part owns, for `GraphPart`.

    Attributes:
        owners: [num_nodes] part of each node of the graph.
        attrs: name -> rows of the part's nodes, ascending by id.
    """

    owners: Int64Array
    attrs: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class EdgePart:
    """Edges of one type that a part owns, for `GraphPart`.

    The edges are drawn from nodes of the part.

    Attributes:
        src, dst: [n] int64 original ids.
        ids: [n] int64 edge ids.
        counts: number of edges of each part.
        attrs: name -> [n, ...] rows in the same order. With `WEIGHTS`, draws are weighted.
    """

    src: Int64Array
    dst: Int64Array
    ids: Int64Array
    counts: list[int]
    attrs: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class GraphPart:
    """One part of a graph, which `write` writes as a partition folder.

    Attributes:
        part: index of the part.
        num_parts: number of parts.
        edge_dir: neighbours are drawn along the edges ('out') or against them ('in').
        heterogeneous: True if types have names.
        nodes, edges: the part's nodes and edges by
            type.
    """

    part: int
    num_parts: int
    edge_dir: EdgeDir
    heterogeneous: bool
    nodes: dict[NodeType, NodePart]
    edges: dict[EdgeType, EdgePart]

    def write(self, root: str | Path, exchange: Exchange | None = None) -> FolderMeta:
        """Write the part's files and meta.json into a folder that does not have them.

        Args:
            root: the folder.
            exchange: function from this part's {path: size and checksums} to all parts' entries.
                If None, meta.json has no valid checksums.

        Raises:
            IndexError, ValueError: edges have nodes that do not exist or rows of another part, or
                attributes have a wrong length.
        """
        writer = _Writer(self, Path(root))
        meta = writer.write()
        files = writer.files
        if exchange is not None:
            files = {**files, **exchange(writer.checksums())}
        describe(Path(root), meta, files, self.part)
        return meta

    def write_temporary(self, owner: object) -> str:
        """Write the part to a temporary folder and return its path. It is removed with `owner`."""
        folder = tempfile.mkdtemp(prefix="khop-glt-")
        weakref.finalize(owner, _remove, folder, os.getpid())
        self.write(folder)
        return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of the process that made it
        shutil.rmtree(folder, ignore_errors=True)


def _listed(dtype: DType, shape: Shape) -> Written:
    """Return the length of an .npy file with this dtype and shape, and placeholder checksums."""
    size = len(npy_header(dtype, shape)) + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return Written(size, [hashlib.sha256(b"").hexdigest()] * num_ranges(size))


def describe(folder: Path, meta: FolderMeta, files: Files, writer: int) -> None:
    """Write or replace the files that describe a folder, such as meta.json.

    Args:
        folder: the folder.
        meta: description of the folder.
        files: path -> length and checksums of each file, in any order.
        writer: index of this process, for names of temporary files.
    """
    for name, content in description_of(meta, dict(sorted(files.items()))).items():
        written = folder / f".{name}.{writer}.tmp"
        written.write_bytes(content)
        written.replace(folder / name)


def add_masks(root: str | Path, part: int, masks: Mapping[NodeType, Mapping[str, Tensor]]) -> None:
    """Add boolean attributes of nodes to a folder that `GraphPart.write` wrote.

    Args:
        root: the folder.
        part: the part whose files are in the folder.
        masks: {node type: {name: [number of the part's nodes] mask}}. All parts have the same
            names.
    """
    folder = PartitionFolder(root)
    files, types = folder.written(), {t.name: t for t in folder.meta.node_types}
    for node_type, named in masks.items():
        described = types[node_type]
        attrs = {**described.attrs, **dict.fromkeys(named, AttrMeta.of("bool"))}
        types[node_type] = replace(described, attrs=attrs)
        for name, mask in named.items():
            np.save(folder.root / node_attr_path(part, node_type, name), mask.numpy())
            for each in range(folder.num_parts):
                path = node_attr_path(each, node_type, name)
                files[path] = _listed(np.dtype(bool), (described.book.size(each),))
    meta = replace(folder.meta, node_types=list(types.values()))
    describe(folder.root, meta, files, part)


class _Writer:
    def __init__(self, graph: GraphPart, root: Path) -> None:
        self._graph, self._root = graph, root
        self.files: Files = {}
        self._numbering = {
            t: Numbering(node.owners, graph.num_parts) for t, node in graph.nodes.items()
        }

    def write(self) -> FolderMeta:
        graph = self._graph
        nodes = [self._write_nodes(t, node) for t, node in graph.nodes.items()]
        edges = [self._write_edges(t, edge) for t, edge in graph.edges.items()]
        head = graph.num_parts, graph.edge_dir, graph.heterogeneous
        weights = WEIGHTS if any(t.weighted for t in edges) else None
        return FolderMeta(*head, nodes, edges, {"name": "given"}, weight_attr=weights)

    def checksums(self) -> Files:
        """Return {path: length and checksums} of the files that were written."""
        checksums = {}
        for path in self.files:
            if (self._root / path).exists():
                with (self._root / path).open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    checksums[path] = Written(size, hash_ranges(file.fileno(), size))
        return checksums

    def _put(
        self, path: str, array: Array | None, dtype: DType | None = None, shape: Shape = ()
    ) -> None:
        """Add an array to the list of files, and write it. If None, another process writes it."""
        if array is not None:
            file = self._root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
            dtype, shape = array.dtype, array.shape
        self.files[path] = _listed(np.dtype(dtype), shape)

    def _write_nodes(self, node_type: NodeType, node: NodePart) -> NodeTypeMeta:
        numbering, own = self._numbering[node_type], self._graph.part
        dtype, bounds = narrowest_int(len(node.owners)), numbering.book.bounds
        features = {name: Feature(rows) for name, rows in node.attrs.items()}
        self._put(map_path(node_type), numbering.new_of_old.astype(dtype))
        for part, count in enumerate(np.diff(bounds).tolist()):
            ids = numbering.old_of_new[bounds[part] : bounds[part + 1]].astype(dtype)
            is_own = part == own
            self._put(node_path(part, node_type, "id"), ids if is_own else None, dtype, (count,))
            for name, feature in features.items():
                if is_own:
                    _check_rows(feature, count, f"'{name}' of node type '{node_type}'")
                self._put(
                    node_attr_path(part, node_type, name),
                    feature.array if is_own else None,
                    storage_dtype(feature.dtype),
                    (count, *feature.row_shape),
                )
        return NodeTypeMeta(node_type, bounds, attr_metas(features))

    def _write_edges(self, edge_type: EdgeType, edge: EdgePart) -> EdgeTypeMeta:
        graph, own = self._graph, self._graph.part
        row_type, other_type = edge_type[2], edge_type[0]
        ends = edge.dst, edge.src
        if graph.edge_dir == "out":
            row_type, other_type, ends = other_type, row_type, ends[::-1]
        rows, others = self._numbering[row_type], self._numbering[other_type]
        _check_ends(edge_type, ends, (rows, others), own)
        first, last = rows.book.bounds[own], rows.book.bounds[own + 1]
        if len(edge.ids) != edge.counts[own] or len(edge.counts) != graph.num_parts:
            raise ValueError(
                f"part {own} has {len(edge.ids)} edges of type {edge_type}, but the book says "
                f"{edge.counts}"
            )
        by_id = np.argsort(edge.ids, kind="stable")
        local, columns = rows.new_of_old[ends[0][by_id]] - first, others.new_of_old[ends[1][by_id]]
        indptr, indices, positions = _native.coo_to_csr(
            np.ascontiguousarray(local, np.int64),
            np.ascontiguousarray(columns, np.int64),
            last - first,
            len(others.owners),
        )
        order = by_id[positions]
        features = {name: Feature(values) for name, values in edge.attrs.items()}
        arrays = {
            "indptr": indptr.astype(narrowest_int(edge.counts[own])),
            "indices": indices.astype(narrowest_int(len(others.owners))),
            "edge_id": edge.ids[order].astype(narrowest_int(sum(edge.counts))),
        }
        weighted = WEIGHTS in features
        if weighted:
            weights = weight_values(features[WEIGHTS].numbers())[order]
            sums, guide = _native.weight_table(arrays["indptr"], weights)
            arrays.update(weight_sum=sums, weight_guide=guide)
        for part, count in enumerate(edge.counts):
            is_own = part == own
            for name, array in arrays.items():
                dtype, length = array.dtype, count
                if name == "indptr":
                    dtype, length = narrowest_int(count), rows.book.size(part) + 1
                path = edge_path(part, edge_type, name)
                self._put(path, array if is_own else None, dtype, (length,))
            for name, feature in features.items():
                if is_own:
                    _check_rows(feature, count, f"'{name}' of edge type {edge_type}")
                self._put(
                    edge_attr_path(part, edge_type, name),
                    feature.gather(order) if is_own else None,
                    storage_dtype(feature.dtype),
                    (count, *feature.row_shape),
                )
        bounds = [0, *np.cumsum(edge.counts).tolist()]
        return EdgeTypeMeta(edge_type, bounds, attrs=attr_metas(features), weighted=weighted)


def _check_rows(feature: RowStore, count: int, name: str) -> None:
    if feature.num_rows != count:
        raise ValueError(f"attribute {name} has {feature.num_rows} rows, but the part has {count}")


def _check_ends(
    edge_type: EdgeType,
    ends: tuple[Int64Array, Int64Array],
    numberings: tuple[Numbering, Numbering],
    part: int,
) -> None:
    for ids, numbering in zip(ends, numberings, strict=True):
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(numbering.owners):
            raise IndexError(
                f"edges of type {edge_type} name node {int(ids.max())}, but there are "
                f"{len(numbering.owners)} nodes"
            )
    if np.any(numberings[0].owners[ends[0]] != part):
        raise ValueError(
            f"part {part} has edges of type {edge_type} whose rows are other parts': an edge "
            "belongs to the part of its source ('out') or destination ('in')"
        )
