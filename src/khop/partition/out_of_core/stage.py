"""Stages: storage of the edges of one type until they are sorted, in memory or in files.

A partitioner first splits the edge list by blocks, which are ranges of rows. A block's edges are
contiguous and keep the order of the edge list. Sorting block after block then sorts all edges.
Imports no torch.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np

from khop.codec import AtMost, Id, Word
from khop.data.arrays import bytes_of
from khop.private_folders import PrivateFolder
from khop.storage.folder import explained_write
from khop.typing import Array, Int64Array, IntArray

ROW, COLUMN, EDGE_ID = "row", "column", "edge_id"

ANEW = "nothing of it is kept; run the same again to begin anew"


class Column(Protocol):
    """Array with one entry per edge (row, neighbour, id or attribute), block of rows by block."""

    def write(self, first: int, rows: Array) -> None:
        """Write `rows` into the column, from position `first` on."""

    def read(self, first: int, last: int) -> Array:
        """Return the entries from position `first` to before `last`."""

    def discard(self) -> None:
        """Free the memory or disk space. The column cannot be read afterwards."""


class MemoryColumn:
    """Column of edges in memory. It raises MemoryError if memory does not suffice."""

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        # NumPy would ask for huge pages. If memory is full of cached files, the system moves them
        # away for each, which takes longer than writing the column.
        nbytes = max(1, count * dtype.itemsize)
        try:
            pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            raise MemoryError(
                f"no memory for {nbytes:,} bytes of {count:,} edges: with memory= (--memory) they "
                "go through files"
            ) from None
        self._array: Array = np.frombuffer(pages, dtype, count)

    def write(self, first: int, rows: Array) -> None:
        self._array[first : first + len(rows)] = rows

    def read(self, first: int, last: int) -> Array:
        return self._array[first:last]

    def discard(self) -> None:
        self._array = self._array[:0].copy()


class FileColumn:
    """Column of edges in a file. An existing file keeps its content, so that a run can resume.

    Raises:
        OSError: the disk has no space for the file.
        SecurityError: another user has made the file, or it is a symbolic link.
    """

    def __init__(
        self,
        folder: PrivateFolder,
        name: str,
        dtype: np.dtype[Any],
        row_shape: tuple[int, ...],
        count: int,
    ) -> None:
        self.path, self._dtype, self._row_shape = folder.path / name, dtype, row_shape
        self._folder, self._name = folder, name
        self._width = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize
        try:
            self._opened = folder.update(name, buffering=0)
        except FileNotFoundError:
            folder.create(name).close()
            self._opened = folder.update(name, buffering=0)
        self._file = self._opened.fileno()
        with explained(self.path, f"{count * self._width:,} bytes"):
            # Allocate all of it now: a full disk is an error before the work, not after it.
            if count * self._width > os.fstat(self._file).st_size:
                os.posix_fallocate(self._file, 0, count * self._width)

    def write(self, first: int, rows: Array) -> None:
        if rows.nbytes == 0:
            return
        offset, content = first * self._width, bytes_of(rows)
        with explained(self.path, f"{rows.nbytes:,} bytes"):
            while content:
                done = os.pwrite(self._file, content, offset)
                offset, content = offset + done, content[done:]

    def read(self, first: int, last: int) -> Array:
        rows: Array = np.empty((last - first, *self._row_shape), self._dtype)
        if rows.nbytes == 0:
            return rows
        offset, room = first * self._width, bytes_of(rows)
        while room:
            done = os.preadv(self._file, [room], offset)
            if done == 0:
                raise ValueError(f"stage file '{self.path}' is too short: {ANEW}")
            offset, room = offset + done, room[done:]
        return rows

    def sync(self) -> None:
        """Flush the file to the disk."""
        with explained(self.path, "all"):
            os.fsync(self._file)

    def close(self) -> None:
        self._opened.close()

    def discard(self) -> None:
        self.close()
        self._folder.unlink(self._name)


def explained(path: Path, content: str) -> AbstractContextManager[None]:
    """Context that adds the file, its `content`, free space and advice to an error of writing."""
    return explained_write(
        f"write {content} of stage file '{path}'",
        path if path.is_dir() else path.parent,
        "What is done is kept: make room, and run the same again to go on",
    )


class SplitPiece(NamedTuple):
    """Range of the edge list, with its edges sorted by block. A block is a range of rows.

    Attributes:
        counts: [num_blocks] int64 number of edges of each block.
        columns: name -> array with one entry per edge: row, neighbour, id or attribute.
    """

    counts: Int64Array
    columns: Mapping[str, Array]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    def blocks(self) -> Iterator[tuple[int, dict[str, Array]]]:
        """Yield, for each block that has edges, its index and its columns by name."""
        ends = np.cumsum(self.counts)
        for block in np.flatnonzero(self.counts).tolist():
            last = int(ends[block])
            mine = slice(last - int(self.counts[block]), last)
            yield block, {name: column[mine] for name, column in self.columns.items()}


ENTRIES = AtMost(1 << 40)
"""Bound of lists in journals, so high that only memory limits them."""


@dataclass
class Filled:
    """State of a stage that is partly filled, from which a later run resumes.

    `pieces` is the number of pieces of the edge list that it has. `cursors` are positions after the
    last edge of each block. `checksums` has one per column and block.
    """

    pieces: Id
    cursors: Annotated[list[Id], ENTRIES]
    checksums: dict[str, Annotated[list[Word], ENTRIES]]

    def check(self, columns: Iterable[str], starts: Int64Array) -> None:
        """Raise ValueError if this state is of other columns or blocks (first edges `starts`)."""
        blocks = len(starts) - 1
        lengths = {name: len(sums) for name, sums in self.checksums.items()}
        cursors = np.array(self.cursors, np.int64)
        if (
            lengths != dict.fromkeys(columns, blocks)
            or len(cursors) != blocks
            or np.any((cursors < starts[:-1]) | (cursors > starts[1:]))
        ):
            raise ValueError(f"the journal does not fit the stage that it speaks of: {ANEW}")


class Stage:
    """Storage of the edges of one type, split by blocks (ranges of rows), until they are sorted.

    Args:
        columns: columns by name: `ROW`, `COLUMN`, `EDGE_ID`, and attributes if they are staged.
        starts: [num_blocks + 1] int64, the first edge of each block.
        filled: state that an interrupted run left. If None, the stage is empty.

    Raises:
        ValueError: `filled` does not fit the columns or blocks.
    """

    def __init__(
        self, columns: Mapping[str, Column], starts: Int64Array, filled: Filled | None = None
    ) -> None:
        self.columns = columns
        self._starts = starts
        blocks = len(starts) - 1
        if filled is not None:
            filled.check(columns, starts)
        self.filled = filled or Filled(0, starts[:-1].tolist(), {n: [0] * blocks for n in columns})

    def append(self, piece: SplitPiece) -> None:
        """Add a piece of the edge list, whose edges are sorted by block, to the blocks.

        Raises:
            OSError: the disk has no space for the piece.
            ValueError: a block gets more edges than were counted.
        """
        cursors = self.filled.cursors
        for block, columns in piece.blocks():
            cursor = cursors[block]
            end = cursor + int(piece.counts[block])
            if end > self._starts[block + 1]:
                raise ValueError("the edges are not those that were counted: they have changed")
            for name, column in self.columns.items():
                rows = columns[name]
                column.write(cursor, rows)
                if isinstance(column, FileColumn):
                    sums = self.filled.checksums[name]
                    sums[block] = zlib.crc32(bytes_of(rows), sums[block])
            cursors[block] = end
        self.filled.pieces += 1

    def of(self, blocks: range) -> Stage:
        """Return a stage with at least these blocks, at the same indices, for another machine."""
        del blocks
        return self

    def read(self, block: int, name: str) -> Array:
        """Return column `name` of a block's edges.

        Raises:
            ValueError: the file has changed since it was written.
        """
        column = self.columns[name]
        rows = column.read(int(self._starts[block]), int(self._starts[block + 1]))
        if isinstance(column, FileColumn) and (
            zlib.crc32(bytes_of(rows)) != self.filled.checksums[name][block]
        ):
            raise ValueError(
                f"stage file '{column.path}' is damaged, block {block} has changed: {ANEW}"
            )
        return rows

    def ends(self, block: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return arrays of a block's edges: row in the block, neighbour, index in the edge list."""
        return self.read(block, ROW), self.read(block, COLUMN), self.read(block, EDGE_ID)
