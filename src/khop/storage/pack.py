"""Packs: rows of a partition folder in the order in which a loader's epochs read them.

A pack is a folder beside the partition folder. It has a table for each attribute and part. The rows
of each read lie one after the other, so that an epoch reads its table from begin to end. Rows that
are read often are in a file of their own, which is mapped, and only their other rows are packed.

| File | Content |
|---|---|
| pack.json | the folder's fingerprint, the loader, its epochs, sizes and checksums of all files |
| <table>/rows.npy | packed rows, read by read, as the folder stores them |
| <table>/first.npy | [num_reads + 1] first packed row of each read |
| <table>/key.npy | [num_reads, 16] digest of the rows of each read |
| <table>/hot_id.npy, hot.npy | rows that are read often: their numbers in the part, and the rows |

A read is found by the digest of its row numbers. So a pack never changes a batch: other rows are
read from the partition folder. `PackWriter` in `khop.storage.pack_writer` writes packs. Runs in
trainers and samplers. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from khop import _native
from khop.codec import AtMost, Id, Name, Word, from_json
from khop.data import RowStore
from khop.data.arrays import DTYPES, check_range, storage_dtype
from khop.data.direct_reads import DiskCounts
from khop.data.direct_rows import DirectRows, DiskOptions
from khop.data.row_store import RowFormat, Writer
from khop.data.tickets import Ticket, TicketGroup
from khop.errors import FolderError, ProtocolError, RowStoreError
from khop.log import shown
from khop.storage.folder import INTS, open_inside
from khop.storage.folder.checksums import Written, hash_ranges
from khop.storage.folder.content import FileMeta, sealed
from khop.storage.folder.npy import open_npy
from khop.storage.part import Part
from khop.typing import Array, Int64Array, IntArray

PACK_FILE, FORMAT, VERSION = "pack.json", "khop-pack", 1
KEY_BYTES = 16
# Per table, in each process: reads in flight, and rows of the next batches.
_AHEAD_BYTES = 36 << 20
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class PackedTable:
    """Description of the packed rows of one attribute in one part.

    Attributes:
        level: 'node' or 'edge'.
        type_index: index of the type in the folder's meta.json.
        attribute: name of the attribute.
        part: the part.
        dtype, shape: dtype and shape of a row, as the folder stores it.
        num_reads: number of reads, at most one per batch.
        num_rows: number of packed rows.
        num_hot: number of rows that are read often.
    """

    level: Name
    type_index: Id
    attribute: Name
    part: Id
    dtype: Name
    shape: Annotated[list[Id], AtMost(32)]
    num_reads: Id
    num_rows: Id
    num_hot: Id

    def __post_init__(self) -> None:
        if self.level not in ("node", "edge"):
            raise ValueError(f"has level {shown(self.level)}")
        if self.dtype not in DTYPES:
            raise ValueError(f"has dtype {shown(self.dtype)}, which no folder has")

    def arrays(self) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
        """Return {name: shape, and names of possible dtypes} of the table's files."""
        values = (storage_dtype(self.dtype).name,)
        return {
            "rows": ((self.num_rows, *self.shape), values),
            "first": ((self.num_reads + 1,), ("int64",)),
            "key": ((self.num_reads, KEY_BYTES), ("uint8",)),
            "hot_id": ((self.num_hot,), INTS),
            "hot": ((self.num_hot, *self.shape), values),
        }


@dataclass(frozen=True)
class PackMeta:
    """Content of pack.json.

    Attributes:
        folder: fingerprint of the partition folder.
        loader: fingerprint of the loader, a `LoaderFingerprint` as dictionary.
        first_epoch: number of the first packed epoch.
        run_keys: key of each packed epoch.
        tables: the packed rows.
        files: size and checksum of each file.
    """

    folder: Name
    loader: dict[str, Any]
    first_epoch: Id
    run_keys: list[Word]
    tables: Annotated[list[PackedTable], AtMost(1 << 16)]
    files: Annotated[dict[str, FileMeta], AtMost(1 << 20)] = field(default_factory=dict)


