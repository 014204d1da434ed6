"""Reader and writer of DGL's graph files (`dgl.save_graphs`) with one graph of one edge type.

DistDGL's folders have such files. The layout is::

    uint64 magic, version 2, kind 2, number of graphs; zeros up to byte 4,096
    uint64 where the graph begins; the labels, a list of named arrays
    the graph:
      uint64 magic; the graph of types (below); uint64 number of edge types
      for each: uint64 magic, int64 formats stored, int64 formats allowed; for each format stored
        the graph of types, and a matrix
      uint64 number of node types, int64 nodes of each
      uint64 number of node types, for each a list of named arrays; the same of edge types
      names of node types, names of edge types: uint64 number, texts
    uint64 16; uint64 1, uint64 where the graph begins; uint64 16

The graph of types is a magic number and a compressed matrix. A matrix is a magic number, int64
columns, int64 rows and three arrays. COO has row, column and edge id of each edge, then two bytes
on their order. Compressed matrices have pointers, indices and edge ids, then one byte. An empty
array of edge ids means that edges are in their order. Formats are bits: 1 COO, 2 by source (CSR), 4
by destination (CSC). Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from khop.data.arrays import MAX_COUNT, check_pointers
from khop.partition.formats.distdgl.byte_stream import ByteReader, ByteWriter, Tensor, open_writer
from khop.typing import Array, IntArray

_FILE, _GRAPH, _TYPES = 0xDD2E4FF046B4A13F, 0xDD589FBE35224ABF, 0xDD3C5FFE20046ABF
_CSR, _COO, _RELATION = 0xDD6CD31205DFF127, 0xDD61FFD305DFF127, 0xDD2E60F0F6B4A127
_VERSION, _HETEROGRAPH = 2, 2
_BY_EDGE, _BY_SOURCE, _BY_DESTINATION = 1, 2, 4
_ALL_FORMATS = 7
_NEW_CODE = 1 << 32  # set if the formats are bits; earlier versions write 1, 2 or 3
_FIRST = 4096
_NO_IDS = np.empty(0, np.int64)


class PartGraph(NamedTuple):
    """Graph of one part, as one DGL file has it.

    `src` and `dst` [num_edges] are node ids that count from 0 within the part. `nodes` and `edges`
    are arrays by name.
    """

    num_nodes: int
    src: IntArray
    dst: IntArray
    nodes: dict[str, Tensor]
    edges: dict[str, Tensor]


def read_graph(root: Path, path: str) -> PartGraph:
    """Read file `path` below `root`, which holds one graph. Arrays are views of the mapped file.

    Raises:
        FolderError: the file is missing, damaged, outside the folder, written by DGL before 0.5, or
            has several graphs or types.
    """
    stream = ByteReader(root, path)
    stream.expect(_FILE, "the begin of a file of graphs")
    if (version := stream.integer()) != _VERSION:
        stream.refuse(f"version {version}, not {_VERSION}: load and save it with DGL 0.5 or later")
    stream.expect(_HETEROGRAPH, "the kind of graph")
    stream.expect(1, "the number of graphs")
    stream.skip(_FIRST - stream.at)
    first = stream.integer()
    stream.skip(first - stream.at)  # labels
    stream.expect(_GRAPH, "the begin of a graph")
    _read_types(stream)
    stream.expect(1, "the number of edge types")
    src, dst, num_rows = _read_relation(stream)
    stream.expect(1, "the number of node types")
    num_nodes = stream.integer("q")
    stream.expect(1, "the number of lists of node data")
    nodes = stream.tensors()
    stream.expect(1, "the number of lists of edge data")
    edges = stream.tensors()
    if not num_nodes == num_rows <= MAX_COUNT:
        stream.refuse(f"{num_nodes} nodes, and a matrix of {num_rows} rows")
    for ends in (src, dst):
        if len(ends) and not 0 <= int(ends.min()) <= int(ends.max()) < num_nodes:
            stream.refuse(f"an edge to a node that is not one of {num_nodes}")
    for tensors, count in ((nodes, num_nodes), (edges, len(src))):
        for name, tensor in tensors.items():
            if tensor.values.shape[:1] != (count,):
                stream.refuse(f"'{name}' has shape {list(tensor.values.shape)}, not {count} rows")
    return PartGraph(num_nodes, src, dst, nodes, edges)


def _read_types(stream: ByteReader) -> None:
    """Skip DGL's graph of types, since files of DistDGL have one type."""
    stream.expect(_TYPES, "the begin of the graph of types")
    _read_matrix(stream, _CSR)


