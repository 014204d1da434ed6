"""Rows of a graph on disk: read past the page cache, and drawn from in memory. Imports no torch.

Uniform draws need row pointers alone. They pick positions, and read the neighbours there. All other
draws read whole rows, and draw from a small graph of these. Both have the draws of a graph in
memory. Row pointers and original ids of rows are mapped: they have the size of the nodes.

Samplers, trainers and partition servers use this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from khop import _native
from khop.data import RowStore
from khop.sampler.methods import NEIGHBOR
from khop.sampler.methods.access import Waiting
from khop.sampler.requests import Drawn, HopRequest, RowSet
from khop.storage.part import Part
from khop.typing import Array, BoolArray, Int64Array, IntArray

# Entries that are in memory at a time: some 20 bytes each, 60 with times and weights. To sort them
# takes some 25 ms.
_ENTRIES = 1 << 18


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """Whole rows in memory, as a graph of these alone.

    Attributes:
        csr: the graph. Row i is the i-th of `ids`.
        ids: [n] int64 ascending ids of the rows in the whole graph.
        edges: [num_edges] int64 edges of the whole graph.
    """

    csr: _native.Csr
    ids: Int64Array
    edges: Int64Array

    def renumbered(self, rows: RowSet) -> RowSet:
        """Return rows by their numbers in `csr`."""
        excluded = rows.excluded
        if excluded is not None:
            is_here = np.isin(excluded[0], self.ids)
            excluded = np.searchsorted(self.ids, excluded[0][is_here]), excluded[1][is_here]
        return replace(rows, ids=np.searchsorted(self.ids, rows.ids), excluded=excluded)

    def original(self, drawn: Drawn) -> Drawn:
        """Return draws from `csr` with the edges of the whole graph."""
        counts, neighbors, edges = drawn
        return counts, neighbors, None if edges is None else self.edges[edges]


class DiskRows:
    """Rows of an edge type whose neighbours are read past the page cache.

    Args:
        csr: the rows as mapped files. Its row pointers are read, and rows of more than
            `_ENTRIES` neighbours where a draw needs them whole.
        columns: stores of the arrays with an entry per edge, see `Part.columns`.
        first_row: id of the first row.
        first_edge: first edge in the whole graph.
        row_ids: [num_rows] original ids of the rows. If None, their ids.
    """

    def __init__(
        self,
        csr: _native.Csr,
        columns: Mapping[str, RowStore],
        first_row: int = 0,
        first_edge: int = 0,
        row_ids: IntArray | None = None,
    ) -> None:
        self.csr = csr
        self._columns = columns
        self._first_row, self._first_edge, self._row_ids = first_row, first_edge, row_ids

    @classmethod
    def of_part(cls, part: Part) -> list[DiskRows | None]:
        """Return the rows of each edge type of a part. If they are mapped, None."""
        meta, rows_by_type = part.meta, list[DiskRows | None]()
        for relation, edge_type in enumerate(meta.edge_types):
            columns = part.columns(relation)
            if columns is None:
                rows_by_type.append(None)
                continue
            rows = meta.row_type(edge_type)
            firsts = rows.bounds[part.part], edge_type.bounds[part.part]
            row_ids = part.node_ids(rows.name) if meta.renumbered else None
            rows_by_type.append(cls(part.csrs[relation], columns, *firsts, row_ids))
        return rows_by_type

    def draw(
        self, rows: RowSet, request: HopRequest, options: _native.HopOptions | None = None
    ) -> Waiting[Drawn]:
        """Draw neighbours of rows. See `RowSet.draw`."""
        csr = self.csr
        names = ["times"] if csr.has_times and (rows.times is not None or request.last) else []
        if request.weighted:
            names += ["weight_sums", "weight_guide"]
        if request.method.name != NEIGHBOR.name:
            names.append("neighbor_ids")
        if names or rows.excluded is not None:
            return (yield from self.by_rows(rows, lambda r, csr: r.draw(csr, request), names))
        if request.last or options is None:
            options = replace(request, last=False).options()
        counts, positions = _native.pick_positions(csr, rows.ids, options, rows.trees)
        neighbors = yield from self._neighbors(positions)
        if not request.with_edge:
            return counts, neighbors, None
        positions += self._first_edge
        return counts, neighbors, positions

    def induce(
        self, rows: RowSet, keys: Int64Array, num_nodes: int, with_edge: bool
    ) -> Waiting[Drawn]:
        """Find the neighbours of rows that are in a batch. See `RowSet.induce`."""
        return (
            yield from self.by_rows(
                rows, lambda r, csr: r.induce(csr, keys, num_nodes, with_edge), ["times"]
            )
        )

    def has_edges(self, ids: Int64Array, neighbors: Int64Array) -> Waiting[BoolArray]:
        """Return for each i whether an edge joins `ids[i]` and `neighbors[i]`, [n] bool."""
        exist = np.empty(len(ids), np.bool_)
        for piece, is_long in self._pieces(ids):
            rows = RowSet(ids[piece])
            if is_long:
                exist[piece] = _native.has_edges(self.csr, rows.ids, neighbors[piece])
                continue
            loaded = yield from self.load(rows.ids, [])
            own = loaded.renumbered(rows).ids
            exist[piece] = _native.has_edges(loaded.csr, own, neighbors[piece])
        return exist

    def load(self, ids: Int64Array, names: Sequence[str]) -> Waiting[LoadedRows]:
        """Read whole rows.

        Args:
            ids: [n] int64 ids of rows, in any order, also repeated.
            names: arrays that are read beside neighbours, if there are any.
        """
        ids = np.unique(ids)
        counts, positions = _native.pick_positions(self.csr, ids, _native.HopOptions(-1))
        indptr = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        arrays, tickets = {}, []
        for name in {"indices", *names} & self._columns.keys():
            column = self._columns[name]
            arrays[name] = column.stored.empty(len(positions))
            ticket = column.read(positions, arrays[name])
            if ticket is not None:
                tickets.append(ticket)
        if tickets:
            yield tickets
        for ticket in tickets:
            ticket.result()
        if self._row_ids is None:
            row_ids: IntArray = ids
            arrays["neighbor_ids"] = arrays["indices"]
        else:
            row_ids = self._row_ids[ids - self._first_row]
        csr = _native.Csr(
            indptr,
            arrays["indices"],
            row_ids,
            times=arrays.get("times"),
            weight_sums=arrays.get("weight_sums"),
            weight_guide=arrays.get("weight_guide"),
            neighbor_ids=arrays.get("neighbor_ids"),
        )
        positions += self._first_edge
        return LoadedRows(csr, ids, positions)

    def _neighbors(self, positions: Int64Array) -> Waiting[Array]:
        column = self._columns["indices"]
        neighbors = column.stored.empty(len(positions))
        for first in range(0, len(positions), _ENTRIES):
            piece = slice(first, first + _ENTRIES)
            ticket = column.read(positions[piece], neighbors[piece])
            if ticket is not None:
                yield [ticket]
                ticket.result()
        return neighbors

    def by_rows(
        self, rows: RowSet, answer: Callable[[RowSet, _native.Csr], Drawn], names: Sequence[str]
    ) -> Waiting[Drawn]:
        """Call `answer` with pieces of whole rows in memory, and return the joined answers.

        Args:
            rows: the rows.
            answer: function from rows and a graph that has them to draws from it.
            names: arrays that it needs beside neighbours.
        """
        answers: list[Drawn] = []
        for piece, is_long in self._pieces(rows.ids):
            some = replace(
                rows,
                ids=rows.ids[piece],
                trees=None if rows.trees is None else rows.trees[piece],
                times=None if rows.times is None else rows.times[piece],
            )
            if is_long:
                answers.append(answer(some, self.csr))
                continue
            loaded = yield from self.load(some.ids, names)
            answers.append(loaded.original(answer(loaded.renumbered(some), loaded.csr)))
        if len(answers) == 1:
            return answers[0]
        counts, neighbors, edges = zip(*answers, strict=True)
        with_edge = all(some is not None for some in edges)
        joined = np.concatenate(edges) if with_edge else None
        return np.concatenate(counts), np.concatenate(neighbors), joined

    def _pieces(self, ids: Int64Array) -> Iterator[tuple[slice, bool]]:
        """Divide rows into pieces of `_ENTRIES`. Longer rows are alone, and the second is True."""
        ends = np.cumsum(_native.degrees(self.csr, ids))
        first, before = 0, 0
        while first < len(ids) or first == 0:
            end = max(int(np.searchsorted(ends, before + _ENTRIES, side="right")), first + 1)
            after = int(ends[end - 1]) if len(ids) else 0
            yield slice(first, end), after - before > _ENTRIES
            first, before = end, after
