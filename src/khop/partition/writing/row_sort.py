"""Sorter of the edges of a block: they become rows of a part. Used by `RowWriter`.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int, storage_dtype
from khop.partition.draws import DrawAttrs
from khop.partition.out_of_core.stage import COLUMN, EDGE_ID, ROW, Stage
from khop.partition.source import EdgeSource
from khop.partition.writing.numbering import Numbering
from khop.storage.folder import edge_attr_path, edge_path
from khop.typing import Array, EdgeType, Int64Array, IntArray, NodeType

# Up to so many parts their neighbours are counted by as many comparisons.
_FEW_PARTS = 16

ArrayShape = tuple[str, np.dtype[Any], tuple[int, ...]]


@dataclass(frozen=True)
class RowTable:
    """An edge type that becomes rows.

    Attributes:
        edge_type, edge: its name and its edges.
        neighbor_type: node type of neighbours.
        rows, neighbors: new ids on either side.
        indptr: [num_rows + 1] pointers of all rows.
        draws: times, by which rows are sorted, and weights.
        neighbor_ids: original ids of neighbours are wanted, too.
        edge_ids: original ids of edges are wanted.
        stages_attrs: attributes are in the stage; if False, in the source alone.
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
        """Dtype of new ids of neighbours."""
        return narrowest_int(len(self.neighbors.owners))

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Dtype of edge ids."""
        return narrowest_int(self.edge.num_edges)

    @property
    def is_timed(self) -> bool:
        """True if edges, or neighbours, have times."""
        return self.edge_type in self.draws.timed or self.neighbor_type in self.draws.node_times

    @property
    def is_weighted(self) -> bool:
        """True if edges have weights."""
        return self.edge_type in self.draws.weighted

    def columns(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return dtype and shape of a row of each column of the stage."""
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
        """Return the bytes that an edge takes while a piece is split."""
        return 24 + sum(_row_bytes(*column) for column in self.columns().values())

    def sorting_bytes(self) -> int:
        """Return the bytes that an edge takes while its block is sorted."""
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
        """Return which blocks are a part's; `blocks` are the [num_blocks + 1] bounds of all."""
        first, last = self.rows.book.bounds[part : part + 2]
        if first == last:
            return range(0)
        return range(*np.searchsorted(blocks, [first, last]).tolist())

    def files(self, part: int) -> dict[str, ArrayShape]:
        """Return path, dtype and shape of each array of a part."""
        first, last = self.rows.book.bounds[part : part + 2]
        count = int(self.indptr[last]) - int(self.indptr[first])
        arrays: dict[str, tuple[Any, int]] = {
            **({"time": (np.int64, count)} if self.is_timed else {}),
            "indptr": (narrowest_int(count), last - first + 1),
            "indices": (self.column_dtype, count),
            **({"edge_id": (self.id_dtype, count)} if self.edge_ids else {}),
            **({"neighbor_id": (self.column_dtype, count)} if self.neighbor_ids else {}),
        }
        if self.is_weighted:
            arrays |= {"weight_sum": (np.uint64, count), "weight_guide": (np.uint32, count)}
        files = {
            name: (edge_path(part, self.edge_type, name), np.dtype(dtype), (length,))
            for name, (dtype, length) in arrays.items()
        }
        attrs = {
            attr_column(name): (
                edge_attr_path(part, self.edge_type, name),
                storage_dtype(feature.dtype),
                (count, *feature.row_shape),
            )
            for name, feature in self.edge.attrs.items()
        }
        return {**files, **attrs}


class SortedBlock(NamedTuple):
    """Rows of a part: name of each array -> what is appended; [num_parts] parts of neighbours."""

    arrays: dict[str, Array]
    neighbors_by_part: Int64Array


