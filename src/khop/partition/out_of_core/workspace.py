"""Workspace of a partitioner, which runs its steps, and keeps data between them.

`Workspace` keeps data in memory. `DiskWorkspace` bounds memory and survives a kill. Its folder
holds stage files, arrays, and a journal of the work that is done. The journal is replaced
atomically, once all files that it names are on the disk. Imports no torch.
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
from typing import Any, TypeVar, cast

import numpy as np

from khop.data import RowStore
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
from khop.storage.folder import RESUMABLE, ArrayWriter, FolderWriter, Unfinished, lock, temporary_of
from khop.typing import Array, EdgeType, Int64Array, IntArray

Columns = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""{column of a stage: dtype and shape of a row}."""
AnyArray = TypeVar("AnyArray", bound=Array)
Item = TypeVar("Item")
Result = TypeVar("Result")

# Bytes written between two entries of the journal: most work that a kill undoes.
_CHECKPOINT_BYTES = 512 << 20
# Rows whose lengths are compared at a time.
_STEP = 1 << 20


class Workspace:
    """Storage of a partitioner between its steps, and the threads that run them. In memory.

    After an interruption, nothing is left: a run starts over. `in_order`, `fill` and `write` call
    functions on items in threads. Subclasses also call them on other machines. So a function gets
    all data as arguments, and the workspace of the machine that it runs on.

    Attributes:
        stages_attrs: True if edge attributes are split together with the edges, which reads their
            files sequentially. If False, they are gathered when a block of rows is sorted.
        releases_pages: True if mapped pages are released once they have been read.
        unfinished: output files that an interrupted run wrote. None for data in memory.
    """

    stages_attrs = False
    releases_pages = False
    unfinished: Unfinished | None = None

    def __init__(self, resources: Resources) -> None:
        self.resources = resources

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        """Remove all data, unless a later run can resume from them."""

    def attach(self, writer: FolderWriter) -> None:
        self._writer = writer

    @property
    def counters(self) -> int:
        """Number of functions that count edges at a time, each with counts of its own."""
        return self.resources.counters

    def in_order(
        self, function: Callable[[Workspace, Item], Result], items: Sequence[Item]
    ) -> Iterator[Result]:
        """Call function(workspace, item) for each item, in threads. Yield the results in order."""
        return self.resources.in_order(partial(function, self), items)

    def fill(
        self, stage: Stage, split: Callable[[Workspace, Item], SplitPiece], items: Sequence[Item]
    ) -> Iterator[int]:
        """Split an edge list, piece by piece, and add the pieces to a stage, the storage of edges.

        Args:
            stage: storage of the edges of one type.
            split: called as split(workspace, item) in threads. It returns an item's edges.
            items: pieces of the edge list.

        Yields:
            The bytes of each piece, in order.
        """
        for piece in self.in_order(split, items):
            stage.append(piece)
            yield piece.nbytes

    def write(
        self,
        function: Callable[[ArrayWriter, Workspace, Item], Iterable[Result]],
        items: Iterable[Item],
        take: Callable[[Item, Result], None] = lambda item, result: None,
    ) -> Iterator[Item]:
        """Call a function that writes output files, once per item.

        Yield each item once it is written.

        Args:
            function: called as function(writer, workspace, item), in order.
            items: for example, parts.
            take: called as take(item, result) for each result of the function, at once.
        """
        for item in items:
            for result in function(self._writer, self, item):
                take(item, result)
            yield item

    def array(self, name: str, make: Callable[[], AnyArray], changes: bool = False) -> AnyArray:
        """Return the array `name` that an interrupted run saved, or make it. It is saved.

        With `changes`, the caller changes the array later. The changed values are then saved, too.
        """
        return make()

    def column(self, name: str, dtype: np.dtype[Any], count: int) -> Column:
        """Return a new array of `count` entries in memory or a file, not kept to resume a run."""
        del name
        return MemoryColumn(dtype, count)

    @contextlib.contextmanager
    def stage(self, key: str, columns: Columns, starts: Int64Array) -> Iterator[Stage]:
        """Open the storage of an edge type's edges until they are sorted, as a context.

        Args:
            key: name of the edge type.
            columns: dtype and shape of the data of an edge, by name.
            starts: [num_blocks + 1] int64 first edge of each block of rows.
        """
        del key
        count = int(starts[-1])
        yield Stage(
            {name: MemoryColumn(dtype, count) for name, (dtype, _) in columns.items()}, starts
        )

    def is_done(self, key: str) -> bool:
        """Return True if all output files of an edge type have been written. `key` is its name."""
        del key
        return False

    def done(self, key: str) -> None:
        """Record that all output files of an edge type have been written. `key` is its name."""

    def release(self, read: EdgeSource | RowStore) -> None:
        """Release the mapped pages of an edge list or attribute, if `releases_pages`."""
        if not self.releases_pages:
            return
        read.release()
        if isinstance(read, EdgeSource):
            for feature in read.attrs.values():
                feature.release()

    def checkpoint(self, nbytes: int) -> None:
        """Record that `nbytes` were written. A workspace on disk saves its state every 512 MiB."""

    def check_rows(self, edge_type: EdgeType, indptr: IntArray, most: int, width: int) -> None:
        """Raise ValueError if a row has too many edges to be sorted in the memory that is allowed.

        Args:
            edge_type: the edge type.
            indptr: [num_rows + 1] row pointers.
            most: most edges of a row that fit.
            width: bytes of memory that an edge takes.
        """


