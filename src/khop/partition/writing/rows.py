"""Writer of the parts' edges, which turns edge lists into CSR rows.

There are three steps. The first two read the edge list piece by piece:

1. The edges of each row are counted.
2. Edges are split by blocks, which are ranges of rows, and kept in a stage
  (`khop.partition.out_of_core.stage`).
3. Each block is sorted (`row_sort`) and appended to the files of its part.

A block fits a cache, or the memory that the user allows. The result does not depend on blocks. The
steps run in threads, or as tasks on other machines. So functions get all data as arguments. Imports
no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.partition.out_of_core.resources import block_bounds, row_pointers
from khop.partition.out_of_core.stage import COLUMN, EDGE_ID, ROW, SplitPiece, Stage
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import EdgeSource, bad_edge
from khop.partition.writing.numbering import FolderJob, Numbering
from khop.partition.writing.row_sort import RowSorter, RowTable, attr_column
from khop.storage.folder import ArrayWriter, EdgeTypeMeta, attr_metas
from khop.typing import Array, EdgeDir, EdgeType, Int64Array, IntArray

Piece = tuple[int, int]
"""First edge and number of edges."""


def write_edge_type(
    job: FolderJob, edge_type: EdgeType, edge: EdgeSource, edges_between_parts: Int64Array
) -> EdgeTypeMeta:
    """Write the edges of a type in all parts as CSR rows. Return the type's entry for meta.json.

    Also adds counts to `edges_between_parts` [part of the row, part of the neighbour].

    Raises:
        IndexError: an edge names a node that does not exist.
        ValueError: the weights of a row add up to infinity.
    """
    workspace, resources = job.workspace, job.workspace.resources
    row_type, neighbor_type = edge_type[2], edge_type[0]
    if job.edge_dir == "out":
        row_type, neighbor_type = neighbor_type, row_type
    rows, neighbors = job.numbering[row_type], job.numbering[neighbor_type]
    splitter = RowSplitter(edge, job.edge_dir, rows, neighbors)
    key = " ".join(map(repr, edge_type))
    indptr = workspace.array(f"rows of {key}", lambda: _count(job, edge_type, splitter))
    table = RowTable(
        edge_type,
        edge,
        neighbor_type,
        rows,
        neighbors,
        indptr,
        job.draws,
        job.neighbor_ids,
        job.edge_ids,
        workspace.stages_attrs,
    )
    if workspace.is_done(key):
        for part in range(job.num_parts):
            for path, _, _ in table.files(part).values():
                job.writer.has(path)  # registers the file in the writer
    else:
        width = table.sorting_bytes()
        most = resources.block_edges(width, edge.num_edges)
        workspace.check_rows(edge_type, indptr, most, width)
        blocks = block_bounds(indptr, rows.book.bounds, most)
        pieces = resources.pieces(edge.num_edges, table.splitting_bytes())
        split = partial(splitter.split, table, blocks)
        write = partial(write_part, table, blocks)

        def take(item: tuple[int, Stage], neighbors_by_part: Int64Array) -> None:
            edges_between_parts[item[0]] += neighbors_by_part

        with workspace.stage(key, table.columns(), indptr[blocks].astype(np.int64)) as stage:
            done = stage.filled.pieces
            for i, nbytes in enumerate(workspace.fill(stage, split, pieces[done:]), done + 1):
                workspace.checkpoint(nbytes)
                job.progress(f"splitting edges of type {edge_type}", i, len(pieces))
            parts = [(p, stage.of(table.blocks_of(p, blocks))) for p in range(job.num_parts)]
            for part, _ in workspace.write(write, parts, take):
                job.progress(f"edges of type {edge_type}", part + 1, job.num_parts)
        workspace.done(key)
    return EdgeTypeMeta(
        edge_type,
        [int(indptr[b]) for b in rows.book.bounds],
        "time" if table.is_timed else "edge_id",
        attr_metas(edge.attrs),
        table.is_weighted,
        job.neighbor_ids,
        job.edge_ids,
    )


def _count(job: FolderJob, edge_type: EdgeType, splitter: RowSplitter) -> IntArray:
    """Count the edges of each row of a type. Return row pointers [num_rows + 1], in new ids."""
    workspace, counters = job.workspace, job.workspace.counters
    pieces = workspace.resources.pieces(splitter.edge.num_edges, 16)
    shares = [pieces[i::counters] for i in range(counters)]

    def report(done: int) -> None:
        job.progress(f"counting edges of type {edge_type}", done, counters)

    try:
        # Arrays in Ray's object store are read-only.
        counts = (np.require(c, None, "W") for c in workspace.in_order(splitter.count, shares))
        return row_pointers(counts, report)
    except IndexError as error:
        raise bad_edge(edge_type, error) from None


class RowSplitter:
    """Splitter of one type's edge list by blocks (ranges of rows). Ray tasks get a pickle of it."""

    def __init__(
        self, edge: EdgeSource, edge_dir: EdgeDir, rows: Numbering, neighbors: Numbering
    ) -> None:
        self._arguments = edge, edge_dir, rows, neighbors
        self.edge, self._num_rows = edge, len(rows.owners)
        self._rows_first = edge_dir == "out"
        # The constructor checks the maps, once for all pieces.
        self._split = _native.RowSplit(rows.new_of_old, neighbors.new_of_old, self._num_rows)

    def __reduce__(self) -> tuple[Callable[..., RowSplitter], tuple[object, ...]]:
        return RowSplitter, self._arguments

    def count(self, workspace: Workspace, pieces: Sequence[Piece]) -> IntArray:
        """Count the edges per row in some pieces: [num_rows + 1] integers, of which the first is 0.

        A piece is (first edge, number of edges).

        Raises:
            IndexError: an edge names a node that does not exist.
        """
        counts: IntArray = np.zeros(self._num_rows + 1, narrowest_int(self.edge.num_edges))
        for piece in pieces:
            self._split.count(*self._ends(piece), piece[0], counts[1:])
            workspace.release(self.edge)
        return counts

    def split(
        self, table: RowTable, blocks: Int64Array, workspace: Workspace, piece: Piece
    ) -> SplitPiece:
        """Sort a piece of the edge list by block.

        Args:
            table: the edge type.
            blocks: [num_blocks + 1] int64 bounds of the blocks' rows.
            workspace: releases pages that have been read.
            piece: (first edge, number of edges).
        """
        first, count = piece
        rows, neighbors = np.empty(count, table.column_dtype), np.empty(count, table.column_dtype)
        ids: IntArray = np.empty(count, table.id_dtype)
        counts = self._split.split(*self._ends(piece), first, blocks, rows, neighbors, ids)
        columns: dict[str, Array] = {ROW: rows, COLUMN: neighbors, EDGE_ID: ids}
        if table.stages_attrs:
            for name, feature in self.edge.attrs.items():
                columns[attr_column(name)] = feature.gather(ids)
        workspace.release(self.edge)
        return SplitPiece(counts, columns)

    def _ends(self, piece: Piece) -> tuple[IntArray, IntArray]:
        """Return original ids of a piece's edges: nodes with the rows, and their neighbours."""
        src, dst = self.edge.piece(*piece)
        return (src, dst) if self._rows_first else (dst, src)