class RowSorter:
    """Sorter of blocks: by row, by time if there are times, else in the order of the list.

    Args:
        table: the edge type.
        blocks: [num_blocks + 1] bounds of the blocks' rows.
        stage: holds the blocks' edges.
    """

    def __init__(self, table: RowTable, blocks: Int64Array, stage: Stage) -> None:
        self._table, self._blocks, self._stage = table, blocks, stage

    def sort(self, part: int, block: int) -> SortedBlock:
        """Return the rows of a block, which lies in a part.

        Raises:
            ValueError: the edges have changed, or the weights of a row add up to infinity.
        """
        table = self._table
        first, last = int(self._blocks[block]), int(self._blocks[block + 1])
        rows, columns, ids = self._stage.ends(block)
        own, columns, places = _native.coo_to_csr(
            rows, columns, last - first, len(table.neighbors.owners)
        )
        if not np.array_equal(own, table.indptr[first : last + 1] - table.indptr[first]):
            raise ValueError("the edges are not those that were counted: they have changed")
        ids = taken(ids, places)
        times = self._times(block, columns, ids, places)
        if times is not None:
            order = _native.sort_rows_by_time(own, times)
            if order is not None:
                columns, ids, times, places = (
                    taken(array, order) for array in (columns, ids, times, places)
                )
        base, end = (int(table.indptr[b]) for b in table.rows.book.bounds[part : part + 2])
        pointers = table.indptr[first + 1 : last + 1] - table.indptr.dtype.type(base)
        found: dict[str, Array] = {
            **({} if times is None else {"time": times}),
            "indptr": pointers.astype(narrowest_int(end - base)),
            "indices": columns,
            **({"edge_id": ids} if table.edge_ids else {}),
        }
        if table.neighbor_ids:
            found["neighbor_id"] = taken(table.neighbors.old_of_new, columns)
        for name in table.edge.attrs:
            found[attr_column(name)] = self._attr(block, name, ids, places)
        if table.is_weighted:
            found |= self._weights(part, own, found)
        return SortedBlock(found, _by_part(columns, table.neighbors.book.bounds))

    def _attr(self, block: int, name: str, ids: IntArray, places: IntArray) -> Array:
        """Return an attribute of a block's edges, in their order."""
        if self._table.stages_attrs:
            rows: Array = taken(self._stage.read(block, attr_column(name)), places)
            return rows
        return self._table.edge.attrs[name].gather(ids)

    def _times(
        self, block: int, columns: IntArray, ids: IntArray, places: IntArray
    ) -> Int64Array | None:
        table = self._table
        if table.edge_type in table.draws.timed:
            assert table.draws.time is not None
            name = table.draws.time.name
            rows = self._attr(block, name, ids, places)
            return table.draws.edge_times(table.edge_type, rows, table.edge.attrs[name].dtype)
        if table.neighbor_type in table.draws.node_times:
            originals = taken(table.neighbors.old_of_new, columns)
            times: Int64Array = taken(table.draws.node_times[table.neighbor_type], originals)
            return times
        return None

    def _weights(self, part: int, own: IntArray, found: Mapping[str, Array]) -> dict[str, Array]:
        table, name = self._table, self._table.draws.weight_attr
        assert name is not None
        weights = table.draws.weights(
            table.edge_type, found[attr_column(name)], table.edge.attrs[name].dtype
        )
        try:
            sums, guide = _native.weight_table(own, weights)
        except ValueError as error:
            raise ValueError(
                f"weights of edge type {table.edge_type}, part {part}: {error}"
            ) from None
        return {"weight_sum": sums, "weight_guide": guide}


def attr_column(name: str) -> str:
    """Return the name of the column that holds an attribute."""
    return f"attr-{name}"


def taken(rows: Any, places: IntArray) -> Any:
    """Return rows at places; other threads go on meanwhile."""
    out = np.empty((len(places), *rows.shape[1:]), rows.dtype)
    _native.gather(rows, places, out, None, 1)
    return out


def _row_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _by_part(columns: IntArray, bounds: list[int]) -> Int64Array:
    """Return [num_parts] how many neighbours each part owns."""
    if len(bounds) <= _FEW_PARTS + 1:
        below = [0, *(int(np.count_nonzero(columns < b)) for b in bounds[1:-1]), len(columns)]
        return np.diff(below)
    owners = np.searchsorted(np.array(bounds[1:-1], columns.dtype), columns, "right")
    return np.bincount(owners, minlength=len(bounds) - 1)
