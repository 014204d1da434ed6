"""Writer of packs, see `khop.storage.pack`. Runs in trainers and in `khop pack`. No torch.

All batches are drawn twice. `TableCounts` counts the reads, and `choose_hot` chooses the rows that
stay in memory. Then `PackWriter` gets the same reads in the same order. It collects the reads of
many batches, reads their rows in the order of the folder's files, and appends them to the pack.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from khop.codec import to_json
from khop.data import RowStore
from khop.data.arrays import storage_dtype
from khop.data.tickets import Ticket
from khop.private_folders import PrivateFolder
from khop.storage.folder import explained_write, lock
from khop.storage.folder.array_writer import ArrayFile, Explain
from khop.storage.folder.content import FileMeta, sealed
from khop.storage.pack import FORMAT, KEY_BYTES, PACK_FILE, VERSION, PackMeta, key_of, path_of
from khop.typing import Array, Int64Array

_ID_BYTES = 8
_SORTED_BYTES = 32 << 20  # of rows that are read at a time, in the order of their file


class TableKey(NamedTuple):
    """Rows of one attribute in one part: 'node' or 'edge', index of the type, name, part."""

    level: str
    type_index: int
    attribute: str
    part: int


class RecordedRows(RowStore):
    """Rows whose reads are recorded: `expect` notes them.

    Args:
        rows: the rows.
    """

    def __init__(self, rows: RowStore) -> None:
        self.num_rows, self.stored = rows.num_rows, rows.stored
        self.expected: list[Int64Array] = []

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """Rows are not read while they are counted."""
        raise NotImplementedError

    def expect(self, ids: Int64Array) -> None:
        """Note the row numbers of a read."""
        if len(ids):
            self.expected.append(np.array(ids, np.int64))


class TableCounts:
    """Reads of one table: how often each row is read, and the digests of all reads.

    Args:
        num_rows: number of rows.
        row_bytes: bytes of a row.
    """

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.uses = np.zeros(num_rows, np.uint32)
        self.keys: dict[bytes, None] = {}
        self.is_hot = np.zeros(num_rows, np.bool_)

    def add(self, ids: Int64Array) -> None:
        """Count a read. Reads of the same rows in the same order are packed once."""
        key = key_of(ids)
        if key not in self.keys:
            self.keys[key] = None
            np.add.at(self.uses, ids, np.uint32(1))

    @property
    def num_hot(self) -> int:
        """Number of rows that are read often."""
        return int(np.count_nonzero(self.is_hot))

    @property
    def num_packed(self) -> int:
        """Number of packed rows."""
        return int(self.uses[~self.is_hot].sum(dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the table's files, without their headers."""
        hot = self.num_hot * (self.row_bytes + _ID_BYTES)
        return self.num_packed * self.row_bytes + hot + len(self.keys) * (KEY_BYTES + _ID_BYTES)


def choose_hot(tables: Sequence[TableCounts], memory: int) -> None:
    """Choose the rows that stay in memory: the ones that are read most often, at least twice.

    Args:
        tables: counts of all reads.
        memory: most bytes of these rows and their numbers.
    """
    most = max((int(table.uses.max(initial=0)) for table in tables), default=0)
    costs = np.zeros(most + 2, np.int64)  # of rows that are read so often
    for table in tables:
        costs += _hot_bytes(table) * np.bincount(table.uses, minlength=most + 2)
    above = np.cumsum(costs[::-1])[::-1]  # of rows that are read so often, or more often
    least = max(int(np.searchsorted(-above, -memory)), 2)  # all of these fit
    left = memory - int(above[min(least, most + 1)])
    for table in tables:
        table.is_hot = table.uses >= least
        if least > 2:
            rows = np.flatnonzero(table.uses == least - 1)[: left // _hot_bytes(table)]
            table.is_hot[rows] = True
            left -= len(rows) * _hot_bytes(table)


def _hot_bytes(table: TableCounts) -> int:
    return table.row_bytes + _ID_BYTES


class PackWriter:
    """Writer of a pack. It writes a folder beside `path`, which `finish` renames.

    Use as a context manager, which removes what is not finished. A killed writer leaves its folder.
    The next one for the same path begins anew in it.

    Args:
        path: path of the pack.
        tables: the counted reads, with their hot rows.
        sources: for each table, the rows that are packed.
        memory: bytes of rows that are collected before they are read.

    Raises:
        OSError: the disk is full, or the folder cannot be made.
        BlockingIOError: another process writes the same pack.
    """

    def __init__(
        self,
        path: Path,
        tables: Mapping[TableKey, TableCounts],
        sources: Mapping[TableKey, RowStore],
        memory: int,
    ) -> None:
        self._path = path
        self._folder = PrivateFolder.make(path.with_name(f".{path.name}.pack.tmp"))
        try:
            lock(self._folder)
            for name in self._folder.names():
                self._folder.remove(name)
            self._tables = [
                _TableWriter(self._folder, i, counts, sources[key], self._writing)
                for i, (key, counts) in enumerate(tables.items())
            ]
        except BaseException:
            self._remove()
            raise
        self._keys = {key: i for i, key in enumerate(tables)}
        self._memory = memory

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for table in self._tables:
            table.abandon()
        self._remove()

    def _remove(self) -> None:
        if self._folder.descriptor >= 0:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder.path)
            self._folder.close()

    def _writing(self, file: Path, nbytes: int) -> AbstractContextManager[None]:
        action = f"write {nbytes:,} bytes of '{file.name}' for the pack '{self._path}'"
        return explained_write(action, self._path.parent, "Nothing of it is kept: make room")

    def add(self, table: TableKey, ids: Int64Array) -> None:
        """Add the next read of a table.

        Raises:
            RuntimeError: the read differs from the one that was counted.
        """
        self._tables[self._keys[table]].add(ids)
        if sum(table.waiting_bytes for table in self._tables) >= self._memory:
            self._write()

    def _write(self) -> None:
        for table in self._tables:
            table.write()

    def finish(self, meta: PackMeta, is_replacing: bool = False) -> None:
        """Write the rest, and pack.json. Flush all to the disk, and rename the folder.

        Args:
            meta: description of the pack, without its files.
            is_replacing: replace a pack that exists.
        """
        self._write()
        files: dict[str, FileMeta] = {}
        for table in self._tables:
            files.update(table.close())
        content = {"format": FORMAT, "version": VERSION, **to_json(replace(meta, files=files))}
        with self._folder.create(PACK_FILE) as file:
            file.write(sealed(content))
            file.flush()
            os.fsync(file.fileno())
        self._folder.sync()
        self._folder.publish()
        if is_replacing and self._path.exists():
            shutil.rmtree(self._path)
        self._folder.path.rename(self._path)
        self._folder.close()


