"""Workspace of a partitioner: what it keeps between its steps, in memory or in files.

`DiskWorkspace` bounds memory and survives a kill. Its folder holds stage files, arrays and a
journal that says how far the work is; the journal is replaced atomically, after all that it speaks
of has reached the disk. Imports no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from khop.data import Feature
from khop.data.arrays import checksum as crc_of
from khop.partition.out_of_core.journal import (
    FilledStage,
    Journal,
    KeptArray,
    read_journal,
    write_journal,
)
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.stage import (
    ANEW,
    Column,
    FileColumn,
    MemoryColumn,
    SplitPiece,
    Stage,
    explained,
)
from khop.partition.source import EdgeSource
from khop.private_folders import PrivateFolder
from khop.storage.folder import (
    RESUMABLE,
    ArrayWriter,
    FolderWriter,
    Unfinished,
    lock,
    temporary_of,
)
from khop.typing import Array, EdgeType, Int64Array, IntArray

Columns = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
AnyArray = TypeVar("AnyArray", bound=Array)
Item = TypeVar("Item")
Result = TypeVar("Result")

# Bytes written between two entries of the journal: what a kill costs at most.
_CHECKPOINT_BYTES = 512 << 20
# Rows whose lengths are looked at at a time.
_STEP = 1 << 20


class Workspace:
    """Workspace in memory: nothing is kept, and nothing can be gone on with.

    Also who does the work: `in_order`, `fill` and `write` run functions on items, here in threads.
    The functions get a workspace, of the machine that they run on, and all that they need.

    Args:
        resources: memory and threads.

    Attributes:
        stages_attrs: attributes of edges are split with the edges, so that files are read from
            their begin to their end. If False, they are gathered block by block.
        releases_pages: mapped pages do not stay in memory once they are read.
        unfinished: how far the folder has been written; None if that is not kept.
    """

    stages_attrs = False
    releases_pages = False
    unfinished: Unfinished | None = None

    def __init__(self, resources: Resources) -> None:
        self.resources = resources

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what is kept, unless the work can go on."""

    def attach(self, writer: FolderWriter) -> None:
        """Take the writer of the folder."""
        self._writer = writer

    @property
    def counters(self) -> int:
        """Number of functions that count edges at a time, each with counters of its own."""
        return self.resources.counters

    def in_order(
        self, function: Callable[[Workspace, Item], Result], items: Sequence[Item]
    ) -> Iterator[Result]:
        """Yield the results of a function, in the order of items."""
        return self.resources.in_order(partial(function, self), items)

    def fill(
        self,
        stage: Stage,
        split: Callable[[Workspace, Item], SplitPiece],
        items: Sequence[Item],
    ) -> Iterator[int]:
        """Add the results of a function to a stage, in the order of items; yield bytes of each."""
        for piece in self.in_order(split, items):
            stage.append(piece)
            yield piece.nbytes

    def write(
        self,
        function: Callable[[ArrayWriter, Workspace, Item], Iterable[Result]],
        items: Iterable[Item],
        take: Callable[[Item, Result], None] = lambda item, result: None,
    ) -> Iterator[Item]:
        """Run a function that writes files of the folder; yield each item once it is written.

        Args:
            function: returns results of (writer, workspace, item).
            items: what it is called with, one after the other.
            take: called with item and result, as soon as there is one.
        """
        for item in items:
            for result in function(self._writer, self, item):
                take(item, result)
            yield item

    def array(self, name: str, make: Callable[[], AnyArray], changes: bool = False) -> AnyArray:
        """Return an array that is made once; if it `changes`, later contents are kept, too."""
        return make()

    def column(self, name: str, dtype: np.dtype[Any], count: int) -> Column:
        """Return a column of `count` rows, which no later run takes up; `discard` gives it back."""
        del name
        return MemoryColumn(dtype, count)

    @contextlib.contextmanager
    def stage(self, key: str, columns: Columns, places: Int64Array) -> Iterator[Stage]:
        """Open the stage of an edge type.

        Args:
            key: names the edge type.
            columns: dtype and shape of a row of each column.
            places: [num_blocks + 1] first edge of each block.
        """
        del key
        count = int(places[-1])
        yield Stage(
            {name: MemoryColumn(dtype, count) for name, (dtype, _) in columns.items()}, places
        )

    def is_done(self, key: str) -> bool:
        """Return True if an edge type is complete."""
        del key
        return False

    def done(self, key: str) -> None:
        """Note that an edge type is complete."""

    def release(self, read: EdgeSource | Feature) -> None:
        """Let go of mapped pages that have been read, if `releases_pages`."""
        if not self.releases_pages:
            return
        read.release()
        if isinstance(read, EdgeSource):
            for feature in read.attrs.values():
                feature.release()

    def checkpoint(self, nbytes: int) -> None:
        """Note how far the work is, if enough bytes have been written since the last time."""

    def check_rows(self, edge_type: EdgeType, indptr: IntArray, most: int, width: int) -> None:
        """Raise ValueError if a row is too long to be sorted in the memory that there is."""


