"""Writer of the parts' edges: edge lists, in memory or not, become compressed rows.

Three steps, of which the first two read the edge list piece by piece: edges of each row are
counted; edges are split by blocks of rows (`row_split`) and kept in a stage
(`khop.partition.out_of_core.stage`); each block is sorted (`row_sort`) and appended to its part's
files. Blocks are small enough for a cache, or for the memory that may be used: the result does not
depend on them. Who does the steps, threads or tasks on other machines, is the workspace's affair:
they get all that they need as arguments. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import numpy as np

from khop.partition.draws import DrawAttrs
from khop.partition.out_of_core.blocks import block_bounds
from khop.partition.out_of_core.stage import Stage
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import EdgeSource, bad_edge
from khop.partition.writing.numbering import Numbering
from khop.partition.writing.row_sort import RowSorter, RowTable
from khop.partition.writing.row_split import RowSplitter
from khop.storage.folder import ArrayWriter, EdgeTypeMeta, FolderWriter, attr_metas
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
        edge_ids: write original ids of edges.
        workspace: keeps what is between the steps.
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
        edge_ids: bool,
        workspace: Workspace,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._writer = writer
        self._numbering = numbering
        self._edge_dir = edge_dir
        self._num_parts = num_parts
        self._draws = draws
        self._neighbor_ids = neighbor_ids
        self._edge_ids = edge_ids
        self._workspace = workspace
        self._resources = workspace.resources
        self._progress = progress
        self.edges_between_parts = workspace.array(
            "cut", lambda: np.zeros((num_parts, num_parts), np.int64), changes=True
        )

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
        splitter = RowSplitter(edge, self._edge_dir, rows, neighbors)
        key = " ".join(map(repr, edge_type))
        indptr = self._workspace.array(
            f"rows of {key}", lambda: self._count(edge_type, edge, splitter)
        )
        table = RowTable(
            edge_type,
            edge,
            neighbor_type,
            rows,
            neighbors,
            indptr,
            self._draws,
            self._neighbor_ids,
            self._edge_ids,
            self._workspace.stages_attrs,
        )
        if self._workspace.is_done(key):
            self._note_parts(table)
        else:
            blocks = self._blocks(table)
            places = indptr[blocks].astype(np.int64)
            with self._workspace.stage(key, table.columns(), places) as stage:
                self._fill(table, splitter, blocks, stage)
                self._write_parts(table, blocks, stage)
            self._workspace.done(key)
        return EdgeTypeMeta(
            edge_type,
            [int(indptr[b]) for b in rows.book.bounds],
            "time" if table.is_timed else "edge_id",
            attr_metas(edge.attrs),
            table.is_weighted,
            self._neighbor_ids,
            self._edge_ids,
        )

    # The first step: edges of each row.

    def _count(self, edge_type: EdgeType, edge: EdgeSource, splitter: RowSplitter) -> IntArray:
        """Return the row pointers."""
        pieces = self._resources.pieces(edge.num_edges, 16)
        # Each thread that counts has counters of its own.
        groups = self._workspace.counters
        mine = [pieces[i::groups] for i in range(groups)]
        indptr: IntArray | None = None
        try:
            for i, counts in enumerate(self._workspace.in_order(splitter.count, mine)):
                if indptr is None:
                    indptr = np.require(counts, None, "W")
                else:
                    indptr += counts
                self._progress(f"counting edges of type {edge_type}", i + 1, groups)
        except IndexError as error:
            raise bad_edge(edge_type, error) from None
        assert indptr is not None
        np.cumsum(indptr, out=indptr)
        return indptr

    # The second step: edges of each block.

    def _blocks(self, table: RowTable) -> Int64Array:
        width = table.sorting_bytes()
        most = self._resources.block_edges(width, table.edge.num_edges)
        self._workspace.check_rows(table.edge_type, table.indptr, most, width)
        return block_bounds(table.indptr, table.rows.book.bounds, most)

    def _fill(
        self, table: RowTable, splitter: RowSplitter, blocks: Int64Array, stage: Stage
    ) -> None:
        pieces = self._resources.pieces(table.edge.num_edges, table.splitting_bytes())
        done = stage.filled.pieces
        split = partial(splitter.split, table, blocks)
        for i, nbytes in enumerate(self._workspace.fill(stage, split, pieces[done:]), done + 1):
            self._workspace.checkpoint(nbytes)
            self._progress(f"splitting edges of type {table.edge_type}", i, len(pieces))

    # The third step: rows of each part.

    def _write_parts(self, table: RowTable, blocks: Int64Array, stage: Stage) -> None:
        parts = [(p, stage.of(table.blocks_of(p, blocks))) for p in range(self._num_parts)]

        def take(item: tuple[int, Stage], neighbors_by_part: Int64Array) -> None:
            self.edges_between_parts[item[0]] += neighbors_by_part

        write = partial(write_part, table, blocks)
        for part, _ in self._workspace.write(write, parts, take):
            self._progress(f"edges of type {table.edge_type}", part + 1, self._num_parts)

    def _note_parts(self, table: RowTable) -> None:
        """Take up the files of an edge type that is complete."""
        for part in range(self._num_parts):
            for path, _, _ in table.files(part).values():
                self._writer.has(path)


def write_part(
    table: RowTable,
    blocks: Int64Array,
    writer: ArrayWriter,
    workspace: Workspace,
    item: tuple[int, Stage],
) -> Iterator[Int64Array]:
    """Sort the blocks of a part and append them to its files.

    Args:
        table: the edge type.
        blocks: [num_blocks + 1] bounds of the blocks' rows.
        writer: writes the files.
        workspace: its threads sort; it is told of each block.
        item: the part, and a stage that holds its blocks.

    Yields:
        [num_parts] parts of the neighbours of each block, before the workspace is told.
    """
    part, stage = item
    paths = table.files(part)
    # All are asked, even if the first is missing: what is complete is noted.
    known = [writer.has(path) for path, _, _ in paths.values()]
    if all(known):
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
