"""Sorter of the edges of a block, a range of rows, into CSR rows. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from khop import _native
from khop.data.arrays import narrowest_int, storage_dtype
from khop.partition.draws import DrawAttrs
from khop.partition.out_of_core.stage import COLUMN, EDGE_ID, ROW, Stage
from khop.partition.source import EdgeSource
from khop.partition.writing.numbering import Numbering
from khop.storage.folder import edge_attr_path, edge_path
from khop.typing import Array, EdgeType, Int64Array, IntArray, NodeType

# Up to this number of parts, neighbours are counted by one comparison per part.
_FEW_PARTS = 16

ArrayShape = tuple[str, np.dtype[Any], tuple[int, ...]]
"""Path, dtype and shape of an array of the folder."""
AnyArray = TypeVar("AnyArray", bound=Array)


@dataclass(frozen=True)
class RowTable:
    """Edge type that is written as CSR rows: its numbering, dtypes, sizes and files.

    A row is a node with its neighbours, in the direction of sampling.

    Attributes:
        rows, neighbors: new ids of the nodes that have rows, and of their neighbours.
        indptr: [num_rows + 1] pointers of the rows of all parts.
        draws: attributes of times and weights.
        neighbor_ids, edge_ids: True if original ids of neighbours, or of edges, are written.
        stages_attrs: True if attributes are kept with the split edges until these are sorted. If
            False, they are read from `edge`.
    """

    edge_type: EdgeType
    edge: EdgeSource
    neighbor_type: NodeType
    rows: Numbering
    neighbors: Numbering
    indptr: IntArray
    draws: DrawAttrs
    neighbor_ids: bool
    edge_ids: bool
    stages_attrs: bool

    @property
    def column_dtype(self) -> np.dtype[Any]:
        """Dtype in which neighbours' new ids are stored: int32 or int64."""
        return narrowest_int(len(self.neighbors.owners))

    @property
    def id_dtype(self) -> np.dtype[Any]:
        return narrowest_int(self.edge.num_edges)

    @property
    def is_timed(self) -> bool:
        """True if the edges, or the neighbours that they lead to, have times."""
        return self.edge_type in self.draws.timed or self.neighbor_type in self.draws.node_times

    @property
    def is_weighted(self) -> bool:
        return self.edge_type in self.draws.weighted

    def columns(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return {name: (dtype, shape of an entry)} of the data that are kept of split edges."""
        columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            ROW: (self.column_dtype, ()),
            COLUMN: (self.column_dtype, ()),
            EDGE_ID: (self.id_dtype, ()),
        }
        if self.stages_attrs:
            for name, feature in self.edge.attrs.items():
                columns[attr_column(name)] = (storage_dtype(feature.dtype), feature.row_shape)
        return columns

    def splitting_bytes(self) -> int:
        """Return the bytes of memory that an edge takes while the edge list is split by blocks."""
        return 24 + sum(_row_bytes(*column) for column in self.columns().values())

    def sorting_bytes(self) -> int:
        """Return the bytes of memory that an edge takes while its block is sorted."""
        column, edge_id = self.column_dtype.itemsize, self.id_dtype.itemsize
        width = 4 * column + 2 * edge_id + 8
        if self.is_timed:
            width += 24 + 2 * column + 2 * edge_id
        if self.is_weighted:
            width += 28
        if self.neighbor_ids:
            width += column
        attrs = [_row_bytes(storage_dtype(f.dtype), f.row_shape) for f in self.edge.attrs.values()]
        return width + sum(attrs) + max(attrs, default=0)

    def blocks_of(self, part: int, blocks: Int64Array) -> range:
        """Return the indices of a part's blocks. `blocks` has the first row of each block."""
        first, last = self.rows.book.bounds[part : part + 2]
        if first == last:
            return range(0)
        return range(*np.searchsorted(blocks, [first, last]).tolist())

    def files(self, part: int) -> dict[str, ArrayShape]:
        """Return {path: dtype and shape} of the arrays that are written for a part."""
        first, last = self.rows.book.bounds[part : part + 2]
        count = int(self.indptr[last]) - int(self.indptr[first])
        arrays: dict[str, tuple[npt.DTypeLike, int]] = {
            **({"time": (np.int64, count)} if self.is_timed else {}),
            "indptr": (narrowest_int(count), last - first + 1),
            "indices": (self.column_dtype, count),
            **({"edge_id": (self.id_dtype, count)} if self.edge_ids else {}),
            **({"neighbor_id": (self.column_dtype, count)} if self.neighbor_ids else {}),
        }
        if self.is_weighted:
            arrays |= {"weight_sum": (np.uint64, count), "weight_guide": (np.uint32, count)}
        files: dict[str, ArrayShape] = {
            name: (edge_path(part, self.edge_type, name), np.dtype(dtype), (length,))
            for name, (dtype, length) in arrays.items()
        }
        for name, feature in self.edge.attrs.items():
            path, dtype = edge_attr_path(part, self.edge_type, name), storage_dtype(feature.dtype)
            files[attr_column(name)] = path, dtype, (count, *feature.row_shape)
        return files


class SortedBlock(NamedTuple):
    """Sorted edges of a block, a range of rows.

    `arrays` has the rows to append to each file. `neighbors_by_part` is the [num_parts] number of
    neighbours by their part.
    """

    arrays: dict[str, Array]
    neighbors_by_part: Int64Array


class RowSorter:
    """Sorter of one type's split edges: by row, then by time, if any, then by index.

    `blocks` are [num_blocks + 1] bounds of the blocks' rows.
    """

    def __init__(self, table: RowTable, blocks: Int64Array, stage: Stage) -> None:
        self._table, self._blocks, self._stage = table, blocks, stage

    def sort(self, part: int, block: int) -> SortedBlock:
        """Return the sorted edges of a block, a range of rows of `part`.

        Raises:
            ValueError: the edges have changed, or the weights of a row add up to infinity.
        """
        table = self._table
        first, last = int(self._blocks[block]), int(self._blocks[block + 1])
        rows, columns, ids = self._stage.ends(block)
        indptr, columns, order = _native.coo_to_csr(
            rows, columns, last - first, len(table.neighbors.owners)
        )
        if not np.array_equal(indptr, table.indptr[first : last + 1] - table.indptr[first]):
            raise ValueError("the edges are not those that were counted: they have changed")
        ids = taken(ids, order)
        times = self._times(block, columns, ids, order)
        if times is not None:
            by_time = _native.sort_rows_by_time(indptr, times)
            if by_time is not None:
                columns, ids, order = (taken(array, by_time) for array in (columns, ids, order))
                times = taken(times, by_time)
        base, end = (int(table.indptr[b]) for b in table.rows.book.bounds[part : part + 2])
        pointers = table.indptr[first + 1 : last + 1] - table.indptr.dtype.type(base)
        arrays: dict[str, Array] = {
            **({} if times is None else {"time": times}),
            "indptr": pointers.astype(narrowest_int(end - base)),
            "indices": columns,
            **({"edge_id": ids} if table.edge_ids else {}),
        }
        if table.neighbor_ids:
            arrays["neighbor_id"] = taken(table.neighbors.old_of_new, columns)
        for name in table.edge.attrs:
            arrays[attr_column(name)] = self._attr(block, name, ids, order)
        if table.is_weighted:
            arrays |= self._weights(part, indptr, arrays)
        return SortedBlock(arrays, neighbors_by_part(columns, table.neighbors.book.bounds))

    def _attr(self, block: int, name: str, ids: IntArray, order: IntArray) -> Array:
        """Return an attribute of a block's edges in sorted `order`.

        `ids` are their list indices.
        """
        if self._table.stages_attrs:
            return taken(self._stage.read(block, attr_column(name)), order)
        return self._table.edge.attrs[name].gather(ids)

    def _times(
        self, block: int, columns: IntArray, ids: IntArray, order: IntArray
    ) -> Int64Array | None:
        table = self._table
        if table.edge_type in table.draws.timed:
            assert table.draws.time is not None
            name = table.draws.time.name
            rows = self._attr(block, name, ids, order)
            return table.draws.edge_times(table.edge_type, rows, table.edge.attrs[name].dtype)
        if table.neighbor_type in table.draws.node_times:
            originals = taken(table.neighbors.old_of_new, columns)
            return taken(table.draws.node_times[table.neighbor_type], originals)
        return None

    def _weights(
        self, part: int, indptr: IntArray, arrays: Mapping[str, Array]
    ) -> dict[str, Array]:
        table, name = self._table, self._table.draws.weight_attr
        assert name is not None
        weights = table.draws.weights(
            table.edge_type, arrays[attr_column(name)], table.edge.attrs[name].dtype
        )
        try:
            sums, guide = _native.weight_table(indptr, weights)
        except ValueError as error:
            raise ValueError(
                f"weights of edge type {table.edge_type}, part {part}: {error}"
            ) from None
        return {"weight_sum": sums, "weight_guide": guide}


def attr_column(name: str) -> str:
    """Return the name of the column, among the data of split edges, that holds an attribute."""
    return f"attr-{name}"


def taken(rows: AnyArray, positions: IntArray) -> AnyArray:
    """Return `rows[positions]`, computed while other Python threads can run."""
    out = np.empty((len(positions), *rows.shape[1:]), rows.dtype)
    _native.gather(rows, positions, out, None, 1)
    return out  # type: ignore[return-value]


def _row_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def neighbors_by_part(columns: IntArray, bounds: list[int]) -> Int64Array:
    """Return [num_parts] number of the new ids `columns` in each part's range of `bounds`."""
    if len(bounds) <= _FEW_PARTS + 1:
        below = [0, *(int(np.count_nonzero(columns < b)) for b in bounds[1:-1]), len(columns)]
        return np.diff(below)
    owners = np.searchsorted(np.array(bounds[1:-1], columns.dtype), columns, "right")
    return np.bincount(owners, minlength=len(bounds) - 1)