def write_part(
    table: RowTable,
    blocks: Int64Array,
    writer: ArrayWriter,
    workspace: Workspace,
    item: tuple[int, Stage],
) -> Iterator[Int64Array]:
    """Sort the blocks (ranges of rows) of a part, and append them to its files.

    Args:
        table: the edge type.
        blocks: [num_blocks + 1] bounds of the blocks' rows.
        writer: writes the files.
        workspace: its threads sort. It may save the run's state after each block.
        item: the part, and the storage of its split edges.

    Yields:
        For each block, before the state is saved: [num_parts] number of its neighbours by part.
    """
    part, stage = item
    paths = table.files(part)
    # `has` is called for every file, even if the first is missing: it registers complete ones.
    complete = [writer.has(path) for path, _, _ in paths.values()]
    if all(complete):
        return
    sort = partial(RowSorter(table, blocks, stage).sort, part)
    with ExitStack() as stack:
        files = {name: stack.enter_context(writer.array(*file)) for name, file in paths.items()}
        pointers = files["indptr"]
        if pointers.rows == 0:
            pointers.append(np.zeros(1, pointers.dtype))
        # An earlier run may have written some of the part's blocks.
        begin = int(np.searchsorted(blocks, table.rows.book.bounds[part] + pointers.rows - 1))
        mine = table.blocks_of(part, blocks)
        for block in workspace.resources.in_order(sort, range(max(begin, mine.start), mine.stop)):
            for name, rows in block.arrays.items():
                files[name].append(rows)
            yield block.neighbors_by_part
            workspace.checkpoint(sum(rows.nbytes for rows in block.arrays.values()))