class _TableWriter:
    """Writer of one table."""

    def __init__(
        self,
        folder: PrivateFolder,
        index: int,
        counts: TableCounts,
        rows: RowStore,
        explain: Explain,
    ) -> None:
        self._folder, self._index, self._explain = folder, index, explain
        self._counts, self._rows = counts, rows
        self._keys = list(counts.keys)
        self._first = [0]
        self._waiting: list[Int64Array] = []
        self.waiting_bytes = 0
        self._seen: set[bytes] = set()
        self._files: dict[str, FileMeta] = {}
        folder.make_folder(str(index))
        self._file = self._create("rows", counts.num_packed)

    def _create(self, name: str, count: int) -> ArrayFile:
        dtype = storage_dtype(self._rows.stored.dtype)
        shape = count, *self._rows.stored.shape
        return ArrayFile(self._folder, path_of(self._index, name), dtype, shape, self._explain)

    def add(self, ids: Int64Array) -> None:
        key = key_of(ids)
        if key in self._seen:
            return
        if len(self._seen) == len(self._keys) or self._keys[len(self._seen)] != key:
            raise RuntimeError(
                "batches were drawn twice and differ: only methods whose draws depend on seed, "
                "epoch and batch alone can be packed"
            )
        self._seen.add(key)
        cold = ids[~self._counts.is_hot[ids]]
        self._first.append(self._first[-1] + len(cold))
        self._waiting.append(cold)
        self.waiting_bytes += len(cold) * self._counts.row_bytes

    def write(self) -> None:
        """Read the rows of all reads that wait, in the order of their file, and append them."""
        if self.waiting_bytes == 0:
            return
        ids = np.concatenate(self._waiting)
        self._waiting, self.waiting_bytes = [], 0
        self._file.append(self._read(ids, np.argsort(ids, kind="stable")))

    def _read(self, ids: Int64Array, order: Int64Array) -> Array:
        out = self._rows.stored.empty(len(ids))
        step = max(_SORTED_BYTES // self._counts.row_bytes, 1)
        for begin in range(0, len(ids), step):
            here = order[begin : begin + step]
            self._rows.gather(ids[here], out, here)
        return out

    def close(self) -> dict[str, FileMeta]:
        """Write the other files of the table. Return size and checksum of each file, by path."""
        if len(self._seen) != len(self._keys):
            raise RuntimeError("batches were drawn twice, and fewer reads came the second time")
        hot = np.flatnonzero(self._counts.is_hot)
        self._finish("rows", self._file)
        self._file = self._create("hot", len(hot))
        step = max(_SORTED_BYTES // self._counts.row_bytes, 1)
        for begin in range(0, len(hot), step):
            self._file.append(self._rows.gather(hot[begin : begin + step]))
        self._finish("hot", self._file)
        keys = np.frombuffer(b"".join(self._keys), np.uint8).reshape(-1, KEY_BYTES)
        arrays: dict[str, Array] = {
            "first": np.array(self._first, np.int64),
            "key": keys,
            "hot_id": hot,
        }
        for name, array in arrays.items():
            path = path_of(self._index, name)
            self._file = ArrayFile(self._folder, path, array.dtype, array.shape, self._explain)
            self._file.append(array)
            self._finish(name, self._file)
        return self._files

    def _finish(self, name: str, file: ArrayFile) -> None:
        file.sync()
        written = file.close()
        self._files[path_of(self._index, name)] = FileMeta(written.bytes, written.sha256)

    def abandon(self) -> None:
        self._file.abandon()