class DiskWorkspace(Workspace):
    """Workspace in a folder, that one process uses at a time.

    Args:
        resources: memory and threads.
        folder: of stage files; made if need be.
        name: of the run: short for all that the result depends on.
        output: path of the partition folder.

    Raises:
        BlockingIOError: another process is at work in it.
        OSError: it cannot be written.
        SecurityError: another user has made the folder, or may write to it.
    """

    stages_attrs = True
    releases_pages = True

    def __init__(self, resources: Resources, folder: Path, name: str, output: Path) -> None:
        super().__init__(resources)
        self.folder = PrivateFolder.make(folder)
        lock(self.folder)
        self._name = name
        self._arrays: dict[str, Array] = {}
        self._stage: tuple[str, Stage] | None = None
        self._unsaved = 0
        try:
            self._journal = self._read(output)
        except BaseException:
            self.folder.close()
            raise
        self.unfinished = Unfinished(
            self._name, dict(self._journal.complete), dict(self._journal.begun)
        )

    def _read(self, output: Path) -> Journal:
        journal = read_journal(self.folder, Journal)
        if journal is not None and _is_there(temporary_of(output, self._name), journal):
            return journal
        for left in self.folder.names():
            self.folder.remove(left)
        return Journal()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the folder, unless the work can go on."""
        if kind is None or not issubclass(kind, RESUMABLE):
            shutil.rmtree(self.folder.path, ignore_errors=True)
        self.folder.close()

    def array(self, name: str, make: Callable[[], AnyArray], changes: bool = False) -> AnyArray:
        """Return an array that is made once; if it `changes`, later contents are kept, too."""
        known = self._journal.arrays.get(name)
        array = make() if known is None else self._load(known)
        self._arrays[name] = array
        if known is None:
            self._save()
        if not changes:
            del self._arrays[name]
        return array  # type: ignore[return-value]

    def _load(self, known: KeptArray) -> Array:
        with self.folder.read(known.file) as opened:
            array: Array = np.load(opened, allow_pickle=False)
        if crc_of(array) != known.checksum:
            raise ValueError(f"stage file '{self.folder.path / known.file}' is damaged: {ANEW}")
        return array

    def column(self, name: str, dtype: np.dtype[Any], count: int) -> Column:
        """Return a column of `count` rows in a file, which no later run takes up."""
        return FileColumn(self.folder, f"{name}.stage", dtype, (), count)

    @contextlib.contextmanager
    def stage(self, key: str, columns: Columns, places: Int64Array) -> Iterator[Stage]:
        """Open the stage of an edge type; its files are removed when it is complete."""
        known = self._journal.stage
        filled = None if known is None or known.key != key else known.filled
        opened = {
            name: FileColumn(self.folder, f"{i}.stage", dtype, shape, int(places[-1]))
            for i, (name, (dtype, shape)) in enumerate(columns.items())
        }
        try:
            stage = Stage(opened, places, filled)
            self._stage = key, stage
            yield stage
        finally:
            self._stage = None
            for column in opened.values():
                column.close()
        self._save()
        for column in opened.values():
            self.folder.unlink(column.path.name)

    def is_done(self, key: str) -> bool:
        """Return True if an edge type is complete."""
        return key in self._journal.done

    def done(self, key: str) -> None:
        """Note that an edge type is complete."""
        self._journal.done.append(key)
        self._save()

    def checkpoint(self, nbytes: int) -> None:
        """Note how far the work is, if enough bytes have been written since the last time."""
        self._unsaved += nbytes
        if self._unsaved >= _CHECKPOINT_BYTES:
            self._save()

    def _save(self) -> None:
        """Bring all that is written to the disk, then replace the journal."""
        assert self.unfinished is not None
        self._unsaved = 0
        self._writer.sync()
        journal = self._journal
        journal.number += 1
        journal.complete, journal.begun = self.unfinished.complete, self.unfinished.begun
        journal.stage = None
        if self._stage is not None:
            key, stage = self._stage
            for column in stage.columns.values():
                assert isinstance(column, FileColumn)
                column.sync()
            journal.stage = FilledStage(key, stage.filled)
        with explained(self.folder.path, "the journal and arrays"):
            replaced = self._save_arrays()
            write_journal(self.folder, journal)
        for old in replaced:
            self.folder.unlink(old, missing_ok=True)

    def _save_arrays(self) -> list[str]:
        """Write arrays that have changed to new files; return the old ones."""
        replaced = []
        for i, (name, array) in enumerate(self._arrays.items()):
            known = self._journal.arrays.get(name)
            checksum = crc_of(array)
            if known is not None and known.checksum == checksum:
                continue
            if known is not None:
                replaced.append(known.file)
            file = f"{self._journal.number}-{i}.npy"
            with self.folder.create(file) as opened:
                np.save(opened, array)
                opened.flush()
                os.fsync(opened.fileno())
            self._journal.arrays[name] = KeptArray(file, checksum)
        return replaced

    def check_rows(self, edge_type: EdgeType, indptr: IntArray, most: int, width: int) -> None:
        """Raise ValueError if a row is too long to be sorted in the memory that there is."""
        rows = range(0, len(indptr) - 1, _STEP)
        degrees = (np.diff(indptr[first : first + _STEP + 1]) for first in rows)
        longest = max((int(of_rows.max()) for of_rows in degrees), default=0)
        if longest > most:
            raise ValueError(
                f"a node has {longest:,} edges of type {edge_type}, which are sorted at once and "
                f"take {longest * width:,} bytes: raise the memory (--memory), or lower the "
                "number of threads (--jobs)"
            )


def run_name(run: Any) -> str:
    """Return a short name of what a result depends on."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]


def _is_there(temporary: Path, journal: Journal) -> bool:
    """Return True if all files that a journal speaks of are as long as it says, or longer."""
    files = {**journal.complete, **journal.begun}
    if not files:
        return True
    try:
        with PrivateFolder.open(temporary) as folder:
            sizes = {path: folder.size(path) for path in files}
    except FileNotFoundError:
        return False
    return all(size is not None and size >= files[path].bytes for path, size in sizes.items())
