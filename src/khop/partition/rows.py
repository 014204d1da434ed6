"""Writer of the parts' edges: cuts edge lists into compressed rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.partition.draws import DrawAttrs
from khop.partition.numbering import Numbering
from khop.partition.source import EdgeSource
from khop.storage.folder import (
    EdgeTypeMeta,
    FolderWriter,
    attr_metas,
    edge_attr_path,
    edge_path,
)
from khop.typing import EdgeDir, EdgeType, Int64Array, IntArray, NodeType


class RowWriter:
    """Writer of the edges of each part, compressed by row, and of all arrays in their order.

    Args:
        writer: writes the folder.
        numbering: new ids of each node type.
        edge_dir: rows are destinations ('in') or sources ('out').
        num_parts: number of parts.
        draws: times, by which rows are sorted, and weights.
        neighbor_ids: write original ids of neighbours, too.
        progress: called as progress(what, done, total).

    Attributes:
        edges_between_parts: [num_parts, num_parts] number of edges by part and part of the
            neighbour, of all edge types written so far.
    """

    def __init__(
        self,
        writer: FolderWriter,
        numbering: Mapping[NodeType, Numbering],
        edge_dir: EdgeDir,
        num_parts: int,
        draws: DrawAttrs,
        neighbor_ids: bool,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._writer = writer
        self._numbering = numbering
        self._edge_dir = edge_dir
        self._num_parts = num_parts
        self._draws = draws
        self._neighbor_ids = neighbor_ids
        self._progress = progress
        self.edges_between_parts = np.zeros((num_parts, num_parts), np.int64)

    def write(self, edge_type: EdgeType, edge: EdgeSource) -> EdgeTypeMeta:
        """Write an edge type.

        Raises:
            IndexError: an edge names a node that does not exist.
            ValueError: the weights of a row add up to infinity.
        """
        row_type, neighbor_type = edge_type[2], edge_type[0]
        if self._edge_dir == "out":
            row_type, neighbor_type = neighbor_type, row_type
        rows, neighbors = self._numbering[row_type], self._numbering[neighbor_type]
        indptr, indices, edge_ids = self._compress(edge_type, edge, rows, neighbors)
        bounds = [int(indptr[b]) for b in rows.book.bounds]
        timed = False
        for part in range(self._num_parts):
            first, last = rows.book.bounds[part], rows.book.bounds[part + 1]
            low, high = bounds[part], bounds[part + 1]
            own = (indptr[first : last + 1].astype(np.int64) - low).astype(
                narrowest_int(high - low)
            )
            columns, ids = indices[low:high], edge_ids[low:high]
            times = self._times(edge_type, neighbor_type, columns, ids)
            if times is not None:
                timed = True
                columns, ids, times = _sorted(own, columns, ids, times)
                self._writer.save(edge_path(part, edge_type, "time"), times)
            self._writer.save(edge_path(part, edge_type, "indptr"), own)
            self._writer.save(edge_path(part, edge_type, "indices"), columns)
            self._writer.save(edge_path(part, edge_type, "edge_id"), ids)
            if self._neighbor_ids:
                originals = neighbors.old_of_new[columns].astype(columns.dtype)
                self._writer.save(edge_path(part, edge_type, "neighbor_id"), originals)
            self._write_weights(part, edge_type, own, ids)
            for name, feature in edge.attrs.items():
                self._writer.save_rows(edge_attr_path(part, edge_type, name), feature, ids)
            # Bounds are few: counting neighbours below each bound gives the cut matrix's row.
            below = [int(np.count_nonzero(columns < b)) for b in neighbors.book.bounds]
            self.edges_between_parts[part] += np.diff(below)
            self._progress(f"edges of type {edge_type}", part + 1, self._num_parts)
        return EdgeTypeMeta(
            edge_type,
            bounds,
            "time" if timed else "edge_id",
            attr_metas(edge.attrs),
            edge_type in self._draws.weights,
            self._neighbor_ids,
        )

    def _compress(
        self, edge_type: EdgeType, edge: EdgeSource, rows: Numbering, neighbors: Numbering
    ) -> tuple[IntArray, IntArray, IntArray]:
        src, dst = edge.endpoints()
        keys, others = (dst, src) if self._edge_dir == "in" else (src, dst)
        try:
            return _native.coo_to_csr(
                keys,
                others,
                len(rows.owners),
                len(neighbors.owners),
                rows.new_of_old,
                neighbors.new_of_old,
            )
        except IndexError as error:
            raise IndexError(f"edge_index of edge type {edge_type}: {error}") from None

    def _times(
        self, edge_type: EdgeType, neighbor_type: NodeType, columns: IntArray, ids: IntArray
    ) -> Int64Array | None:
        if edge_type in self._draws.edge_times:
            return self._draws.edge_times[edge_type][ids]
        if neighbor_type in self._draws.node_times:
            originals = self._numbering[neighbor_type].old_of_new[columns]
            return self._draws.node_times[neighbor_type][originals]
        return None

    def _write_weights(self, part: int, edge_type: EdgeType, own: IntArray, ids: IntArray) -> None:
        weights = self._draws.weights.get(edge_type)
        if weights is None:
            return
        try:
            sums, guide = _native.weight_table(own, weights[ids])
        except ValueError as error:
            raise ValueError(f"weights of edge type {edge_type}, part {part}: {error}") from None
        self._writer.save(edge_path(part, edge_type, "weight_sum"), sums)
        self._writer.save(edge_path(part, edge_type, "weight_guide"), guide)


def _sorted(
    indptr: IntArray, columns: IntArray, ids: IntArray, times: Int64Array
) -> tuple[IntArray, IntArray, Int64Array]:
    order = _native.sort_rows_by_time(indptr, times)
    return (columns, ids, times) if order is None else (columns[order], ids[order], times[order])
