"""One edge type's adjacency, compressed by row."""

from __future__ import annotations

from typing import Literal

import numpy as np

from khop import _native
from khop.data.arrays import check_range, narrowest_int, to_ids
from khop.typing import ArrayLike, EdgeDir, IntArray

Layout = Literal["COO", "CSR", "CSC"]


class Topology:
    """Compressed rows: whose neighbours are drawn, and which they are.

    With `edge_dir='in'` rows are destinations and neighbours are sources (CSC in PyG's words); with
    'out' rows are sources (CSR). Within a row, neighbours keep the order of the edge list.

    Args:
        edge_index: [2, num_edges] int32 or int64, sources and destinations (COO); or a pair
            (indptr, indices) together with `input_layout`.
        edge_ids: [num_edges] id of each edge, default: its position in `edge_index`.
        layout: GraphLearn-for-PyTorch's name for the direction: 'CSR' (out) or 'CSC' (in).
        input_layout: what `edge_index` holds: 'COO', 'CSR' or 'CSC'.
        num_src: number of source nodes; default: largest id + 1.
        num_dst: number of destination nodes; default: `num_src` for COO input.
        edge_dir: 'in' or 'out'; default: what `layout` says, else 'in'.

    Attributes:
        indptr: [num_rows + 1], int32 if it fits, else int64.
        indices: [num_edges], int32 if it fits, else int64.
        edge_ids: [num_edges] id of each entry, or None if entry i is edge i.
    """

    indptr: IntArray
    indices: IntArray
    edge_ids: IntArray | None

    def __init__(
        self,
        edge_index: ArrayLike,
        edge_ids: ArrayLike | None = None,
        layout: Literal["CSR", "CSC"] | None = None,
        input_layout: Layout = "COO",
        num_src: int | None = None,
        num_dst: int | None = None,
        edge_dir: EdgeDir | None = None,
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
            self._from_coo(first, second, num_src, num_dst)
        elif input_layout in ("CSR", "CSC"):
            self._from_compressed(first, second, input_layout, num_src, num_dst)
        else:
            raise ValueError(f"input_layout must be 'COO', 'CSR' or 'CSC' (got '{input_layout}')")
        if edge_ids is not None:
            given = to_ids(edge_ids, "edge_ids")
            if len(given) != self.num_edges:
                raise ValueError(f"{len(given)} edge ids for {self.num_edges} edges")
            self.edge_ids = (
                np.ascontiguousarray(given) if self.edge_ids is None else given[self.edge_ids]
            )

    @classmethod
    def compressed(
        cls,
        indptr: IntArray,
        indices: IntArray,
        num_neighbors: int,
        edge_ids: IntArray | None = None,
        edge_dir: EdgeDir = "in",
    ) -> Topology:
        """Wraps arrays that are compressed already, sharing them.

        Args:
            indptr: [num_rows + 1] int32 or int64.
            indices: [num_edges] int32 or int64.
            num_neighbors: number of nodes that `indices` may name.
            edge_ids: [num_edges] id of each entry; None: entry i is edge i.
            edge_dir: what rows are: destinations ('in') or sources ('out').
        """
        self = cls.__new__(cls)
        self.edge_dir = edge_dir
        self.indptr, self.indices, self.edge_ids = indptr, indices, edge_ids
        self.num_neighbors = num_neighbors
        return self

    def _from_coo(
        self, src: IntArray, dst: IntArray, num_src: int | None, num_dst: int | None
    ) -> None:
        if src.dtype != dst.dtype or src.dtype not in (np.int32, np.int64):
            src, dst = src.astype(np.int64), dst.astype(np.int64)
        src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
        if len(src) != len(dst):
            raise ValueError(f"edge_index has {len(src)} sources but {len(dst)} destinations")
        if num_src is None:
            largest = [
                int(ids.max(initial=-1)) for ids in ((src, dst) if num_dst is None else (src,))
            ]
            num_src = max(largest) + 1
        num_dst = num_src if num_dst is None else num_dst
        keys, neighbors = (dst, src) if self.edge_dir == "in" else (src, dst)
        num_rows, num_cols = (num_dst, num_src) if self.edge_dir == "in" else (num_src, num_dst)
        self.indptr, self.indices, ids = _native.coo_to_csr(keys, neighbors, num_rows, num_cols)
        in_order = len(keys) == 0 or bool(np.all(keys[1:] >= keys[:-1]))
        self.edge_ids = None if in_order else ids
        self.num_neighbors = num_cols

    def _from_compressed(
        self,
        indptr: IntArray,
        indices: IntArray,
        input_layout: Layout,
        num_src: int | None,
        num_dst: int | None,
    ) -> None:
        wanted = "CSC" if self.edge_dir == "in" else "CSR"
        if input_layout != wanted:
            raise ValueError(
                f"edge_dir='{self.edge_dir}' draws from {wanted} rows, but the input is "
                f"{input_layout}: pass the edge list (input_layout='COO') instead"
            )
        given = num_src if self.edge_dir == "in" else num_dst
        self.num_neighbors = int(indices.max(initial=-1)) + 1 if given is None else given
        check_range(indices, self.num_neighbors, "edge_index")
        offset, column = narrowest_int(len(indices)), narrowest_int(self.num_neighbors)
        self.indptr = np.ascontiguousarray(indptr, dtype=offset)
        self.indices = np.ascontiguousarray(indices, dtype=column)
        self.edge_ids = None

    @property
    def num_rows(self) -> int:
        """Number of nodes whose neighbours are drawn."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    def csr(self) -> _native.Csr:
        """The kernels' view; raises ValueError if the arrays do not belong together."""
        return _native.Csr(self.indptr, self.indices)