def _read_relation(stream: ByteReader) -> tuple[IntArray, IntArray, int]:
    """Read edges in the order of ids: sources, destinations, and the number of source nodes."""
    stream.expect(_RELATION, "the begin of an edge type")
    stored, _ = stream.integer("q"), stream.integer("q")
    formats = stored % _NEW_CODE if stored >> 32 else {1: 1, 2: 2, 3: 4}.get(stored, 0)
    if not 0 < formats <= _ALL_FORMATS:
        stream.refuse(f"sparse formats {stored:#x}")
    edges = None
    for known in (_BY_EDGE, _BY_SOURCE, _BY_DESTINATION):
        if not formats & known:
            continue
        _read_types(stream)
        if known == _BY_EDGE:
            num_rows, src, dst, ids = _read_matrix(stream, _COO)
        else:
            num_rows, pointers, inner, ids = _read_matrix(stream, _CSR)
            if edges is None:
                outer = _expanded(stream, pointers, len(inner), num_rows)
                src, dst = (outer, inner) if known == _BY_SOURCE else (inner, outer)
        edges = edges or (*_in_order(stream, src, dst, ids), num_rows)
    assert edges is not None
    return edges


def _read_matrix(stream: ByteReader, magic: int) -> tuple[int, IntArray, IntArray, IntArray]:
    """Read a sparse matrix that begins with integer `magic`: number of rows, then three arrays."""
    stream.expect(magic, "the begin of a matrix")
    columns, rows = stream.integer("q"), stream.integer("q")
    if rows != columns or rows < 0:
        stream.refuse(f"a matrix of {rows} rows and {columns} columns")
    first, second, ids = (_ids(stream) for _ in range(3))
    stream.skip(2 if magic == _COO else 1)
    return rows, first, second, ids


def _ids(stream: ByteReader) -> IntArray:
    values = stream.tensor().values
    if values.shape == (0,):
        return _NO_IDS  # lists of users may be empty, with another dtype
    if values.ndim != 1 or values.dtype not in (np.int32, np.int64):
        stream.refuse(f"a matrix of {values.dtype} of shape {list(values.shape)}")
    return values


def _expanded(stream: ByteReader, pointers: IntArray, num_edges: int, num_rows: int) -> IntArray:
    """Expand CSR row pointers to the row index of each edge, [num_edges].

    Raises:
        FolderError: the pointers do not fit `num_edges` edges and `num_rows` rows.
    """
    if len(pointers) != num_rows + 1:
        stream.refuse(f"{len(pointers)} row pointers of {num_rows} rows")
    check_pointers(pointers, num_edges, f"'{stream.name}'")
    return np.repeat(np.arange(num_rows, dtype=pointers.dtype), np.diff(pointers))


def _in_order(
    stream: ByteReader, src: IntArray, dst: IntArray, ids: IntArray
) -> tuple[IntArray, IntArray]:
    """Sort edges by their ids. Empty `ids` mean that the edges are sorted already.

    Raises:
        FolderError: `ids` is not a permutation.
    """
    if len(src) != len(dst) or len(ids) not in (0, len(src)):
        stream.refuse(f"{len(src)} sources, {len(dst)} destinations and {len(ids)} ids of edges")
    if len(ids) == 0:
        return src, dst
    order = np.argsort(ids, kind="stable")
    if not np.array_equal(ids[order], np.arange(len(ids))):
        stream.refuse("ids of edges are not a permutation")
    return src[order], dst[order]


def write_graph(
    path: Path,
    num_nodes: int,
    src: IntArray,
    dst: IntArray,
    nodes: Mapping[str, Array],
    edges: Mapping[str, Array],
) -> None:
    """Write one graph of one type, with arrays of nodes and edges, to a new file.

    `src` and `dst` are [num_edges] int64. Arrays have a row per node, or edge.
    """
    with open_writer(path) as stream:
        stream.integers(_FILE, _VERSION, _HETEROGRAPH, 1)
        stream.zeros(_FIRST - 32)
        first = _FIRST + 16
        stream.integers(first, 0, _GRAPH)  # no labels
        _write_types(stream)
        stream.integers(1, _RELATION, _BY_EDGE | _NEW_CODE, _ALL_FORMATS | _NEW_CODE)
        _write_types(stream)
        _write_matrix(stream, _COO, num_nodes, (src, dst, _NO_IDS))
        stream.integers(1, num_nodes)
        for tensors in (nodes, edges):
            stream.integer(1)
            stream.tensors(tensors)
        for name in ("_N", "_E"):
            stream.integer(1)
            stream.text(name)
        stream.integers(16, 1, first, 16)


def _write_types(stream: ByteWriter) -> None:
    """Write DGL's graph of types: one node type, and one edge type from this type to itself."""
    stream.integer(_TYPES)
    one = np.zeros(1, np.int64)
    _write_matrix(stream, _CSR, 1, (np.array([0, 1]), one, one))


def _write_matrix(
    stream: ByteWriter, magic: int, num_rows: int, arrays: tuple[IntArray, IntArray, IntArray]
) -> None:
    stream.integers(magic, num_rows, num_rows)
    for array in arrays:
        stream.tensor(array)
    stream.zeros(2 if magic == _COO else 1)
