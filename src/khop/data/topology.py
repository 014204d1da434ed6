"""One edge type's adjacency, compressed by row."""

from __future__ import annotations

from typing import Literal

import numpy as np

from khop import _native
from khop.data.arrays import check_count, check_pointers, check_range, narrowest_int, to_ids
from khop.data.times import time_keys
from khop.data.weights import weight_values
from khop.typing import Array, ArrayLike, EdgeDir, Float64Array, GraphLayout, Int64Array, IntArray


class Topology:
    """Adjacency in compressed rows: one row per node whose neighbours are drawn.

    With `edge_dir='in'` rows are destinations and neighbours are sources (CSC in PyG's words). With
    'out' rows are sources (CSR). Within a row, neighbours keep the order of the edge list. With
    times they are sorted by time, and neighbours of equal times keep the order of the edge list.

    Args:
        edge_index: [2, num_edges] int32 or int64, sources and destinations (COO). With another
            `input_layout` a pair (indptr, indices).
        edge_ids: [num_edges] id of each edge. If None, its position in `edge_index`.
        layout: GraphLearn-for-PyTorch's name for the direction: 'CSR' (out) or 'CSC' (in).
        input_layout: form of `edge_index`: 'COO', 'CSR' or 'CSC'.
        num_src: number of source nodes. If None, largest id + 1.
        num_dst: number of destination nodes. If None, `num_src` for COO input.
        edge_dir: 'in' or 'out'. If None, the direction of `layout`, else 'in'.
        edge_time: [num_edges] time of each edge, integers or floats, in the order of `edge_index`.
        node_time: [num_neighbors] time of each neighbour, for its edges, in place of `edge_time`.
        weights: [num_edges] weight of each edge for weighted draws, finite and not negative, in
            the order of `edge_index`.
        is_sorted: True if the edge list is in order of rows, and within rows in order of time.
            Sorting is then left out, and the order is checked in one pass.

    Attributes:
        indptr: [num_rows + 1], int32 if it fits, else int64.
        indices: [num_edges], int32 if it fits, else int64.
        edge_ids: [num_edges] id of each entry (of `indices`), or None if entry i is edge i.
        times: [num_edges] int64 key (`khop.data.times`) of each entry's time, or None.
        weight_sums: [num_edges] uint64, with `weight_guide` the table of weighted draws
            (`_native.weight_table`), or None.
        weight_guide: [num_edges] uint32, or None.

    Raises:
        TypeError, ValueError, IndexError: arguments that do not fit one another, NaN times,
            negative or infinite weights, an edge list that is not sorted although `is_sorted`.

    Example:
        >>> topology = Topology(np.array([[1, 2, 0], [0, 0, 2]]))
        >>> topology.indptr.tolist(), topology.indices.tolist()
        ([0, 2, 2, 3], [1, 2, 0])
    """

    indptr: IntArray
    indices: IntArray
    edge_ids: IntArray | None
    times: Int64Array | None
    weight_sums: Array | None
    weight_guide: Array | None
    _weights: tuple[Array, IntArray | None] | None

    def __init__(
        self,
        edge_index: ArrayLike | tuple[ArrayLike, ArrayLike],
        edge_ids: ArrayLike | None = None,
        layout: Literal["CSR", "CSC"] | None = None,
        input_layout: GraphLayout = "COO",
        num_src: int | None = None,
        num_dst: int | None = None,
        edge_dir: EdgeDir | None = None,
        *,
        edge_time: ArrayLike | None = None,
        node_time: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        is_sorted: bool = False,
    ) -> None:
        if layout not in (None, "CSR", "CSC"):
            raise ValueError(f"layout must be 'CSR' or 'CSC' (got '{layout}')")
        named: EdgeDir | None = {"CSR": "out", "CSC": "in"}.get(layout or "")  # type: ignore[assignment]
        if edge_dir not in (None, "in", "out"):
            raise ValueError(f"edge_dir must be 'in' or 'out' (got '{edge_dir}')")
        if named and edge_dir and named != edge_dir:
            raise ValueError(f"layout='{layout}' contradicts edge_dir='{edge_dir}'")
        self.edge_dir: EdgeDir = edge_dir or named or "in"
        if len(edge_index) != 2:
            raise ValueError(
                f"edge_index must have two rows, sources and destinations (got {len(edge_index)})"
            )
        first, second = to_ids(edge_index[0], "edge_index"), to_ids(edge_index[1], "edge_index")
        if input_layout == "COO":
            order = self._from_coo(first, second, num_src, num_dst, is_sorted)
        elif input_layout in ("CSR", "CSC"):
            self._from_compressed(first, second, input_layout, num_src, num_dst)
            order = None
        else:
            raise ValueError(f"input_layout must be 'COO', 'CSR' or 'CSC' (got '{input_layout}')")
        self.times = self._times_of(order, edge_time, node_time)
        order = self._sort_by_time(order, is_sorted)
        self._weigh(order, weights)
        self.edge_ids = order
        if edge_ids is not None:
            ids = to_ids(edge_ids, "edge_ids")
            if len(ids) != self.num_edges:
                raise ValueError(f"{len(ids)} edge ids for {self.num_edges} edges")
            if ids.dtype not in (np.int32, np.int64):
                ids = ids.astype(np.int64)
            self.edge_ids = np.ascontiguousarray(ids) if order is None else ids[order]

    @classmethod
    def compressed(
        cls,
        indptr: IntArray,
        indices: IntArray,
        num_neighbors: int,
        edge_ids: IntArray | None = None,
        edge_dir: EdgeDir = "in",
        times: Int64Array | None = None,
        weight_sums: Array | None = None,
        weight_guide: Array | None = None,
    ) -> Topology:
        """Make a topology of arrays that are compressed already. It shares their memory.

        Args:
            indptr: [num_rows + 1] int32 or int64.
            indices: [num_edges] int32 or int64.
            num_neighbors: number of nodes of which `indices` has ids.
            edge_ids: [num_edges] id of each entry. If None, entry i is edge i.
            edge_dir: rows are destinations ('in') or sources ('out').
            times: [num_edges] int64 keys of times, ascending within each row.
            weight_sums: [num_edges] uint64, from `_native.weight_table`.
            weight_guide: [num_edges] uint32, from the same function.
        """
        self = cls.__new__(cls)
        self.edge_dir = edge_dir
        self.indptr, self.indices, self.edge_ids = indptr, indices, edge_ids
        self.times, self.weight_sums, self.weight_guide = times, weight_sums, weight_guide
        self.num_neighbors = num_neighbors
        self._weights = None
        return self

    def _from_coo(
        self,
        src: IntArray,
        dst: IntArray,
        num_src: int | None,
        num_dst: int | None,
        is_sorted: bool,
    ) -> IntArray | None:
        """Compress an edge list (`src`, `dst`) to `indptr` and `indices`.

        Returns the position in the list of each entry, or None if the order is the same.
        """
        if src.dtype != dst.dtype or src.dtype not in (np.int32, np.int64):
            src, dst = src.astype(np.int64), dst.astype(np.int64)
        src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
        if len(src) != len(dst):
            raise ValueError(f"edge_index has {len(src)} sources but {len(dst)} destinations")
        if num_src is None:
            largest = [
                int(ids.max(initial=-1)) for ids in ((src, dst) if num_dst is None else (src,))
            ]
            num_src = check_count(max(largest) + 1, "the largest id of edge_index plus one")
        num_src = check_count(num_src, "num_src")
        num_dst = num_src if num_dst is None else check_count(num_dst, "num_dst")
        ends = (dst, num_dst, "dst"), (src, num_src, "src")
        rows, columns = ends if self.edge_dir == "in" else ends[::-1]
        (keys, num_rows, side), (neighbors, num_cols, _) = rows, columns
        order: IntArray
        try:
            self.indptr, self.indices, order = _native.coo_to_csr(
                keys, neighbors, num_rows, num_cols
            )
        except MemoryError as error:
            raise MemoryError(
                f"{error}: the rows of {num_rows} nodes with {len(keys)} edges do not fit; is the "
                "number of nodes right?"
            ) from None
        self.num_neighbors = num_cols
        descents = keys[1:] < keys[:-1]
        if not descents.any():
            return None
        if is_sorted:
            edge = int(np.argmax(descents)) + 1
            raise ValueError(
                f"is_sorted=True, but edge {edge} ({side} {keys[edge]}) comes after {side} "
                f"{keys[edge - 1]}: sort the edges, or leave is_sorted out"
            )
        return order

    def _from_compressed(
        self,
        indptr: IntArray,
        indices: IntArray,
        input_layout: GraphLayout,
        num_src: int | None,
        num_dst: int | None,
    ) -> None:
        layout = "CSC" if self.edge_dir == "in" else "CSR"
        if input_layout != layout:
            raise ValueError(
                f"edge_dir='{self.edge_dir}' draws from {layout} rows, but the input is "
                f"{input_layout}: pass the edge list (input_layout='COO') instead"
            )
        name, count = ("num_src", num_src) if self.edge_dir == "in" else ("num_dst", num_dst)
        if count is None:
            name, count = "the largest id of edge_index plus one", int(indices.max(initial=-1)) + 1
        self.num_neighbors = check_count(count, name)
        check_pointers(indptr, len(indices), "edge_index")
        row_name, rows = ("num_dst", num_dst) if self.edge_dir == "in" else ("num_src", num_src)
        if rows is not None and check_count(rows, row_name) != len(indptr) - 1:
            raise ValueError(
                f"indptr has {len(indptr) - 1} rows, but {row_name}={rows}: pass one pointer for "
                "each row, and one more"
            )
        check_range(indices, self.num_neighbors, "edge_index")
        self.indptr = np.ascontiguousarray(indptr, dtype=narrowest_int(len(indices)))
        self.indices = np.ascontiguousarray(indices, dtype=narrowest_int(self.num_neighbors))

    def _sort_by_time(self, order: IntArray | None, is_sorted: bool) -> IntArray | None:
        """Sort the entries of each row by time, or check that they are, if `is_sorted`.

        `order` has the position of each entry in the edge list, or is None for the same order.
        Returns it for the sorted entries.
        """
        if self.times is None:
            return order
        if is_sorted:
            row = _native.first_row_out_of_order(self.indptr, self.times)
            if row >= 0:
                raise ValueError(
                    f"is_sorted=True, but the times of the neighbours of node {row} are not in "
                    "ascending order: sort them, or leave is_sorted out"
                )
            return order
        by_time = _native.sort_rows_by_time(self.indptr, self.times)
        if by_time is None:
            return order
        self.indices, self.times = self.indices[by_time], self.times[by_time]
        return by_time if order is None else order[by_time]

    def _times_of(
        self, order: IntArray | None, edge_time: ArrayLike | None, node_time: ArrayLike | None
    ) -> Int64Array | None:
        if node_time is not None:
            if edge_time is not None:
                raise ValueError("edge_time and node_time exclude each other: pass one of them")
            keys = time_keys(node_time, "node_time")
            if len(keys) != self.num_neighbors:
                raise ValueError(
                    f"node_time has {len(keys)} entries for {self.num_neighbors} nodes"
                )
            return keys[self.indices]
        if edge_time is None:
            return None
        keys = time_keys(edge_time, "edge_time")
        if len(keys) != self.num_edges:
            raise ValueError(f"edge_time has {len(keys)} entries for {self.num_edges} edges")
        return keys if order is None else keys[order]

    def _weigh(self, order: IntArray | None, weights: ArrayLike | None) -> None:
        self.weight_sums = self.weight_guide = self._weights = None
        if weights is None:
            return
        values = weight_values(weights)
        if len(values) != self.num_edges:
            raise ValueError(f"{len(values)} weights for {self.num_edges} edges")
        stored = values if order is None else values[order]
        self.weight_sums, self.weight_guide = _native.weight_table(self.indptr, stored)
        self._weights = values, order  # the user's memory, as a rule: no copy

    def weights_of(self, entries: Int64Array) -> Float64Array:
        """Return [n] weights of the edges at `entries`, [n] int64 positions in `indices`.

        Raises:
            ValueError: the topology has no weights, or only the table that draws use.
        """
        if self._weights is None:
            raise ValueError("the weights of the graph's edges are not known, only their table")
        values, order = self._weights
        chosen = values[entries if order is None else order[entries]]
        return chosen.astype(np.float64)

    @property
    def num_rows(self) -> int:
        """Number of nodes whose neighbours are drawn."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    def csr(self) -> _native.Csr:
        """Return the adjacency as the object that kernels take.

        Raises:
            ValueError: the arrays do not fit one another.
        """
        return _native.Csr(
            self.indptr,
            self.indices,
            times=self.times,
            weight_sums=self.weight_sums,
            weight_guide=self.weight_guide,
        )