class DiskWorkspace(Workspace):
    """Storage of a partitioner between its steps, in a folder, so that a killed run can resume.

    One process uses the folder at a time.

    Args:
        resources: memory and threads.
        folder: folder of temporary files, which is made if it does not exist.
        name: name of the run, from `run_name`: the same for runs that may resume one another.
        output: path of the partition folder.

    Raises:
        BlockingIOError: another process uses the folder.
        OSError: the folder cannot be written.
        SecurityError: another user has made the folder, or may write to it.
    """

    stages_attrs = True
    releases_pages = True
    unfinished: Unfinished

    def __init__(self, resources: Resources, folder: Path, name: str, output: Path) -> None:
        super().__init__(resources)
        self.folder = PrivateFolder.make(folder)
        lock(self.folder)
        self._arrays: dict[str, Array] = {}
        self._stage: tuple[str, Stage] | None = None
        self._unsaved = 0
        try:
            journal = read_journal(self.folder, Journal)
            if journal is None or not _is_there(temporary_of(output, name), journal):
                for left in self.folder.names():
                    self.folder.remove(left)
                journal = Journal()
        except BaseException:
            self.folder.close()
            raise
        self._journal = journal
        self.unfinished = Unfinished(name, dict(journal.complete), dict(journal.begun))

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        if error_type is None or not issubclass(error_type, RESUMABLE):
            shutil.rmtree(self.folder.path, ignore_errors=True)
        self.folder.close()

    def array(self, name: str, make: Callable[[], AnyArray], changes: bool = False) -> AnyArray:
        known = self._journal.arrays.get(name)
        array = make() if known is None else cast("AnyArray", self._load(known))
        self._arrays[name] = array
        if known is None:
            self._save()
        if not changes:
            del self._arrays[name]
        return array

    def _load(self, known: KeptArray) -> Array:
        with self.folder.read(known.file) as opened:
            array: Array = np.load(opened, allow_pickle=False)
        if crc_of(array) != known.checksum:
            raise ValueError(f"stage file '{self.folder.path / known.file}' is damaged: {ANEW}")
        return array

    def column(self, name: str, dtype: np.dtype[Any], count: int) -> Column:
        return FileColumn(self.folder, f"{name}.stage", dtype, (), count)

    @contextlib.contextmanager
    def stage(self, key: str, columns: Columns, starts: Int64Array) -> Iterator[Stage]:
        """Open the storage of the edges of a type, named `key`.

        `columns` has dtype and shape per name, and `starts` [num_blocks + 1] the first edge of each
        block. Without an error, its files are removed at the end.
        """
        known = self._journal.stage
        filled = None if known is None or known.key != key else known.filled
        opened = {
            name: FileColumn(self.folder, f"{i}.stage", dtype, shape, int(starts[-1]))
            for i, (name, (dtype, shape)) in enumerate(columns.items())
        }
        try:
            stage = Stage(opened, starts, filled)
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
        return key in self._journal.done

    def done(self, key: str) -> None:
        self._journal.done.append(key)
        self._save()

    def checkpoint(self, nbytes: int) -> None:
        self._unsaved += nbytes
        if self._unsaved >= _CHECKPOINT_BYTES:
            self._save()

    def _save(self) -> None:
        """Flush all written data to the disk, then replace the journal, which a later run reads."""
        self._unsaved = 0
        self._writer.sync()
        journal = self._journal
        journal.writes += 1
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
        """Save arrays that have changed to new files. Return paths of the old files."""
        replaced = []
        for i, (name, array) in enumerate(self._arrays.items()):
            known = self._journal.arrays.get(name)
            checksum = crc_of(array)
            if known is not None and known.checksum == checksum:
                continue
            if known is not None:
                replaced.append(known.file)
            file = f"{self._journal.writes}-{i}.npy"
            with self.folder.create(file) as opened:
                np.save(opened, array)
                opened.flush()
                os.fsync(opened.fileno())
            self._journal.arrays[name] = KeptArray(file, checksum)
        return replaced

    def check_rows(self, edge_type: EdgeType, indptr: IntArray, most: int, width: int) -> None:
        rows = range(0, len(indptr) - 1, _STEP)
        degrees = (np.diff(indptr[first : first + _STEP + 1]) for first in rows)
        longest = max((int(of_rows.max()) for of_rows in degrees), default=0)
        if longest > most:
            raise ValueError(
                f"a node has {longest:,} edges of type {edge_type}, which are sorted at once and "
                f"take {longest * width:,} bytes: raise the memory (--memory), or lower the "
                "number of threads (--jobs)"
            )


def run_name(run: object) -> str:
    """Return a short name of a run: a digest of the values (JSON) that its result depends on."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]


def _is_there(temporary: Path, journal: Journal) -> bool:
    """Return True if all files that a journal names exist, as long as it records, or longer."""
    files = {**journal.complete, **journal.begun}
    if not files:
        return True
    try:
        with PrivateFolder.open(temporary) as folder:
            sizes = {path: folder.size(path) for path in files}
    except FileNotFoundError:
        return False
    return all(size is not None and size >= files[path].bytes for path, size in sizes.items())
