"""Aggregation over the whole graph: each node's row from the rows of its neighbours.

A part has all edges of its rows. `RowEdges` has them in blocks of bounded size, and `Aggregation`
reduces a block. Used by trainers and by `khop propagate`. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data import RowStore
from khop.data.encoding import as_float32
from khop.storage.folder import EdgeTypeMeta, FolderMeta
from khop.typing import Array, Int64Array, IntArray

EDGES_AT_ONCE = 1 << 20
"""Edges of a block. A row with more edges is a block of its own."""
ROWS_AT_ONCE = 1 << 16
"""Maximum rows of a block."""


class Block(NamedTuple):
    """Consecutive rows of a part with all their entries.

    Attributes:
        positions: [n] int64 positions of the rows in the folder's order.
        first: [n + 1] int64 first entry of each row.
        neighbors: [m] position of each entry's neighbour in the folder's order.
        weights: [m] float32 weight of each entry, or None.
    """

    positions: Int64Array
    first: Int64Array
    neighbors: IntArray
    weights: Array | None

    def sums(self) -> Array:
        """Return the sum of weights of each row, [n] float32. Entries without weights count 1."""
        if self.weights is None:
            return np.diff(self.first).astype(np.float32)
        sums = np.zeros(len(self.positions), np.float32)
        rows = np.repeat(np.arange(len(sums)), np.diff(self.first))
        _native.scatter(sums, rows, self.weights, "add")
        return sums

    def with_self_loops(self) -> Block:
        """Return a block whose rows without an edge to themselves end with one of weight 1."""
        rows = np.repeat(np.arange(len(self.positions)), np.diff(self.first))
        lacks = np.ones(len(self.positions), bool)
        lacks[rows[self.neighbors == self.positions[rows]]] = False
        ends = self.first[1:][lacks]
        neighbors = np.insert(self.neighbors, ends, self.positions[lacks])
        weights = self.weights
        if weights is not None:
            weights = np.insert(weights, ends, np.float32(1))
        first = self.first + np.concatenate([[0], np.cumsum(lacks)])
        return Block(self.positions, first, neighbors, weights)


class RowEdges(NamedTuple):
    """The edges of a part's rows, of one edge type.

    Attributes:
        low: position of the first row in the folder's order.
        indptr: [num_rows + 1] row pointers.
        neighbors: [num_edges] positions of the neighbours in the folder's order.
        weights: rows of an edge attribute with weights, or None.
    """

    low: int
    indptr: IntArray
    neighbors: IntArray
    weights: RowStore | None

    def spans(self, edges_at_once: int, rows_at_once: int) -> Iterator[tuple[int, int]]:
        """Yield the first row, and the last plus one, of each block."""
        begin, num_rows = 0, len(self.indptr) - 1
        while begin < num_rows:
            limit = int(self.indptr[begin]) + edges_at_once
            end = int(np.searchsorted(self.indptr, limit, side="right")) - 1
            end = min(max(end, begin + 1), begin + rows_at_once, num_rows)
            yield begin, end
            begin = end

    def block(self, begin: int, end: int) -> Block:
        """Return the rows from `begin` to before `end`."""
        entries = slice(int(self.indptr[begin]), int(self.indptr[end]))
        weights = None
        if self.weights is not None:
            rows = self.weights.gather(np.arange(entries.start, entries.stop))
            weights = as_float32(rows, self.weights.dtype, self.weights.encoding)
        return Block(
            np.arange(self.low + begin, self.low + end),
            self.indptr[begin : end + 1].astype(np.int64) - int(self.indptr[begin]),
            self.neighbors[entries],
            weights,
        )


@dataclass(frozen=True)
class Aggregation:
    """Reduction of the rows of a node's neighbours to one row.

    Attributes:
        edge_type: index of the edge type.
        reduce: 'sum', 'mean', 'min' or 'max'.
        weight: edge attribute with weights, or None.
        norm: 'row', 'sym' or None.
        self_loops: whether each node without an edge to itself gets one, of weight 1.
    """

    edge_type: int
    reduce: str = "sum"
    weight: str | None = None
    norm: str | None = None
    self_loops: bool = False

    def described(self, meta: FolderMeta) -> EdgeTypeMeta:
        """Return the description of the edge type."""
        return meta.edge_types[self.edge_type]

    def check(self, meta: FolderMeta, num_hops: int) -> None:
        """Raise an error unless the options fit one another and the folder."""
        described = self.described(meta)
        if self.reduce not in ("sum", "mean", "min", "max"):
            raise ValueError(f"reduce must be 'sum', 'mean', 'min' or 'max' (got {self.reduce!r})")
        if self.norm not in (None, "sym", "row") or (self.norm and self.reduce != "sum"):
            raise ValueError(f"norm must be None, or 'sym' or 'row' of sums (got {self.norm!r})")
        if num_hops < 1:
            raise ValueError(f"hops must be 1 or more (got {num_hops})")
        is_between_types = described.name[0] != described.name[2]
        if is_between_types and (num_hops > 1 or self.norm == "sym" or self.self_loops):
            raise ValueError(
                "several hops, norm='sym' and self_loops need edges within one node type"
            )
        if self.weight is None:
            return
        if self.weight not in described.attrs:
            raise KeyError(
                f"edges {described.name} have no attribute '{self.weight}': there are "
                f"{list(described.attrs)}"
            )
        if described.attrs[self.weight].shape != ():
            raise ValueError(f"weight '{self.weight}' must be one number per edge")

    def block(self, edges: RowEdges, begin: int, end: int) -> Block:
        """Return rows of a part with the entries that this aggregation reduces."""
        block = edges.block(begin, end)
        return block.with_self_loops() if self.self_loops else block

    def reduce_rows(
        self,
        block: Block,
        neighbors: IntArray,
        values: Sequence[Array],
        out: Array,
        roots: tuple[Array, Array] | None = None,
    ) -> None:
        """Reduce the rows of each node's neighbours.

        Args:
            block: the nodes.
            neighbors: [m] row of `values` of each entry's neighbour.
            values: parts of a table, one after the other: arrays of [num_rows, width] float32.
            out: [n, width] float32. Rows without entries get zeros.
            roots: for 'sym', `inverse_root` of the degrees of the nodes [n], and of the neighbours
                of all entries [m].

        Raises:
            IndexError, ValueError: the edges are damaged.
        """
        weights = block.weights
        if roots is not None:
            near, far = roots
            scale = far * np.repeat(near, np.diff(block.first))
            weights = scale if weights is None else weights * scale
        reduce = "sum" if self.reduce == "mean" else self.reduce
        _native.aggregate(block.first, neighbors, weights, values, reduce, out)
        if self.reduce == "mean" or self.norm == "row":
            # A mean is over entries, as PyG's.
            counted = block if self.norm == "row" else block._replace(weights=None)
            sums = counted.sums()[:, None]
            np.divide(out, sums, out=out, where=sums != 0)


def inverse_root(degrees: Array) -> Array:
    """Return 1 / sqrt(degree), 0 for degrees that are not above 0."""
    out = np.zeros_like(degrees)
    np.divide(1, np.sqrt(degrees, where=degrees > 0, out=out.copy()), out=out, where=degrees > 0)
    return out