def is_pack(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a pack, whole or damaged."""
    return (Path(path) / PACK_FILE).is_file()


def key_of(ids: Int64Array) -> bytes:
    """Return the digest of the row numbers of a read: 16 bytes."""
    content = np.ascontiguousarray(ids, np.int64)
    return hashlib.sha256(content.data).digest()[:KEY_BYTES]


class Pack:
    """An opened pack. Each process that reads opens it.

    Args:
        root: path of the pack.

    Attributes:
        root: the path.
        meta: its description.

    Raises:
        FolderError: there is no pack, or it is damaged or of another version.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        self.meta = _read_meta(self.root)
        self._tables = {
            (table.level, table.type_index, table.attribute, table.part): i
            for i, table in enumerate(self.meta.tables)
        }
        for i, table in enumerate(self.meta.tables):
            self._open(i, table)
        self._stores: list[PackedRows] = []

    def rows(self, part: Part, level: str, type_index: int, name: str) -> RowStore:
        """Return the rows of an attribute in a part, packed ones first. See `Part.feature`."""
        rows = part.feature(level, type_index, name)
        index = self._tables.get((level, type_index, name, part.part))
        if index is None:
            return rows
        table, attr = self.meta.tables[index], part.meta.types(level)[type_index].attrs.get(name)
        stored = rows.as_stored
        if attr is None or stored.stored != RowFormat(table.dtype, tuple(table.shape)):
            raise FolderError(f"'{self.root}' is damaged: its rows of '{name}' have another format")
        packed = PackedRows(stored, *self._open(index, table))
        self._stores.append(packed)
        return attr.delivering(packed)

    def _open(self, index: int, table: PackedTable) -> tuple[DirectRows, dict[str, Array]]:
        """Return the packed rows, and the other arrays of a table by name."""
        arrays = {}
        for name, (shape, dtypes) in table.arrays().items():
            path = path_of(index, name)
            known = self.meta.files.get(path)
            if known is None:
                raise FolderError(f"'{self.root / PACK_FILE}' is damaged: it does not list {path}")
            arrays[name] = open_npy(self.root, path, known.bytes, shape, *dtypes)
        first = arrays["first"]
        if first[0] != 0 or first[-1] != table.num_rows or (np.diff(first) < 0).any():
            raise FolderError(f"'{self.root / path_of(index, 'first')}' is damaged")
        path = path_of(index, "rows")
        file, options = (
            open_inside(self.root, path),
            DiskOptions((), _AHEAD_BYTES, keeps_rows=False),
        )
        rows = DirectRows(arrays["rows"], file, str(self.root / path), options, table.dtype)
        return rows, arrays

    def counts(self) -> DiskCounts:
        """Return the counts of this process's reads of the pack so far."""
        counts = [store.counts() for store in self._stores]
        return DiskCounts(*map(sum, zip(DiskCounts(), *counts, strict=True)))

    def problems(self) -> list[str]:
        """Check all checksums. Return the problems, one sentence each."""
        problems = []
        tables = enumerate(self.meta.tables)
        for path in (path_of(i, name) for i, table in tables for name in table.arrays()):
            known = self.meta.files[path]
            descriptor = open_inside(self.root, path)
            try:
                written = Written(known.bytes, hash_ranges(descriptor, known.bytes))
            finally:
                os.close(descriptor)
            if written.sha256 != known.sha256:
                problems.append(f"{path}: its checksum differs from {PACK_FILE}")
        return problems


class PackedRows(RowStore):
    """Rows of a part, of which the reads of some epochs are packed.

    Args:
        rows: all rows, for reads that are not packed.
        packed: the packed rows.
        arrays: the other arrays of the table, by name.
    """

    def __init__(self, rows: RowStore, packed: DirectRows, arrays: dict[str, Array]) -> None:
        self.num_rows, self.stored = rows.num_rows, rows.stored
        self._rows, self._packed, self._hot = rows, packed, arrays["hot"]
        self._first = arrays["first"].tolist()
        self._indices = {key.tobytes(): i for i, key in enumerate(arrays["key"])}
        self._hot_index = _native.IdIndex(np.asarray(arrays["hot_id"], np.int64))
        will_need(self._hot)
        self._num_hot_read = 0

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """See `RowStore.read`."""
        writer, ticket = self.start_written(ids)
        if ticket is not None:
            return TicketGroup([ticket], partial(writer, out, None))
        writer(out, None)
        return None

    def start_written(self, rows: IntArray) -> tuple[Writer, Ticket | None]:
        """See `RowStore.start_written`. Packed rows are read in sequence."""
        check_range(rows, self.num_rows, "a read of packed rows")
        ids = np.ascontiguousarray(rows, np.int64)
        index = self._indices.get(key_of(ids))
        if index is None:
            return self._rows.start_written(ids)
        # Rows of the hot ones, and then of the packed ones, in the order of the batch.
        joined = self._hot_index.find(ids)
        cold = np.flatnonzero(joined < 0)
        first, end = self._first[index : index + 2]
        if end - first != len(cold):
            raise RowStoreError(f"'{self._packed.path}' has {end - first} rows for {len(cold)}")
        joined[cold] = np.arange(len(self._hot), len(self._hot) + len(cold))
        self._num_hot_read += len(ids) - len(cold)
        values, ticket = self._packed.start(np.arange(first, end))
        return partial(self._write, [self._hot, values], joined), ticket

    def _write(
        self, arrays: Sequence[Array], rows: Int64Array, out: Array, positions: Int64Array | None
    ) -> None:
        if positions is None:
            _native.gather_parts(arrays, rows, out)
            return
        values = self.stored.empty(len(rows))
        _native.gather_parts(arrays, rows, values)
        _native.gather(values, None, out, positions)

    def expect(self, ids: Int64Array) -> None:
        """See `RowStore.expect`. Packed rows of the next batches are read ahead."""
        index = self._indices.get(key_of(ids))
        if index is None:
            self._rows.expect(ids)
        elif self._first[index] < self._first[index + 1]:
            self._packed.expect(np.arange(*self._first[index : index + 2]))

    def counts(self) -> DiskCounts:
        """Return the counts of this process's reads of the pack so far."""
        counts = self._packed.counts()
        asked = counts.asked + self._num_hot_read
        return counts._replace(asked=asked, packed=asked)

    def content(self) -> tuple[Array, ...]:
        return self._rows.content()

    def release(self) -> None:
        self._rows.release()

    def close(self) -> None:
        self._packed.close()
        self._rows.close()


def path_of(table: int, name: str) -> str:
    """Return the path of an array of the table with this index."""
    return f"{table}/{name}.npy"


def will_need(array: Array) -> None:
    """Have the pages of a mapped file read now, in sequence."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_WILLNEED)


def _read_meta(root: Path) -> PackMeta:
    path = root / PACK_FILE
    try:
        with os.fdopen(open_inside(root, PACK_FILE), "rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except (FolderError, OSError) as error:
        raise FolderError(f"'{root}' is no pack of `khop pack`: {error}") from None
    try:
        if len(text) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("it does not describe a pack")
        del content["seal"]
        if content["version"] == VERSION and text != sealed(content):
            raise ValueError("its checksum differs")
        version = content.pop("version")
        del content["format"]
        meta = None if version != VERSION else from_json(PackMeta, content, PACK_FILE)
    except (ValueError, KeyError, ProtocolError, RecursionError) as error:
        raise FolderError(f"'{path}' is damaged: {error}") from None
    if meta is None:
        raise FolderError(f"'{root}' is a pack of version {version!r}, not {VERSION}: pack again")
    return meta
