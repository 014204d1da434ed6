"""Columns of input files that cannot be mapped, unpacked once to flat files that can be mapped.

Readers cannot seek to row i of deflated files (`.npz`, `.gz`), text (CSV) or Parquet. Partitioning
copies rows in any order, so these files are first unpacked in one pass, some megabytes at a time.
Checkpoints of the decompressor would need less disk. But rows in another order than the file's
would then be unpacked again and again. Imports no torch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

import numpy as np

from khop.data.arrays import DTYPES, bytes_of, check_count
from khop.data.hot_rows import parse_bytes
from khop.private_folders import PrivateFolder, is_own_folder
from khop.storage.folder import RESUMABLE, explained_write, is_locked, lock
from khop.typing import Array

_INDEX = "columns.json"
_HALF_DONE = ".new"
_PIECE_BYTES = 16 << 20
_MEMORY = 1 << 30
_LEAST_PIECE = 1 << 10
# No index of columns is longer.
_MOST_INDEX_BYTES = 64 << 20


class ColumnChangedError(Exception):
    """Error: a piece of a column has another dtype than earlier pieces. Read again as `dtype`."""

    def __init__(self, column: str, dtype: np.dtype[Any]) -> None:
        super().__init__(column)
        self.column, self.dtype = column, dtype


class Scratch:
    """Temporary storage of columns of a graph's files that cannot be mapped, such as CSV.

    They are unpacked to a folder or to memory. A `with` block locks the folder, and removes it at
    the end unless the run can be resumed. Processes can also share a folder without the lock, since
    a table appears as a whole.

    Args:
        folder: folder of the columns, made at first use. If None, columns are in memory.
        memory: bytes for the whole program. Reading uses a share of them. If None, 1 GB.

    Attributes:
        piece_bytes: approximate number of bytes that are read at a time.

    Example:
        >>> scratch = Scratch(path / "unpacked")
        >>> pieces = [{"x": np.array([1, 2])}, {"x": np.array([3])}]
        >>> scratch.table(["numbers"], lambda: pieces)["x"].tolist()
        [1, 2, 3]
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, memory: int | None = None
    ) -> None:
        self.folder = None if folder is None else Path(folder).absolute()
        self.memory = memory or _MEMORY
        self.piece_bytes = max(_LEAST_PIECE, min(_PIECE_BYTES, self.memory // 32))
        self._owned = False
        self._locked: PrivateFolder | None = None

    @classmethod
    def beside(
        cls,
        output: str | os.PathLike[str],
        tmp: str | os.PathLike[str] | None = None,
        memory: int | str | None = None,
    ) -> Scratch:
        """Return temporary storage for a partitioner's input.

        Args:
            output: the partition folder that will be written.
            tmp: parent folder of the storage. If None, the parent of `output`.
            memory: bytes for the whole program, or '8GB'. If None, 1 GB.
        """
        path = Path(output).absolute()
        folder = path.parent if tmp is None else Path(tmp)
        granted = None if memory is None else parse_bytes(memory)
        return cls(folder / f".khop-{path.name}-input.stage", granted)

    def __enter__(self) -> Scratch:
        self._owned = True
        if self.folder is not None and os.path.lexists(self.folder):
            self._lock(self.folder)
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        """Remove the folder. After an error of `RESUMABLE`, keep it for a run that resumes."""
        self._owned = False
        if self._locked is None or self.folder is None:
            return
        if error_type is None or not issubclass(error_type, RESUMABLE):
            shutil.rmtree(self.folder, ignore_errors=True)
        self._locked.close()
        self._locked = None

    def table(
        self, key: object, pieces: Callable[[], Iterable[Mapping[str, Array]]], nbytes: int = 0
    ) -> dict[str, Array]:
        """Return the columns of a table. With a folder, `pieces` is called only once per key.

        Args:
            key: identifier of the columns' input, a value for JSON (see `identity`).
            pieces: function that returns {column: rows}, piece by piece.
            nbytes: size of all columns in bytes, or 0 if it is not known.

        Returns:
            {name: [num_rows, ...]}, mapped if there is a folder.

        Raises:
            ColumnChangedError: pieces differ in dtype.
            ValueError: pieces differ in columns or shapes, columns differ in length, or unpacked
                files are damaged.
            OSError: the disk is full.
            SecurityError: another user has made the folder, or may write to it.
        """
        if self.folder is None:
            columns: dict[str, list[Array]] = {}
            for piece in _checked(pieces()):
                for column, rows in piece.items():
                    columns.setdefault(column, []).append(rows)
            return {column: np.concatenate(columns.pop(column)) for column in list(columns)}
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
        table = self._mapped(self.folder, name)
        if table is None:
            _check_room(self.folder, nbytes)
            with self._new_folder() as (scratch, new):
                _write(new, pieces())
                # Another process can have been faster: then its table is there.
                if scratch.size(f"{name}/{_INDEX}") is None:
                    scratch.rename(new.path.name, name)
            table = self._mapped(self.folder, name)
        if table is None:
            raise FileNotFoundError(f"'{self.folder}' was removed while it was in use")
        return table

    @staticmethod
    def _mapped(folder: Path, name: str) -> dict[str, Array] | None:
        """Return the columns of a table, mapped, or None if the table does not exist."""
        with (
            contextlib.suppress(FileNotFoundError),
            PrivateFolder.open(folder) as scratch,
            scratch.folder(name) as table,
        ):
            return _mapped(table)
        return None

    def once(self, key: object, check: Callable[[], None]) -> None:
        """Call `check`. With a folder, a check that has passed is not repeated for the same key."""

        def checked() -> Iterable[Mapping[str, Array]]:
            check()
            return ()

        self.table(["checked", key], checked)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[PrivateFolder]:
        """Yield a new temporary folder in this storage's folder, and remove it at the end.

        :meta private:
        """
        with self._new_folder() as (_, new):
            yield new

    @contextlib.contextmanager
    def _new_folder(self) -> Iterator[tuple[PrivateFolder, PrivateFolder]]:
        """Yield the storage's folder, and a new folder in it for unfinished files."""
        assert self.folder is not None
        if self._owned and self._locked is None:
            self._lock(self.folder)
        name = f"{token_hex(8)}{_HALF_DONE}"
        with PrivateFolder.make(self.folder) as scratch:
            scratch.make_folder(name, 0o700)
            try:
                with scratch.folder(name) as new:
                    yield scratch, new
            finally:
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def clear(self) -> None:
        """Remove the folder, if it is this user's and no running process has locked it."""
        if self.folder is not None and is_own_folder(self.folder) and not is_locked(self.folder):
            shutil.rmtree(self.folder)

    def _lock(self, folder: Path) -> None:
        """Create the folder, lock it for this process, and remove unfinished files in it."""
        self._locked = PrivateFolder.make(folder)
        lock(self._locked)
        for name in self._locked.names():
            if name.endswith(_HALF_DONE):
                self._locked.remove(name)


def identity(path: Path) -> list[str | int]:
    """Return path, size and modification time of a file, which identify its content."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def _check_room(folder: Path, nbytes: int) -> None:
    folder = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise OSError(
            errno.ENOSPC,
            f"{nbytes:,} bytes must be unpacked to '{folder}', but its disk has {free:,} free: "
            "--tmp names another folder",
        )


def _checked(pieces: Iterable[Mapping[str, Array]]) -> Iterator[Mapping[str, Array]]:
    """Yield tables' pieces ({column: rows}), if columns, dtypes and shapes are as in the first."""
    known: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for piece in pieces:
        if len({len(rows) for rows in piece.values()}) > 1:
            raise ValueError(f"columns differ in length: { {n: len(r) for n, r in piece.items()} }")
        if known and list(piece) != list(known):
            raise ValueError(f"columns differ between pieces: {list(known)}, then {list(piece)}")
        for name, rows in piece.items():
            if rows.dtype.name not in DTYPES:
                raise TypeError(
                    f"column '{name}' cannot be an attribute: dtype '{rows.dtype.name}' is not "
                    f"supported: khop stores {', '.join(DTYPES)}"
                )
            dtype, shape = known.setdefault(name, (rows.dtype, rows.shape[1:]))
            if rows.dtype != dtype:
                raise ColumnChangedError(name, np.result_type(dtype, rows.dtype))
            if rows.shape[1:] != shape:
                raise ValueError(
                    f"rows of column '{name}' differ in shape: {list(shape)}, then "
                    f"{list(rows.shape[1:])}"
                )
        yield piece


def _write(folder: PrivateFolder, pieces: Iterable[Mapping[str, Array]]) -> None:
    index: dict[str, tuple[str, list[int]]] = {}
    files: dict[str, IO[bytes]] = {}
    with contextlib.ExitStack() as stack:
        for piece in _checked(pieces):
            for name, rows in piece.items():
                if name not in files:
                    files[name] = stack.enter_context(folder.create(f"{len(files)}.bin"))
                    index[name] = rows.dtype.name, [0, *rows.shape[1:]]
                with _explained(folder.path):
                    files[name].write(bytes_of(np.ascontiguousarray(rows)))
                index[name][1][0] += len(rows)
        with _explained(folder.path):
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
    with folder.create(_INDEX) as opened:
        opened.write(json.dumps(index).encode())


def _mapped(folder: PrivateFolder) -> dict[str, Array]:
    """Map the columns of a table from the folder that it was unpacked to.

    Raises:
        FileNotFoundError: the folder has no index.
        ValueError: a file has another size than the index states.
    """
    with folder.read(_INDEX) as opened:
        index: dict[str, tuple[str, list[int]]] = json.loads(opened.read(_MOST_INDEX_BYTES))
    columns: dict[str, Array] = {}
    for i, (name, (dtype, lengths)) in enumerate(index.items()):
        shape = tuple(check_count(length, f"a length in '{folder.path}'") for length in lengths)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize if dtype in DTYPES else None
        with folder.read(f"{i}.bin") as opened:
            if not shape or os.fstat(opened.fileno()).st_size != nbytes:
                raise ValueError(f"'{folder.path}' is damaged, '{i}.bin' has changed: remove it")
            if nbytes == 0:
                columns[name] = np.empty(shape, dtype)
            else:
                columns[name] = np.memmap(opened, dtype, "r", shape=shape).view(np.ndarray)
    return columns


def _explained(folder: Path) -> AbstractContextManager[None]:
    return explained_write(f"unpack input to '{folder}'", folder, "--tmp names another folder")
