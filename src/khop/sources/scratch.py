"""Columns of input that cannot be mapped where they lie: unpacked, once, to files that can.

What is deflated (`.npz`, `.gz`), text (CSV) or encoded (Parquet) has no place for row i that a
reader could go to. Partitioning copies rows in any order, so such input is written out as flat
files first, one pass, some megabytes at a time. Checkpoints of the decompressor would save the
disk, but an attribute in another order than the file's would be unpacked again for every few rows.
Any process; imports no torch.
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
from types import TracebackType
from typing import Any, NamedTuple

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
    """A piece of a column has another dtype than those before it: begin again with `dtype`."""

    def __init__(self, column: str, dtype: np.dtype[Any]) -> None:
        super().__init__(column)
        self.column, self.dtype = column, dtype


class _Flat(NamedTuple):
    """File of a column; dtype, and shape of a row."""

    file: Any
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]


class Scratch:
    """Folder of unpacked columns, or memory.

    As a context manager it locks the folder, and removes it at the end, unless the work that it is
    for can go on. Several processes may share one without that: a table is there as a whole, or
    not at all.

    Args:
        folder: made when it is needed. If None (default), columns are kept in memory.
        memory: bytes that the whole program may use; reading takes a share of them. If None, 1 GB.

    Attributes:
        piece_bytes: about how many bytes are read at a time.

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
        """Return the scratch of a partition folder: in `tmp`, or beside it. See `left_overs`."""
        path = Path(output).absolute()
        folder = path.parent if tmp is None else Path(tmp)
        granted = None if memory is None else parse_bytes(memory)
        return cls(folder / f".khop-{path.name}-input.stage", granted)

    def __enter__(self) -> Scratch:
        self._owned = True
        if self.folder is not None and os.path.lexists(self.folder):
            self._lock(self.folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the folder, unless the work can go on."""
        self._owned = False
        if self._locked is None or self.folder is None:
            return
        if kind is None or not issubclass(kind, RESUMABLE):
            shutil.rmtree(self.folder, ignore_errors=True)
        self._locked.close()
        self._locked = None

    def table(
        self,
        key: object,
        pieces: Callable[[], Iterable[Mapping[str, Array]]],
        nbytes: int = 0,
    ) -> dict[str, Array]:
        """Return columns that are made once.

        Args:
            key: what the columns are made of, as JSON; see `identity`.
            pieces: returns the rows of all columns, piece by piece.
            nbytes: how many bytes they will have, if that is known.

        Returns:
            {name: [num_rows, ...]}, mapped if there is a folder.

        Raises:
            ColumnChangedError: pieces differ in dtype.
            ValueError: pieces differ in columns or shapes, or columns in length; what is unpacked
                is damaged.
            OSError: the disk has no room.
            SecurityError: another user has made the folder, or may write to it.
        """
        if self.folder is None:
            return _in_memory(pieces())
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
        made = self._mapped(self.folder, name)
        if made is None:
            _check_room(self.folder, nbytes)
            with self._new_folder() as (place, new):
                _write(new, pieces())
                # Another process may have been faster: then its table is there.
                if place.size(f"{name}/{_INDEX}") is None:
                    place.rename(new.path.name, name)
            made = self._mapped(self.folder, name)
        if made is None:
            raise FileNotFoundError(f"'{self.folder}' was removed while it was in use")
        return made

    @staticmethod
    def _mapped(folder: Path, name: str) -> dict[str, Array] | None:
        """Map the columns of a table; None if it has not been made."""
        with (
            contextlib.suppress(FileNotFoundError),
            PrivateFolder.open(folder) as place,
            place.folder(name) as table,
        ):
            return _mapped(table)
        return None

    def once(self, key: object, check: Callable[[], None]) -> None:
        """Run a check that needs to be run once, however often its input is opened."""

        def checked() -> Iterable[Mapping[str, Array]]:
            check()
            return ()

        self.table(["checked", key], checked)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[PrivateFolder]:
        """Make a folder that is removed at the end; only if there is a folder at all.

        :meta private:
        """
        with self._new_folder() as (_, new):
            yield new

    @contextlib.contextmanager
    def _new_folder(self) -> Iterator[tuple[PrivateFolder, PrivateFolder]]:
        """Make a folder for what is half done; yields the scratch's and the new one."""
        assert self.folder is not None
        if self._owned and self._locked is None:
            self._lock(self.folder)
        name = f"{token_hex(8)}{_HALF_DONE}"
        with PrivateFolder.make(self.folder) as place:
            place.make_folder(name, 0o700)
            try:
                with place.folder(name) as new:
                    yield place, new
            finally:
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def clear(self) -> None:
        """Remove the folder of a run that was ended; not of one that is at work."""
        if self.folder is not None and is_own_folder(self.folder) and not is_locked(self.folder):
            shutil.rmtree(self.folder)

    def _lock(self, folder: Path) -> None:
        """Make the folder, lock it, and remove what is half done."""
        place = PrivateFolder.make(folder)
        lock(place)
        self._locked = place
        for left in place.names():
            if left.endswith(_HALF_DONE):
                place.remove(left)


def identity(path: Path) -> list[Any]:
    """Return what tells a file from others, and from itself at another time."""
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


def _checked(
    piece: Mapping[str, Array], known: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
) -> None:
    """Raise an error unless a piece is like those before it."""
    if len({len(rows) for rows in piece.values()}) > 1:
        raise ValueError(f"columns differ in length: { {n: len(r) for n, r in piece.items()} }")
    if known and list(piece) != list(known):
        raise ValueError(f"columns differ from piece to piece: {list(known)}, then {list(piece)}")
    for name, rows in piece.items():
        if rows.dtype.name not in DTYPES:
            raise TypeError(
                f"column '{name}' cannot be an attribute: dtype '{rows.dtype.name}' is not "
                f"supported: khop stores {', '.join(DTYPES)}"
            )
        dtype, shape = known.get(name, (rows.dtype, rows.shape[1:]))
        if rows.dtype != dtype:
            raise ColumnChangedError(name, np.result_type(dtype, rows.dtype))
        if rows.shape[1:] != shape:
            raise ValueError(
                f"rows of column '{name}' differ in shape: {list(shape)}, then "
                f"{list(rows.shape[1:])}"
            )


def _in_memory(pieces: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    found: dict[str, list[Array]] = {}
    for piece in pieces:
        _checked(piece, {name: (rows[0].dtype, rows[0].shape[1:]) for name, rows in found.items()})
        for name, rows in piece.items():
            found.setdefault(name, []).append(rows)
    return {name: np.concatenate(found.pop(name)) for name in list(found)}


def _write(folder: PrivateFolder, pieces: Iterable[Mapping[str, Array]]) -> None:
    flat: dict[str, _Flat] = {}
    count = 0
    with contextlib.ExitStack() as stack:
        for piece in pieces:
            _checked(
                piece, {name: (column.dtype, column.row_shape) for name, column in flat.items()}
            )
            for name, rows in piece.items():
                if name not in flat:
                    file = stack.enter_context(folder.create(f"{len(flat)}.bin"))
                    flat[name] = _Flat(file, rows.dtype, rows.shape[1:])
                with _explained(folder.path):
                    flat[name].file.write(bytes_of(np.ascontiguousarray(rows)))
            count += len(next(iter(piece.values()), ()))
        with _explained(folder.path):
            for column in flat.values():
                column.file.flush()
                os.fsync(column.file.fileno())
    index = {name: [column.dtype.name, [count, *column.row_shape]] for name, column in flat.items()}
    with folder.create(_INDEX) as opened:
        opened.write(json.dumps(index).encode())


def _mapped(folder: PrivateFolder) -> dict[str, Array]:
    """Map the columns of a table.

    Raises:
        FileNotFoundError: it has no index.
        ValueError: index and files do not fit.
    """
    with folder.read(_INDEX) as opened:
        index: dict[str, tuple[str, list[int]]] = json.loads(opened.read(_MOST_INDEX_BYTES))
    found: dict[str, Array] = {}
    for i, (name, (dtype, lengths)) in enumerate(index.items()):
        shape = tuple(check_count(length, f"a length in '{folder.path}'") for length in lengths)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize if dtype in DTYPES else None
        with folder.read(f"{i}.bin") as opened:
            if not shape or os.fstat(opened.fileno()).st_size != nbytes:
                raise ValueError(f"'{folder.path}' is damaged, '{i}.bin' has changed: remove it")
            if nbytes == 0:
                found[name] = np.empty(shape, dtype)
            else:
                found[name] = np.memmap(opened, dtype, "r", shape=shape).view(np.ndarray)
    return found


def _explained(folder: Path) -> AbstractContextManager[None]:
    return explained_write(f"unpack input to '{folder}'", folder, "--tmp names another folder")
