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
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from khop.data.arrays import DTYPES, bytes_of
from khop.data.hot_rows import parse_bytes
from khop.storage.folder import RESUMABLE, explained_write, is_locked, lock
from khop.typing import Array

_INDEX = "columns.json"
_HALF_DONE = ".new"
_PIECE_BYTES = 16 << 20
_MEMORY = 1 << 30
_LEAST_PIECE = 1 << 10


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
        self._lock: int | None = None

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
        if self.folder is not None and self.folder.is_dir():
            self._open(self.folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the folder, unless the work can go on."""
        self._owned = False
        if self._lock is None or self.folder is None:
            return
        if kind is None or not issubclass(kind, RESUMABLE):
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self._lock = None

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
            ValueError: pieces differ in columns or shapes, or columns in length.
            OSError: the disk has no room.
        """
        if self.folder is None:
            return _in_memory(pieces())
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
        made = self.folder / name
        if not (made / _INDEX).is_file():
            _check_room(self.folder, nbytes)
            with self.temporary() as new:
                _write(new, pieces())
                # Another process may have been faster: then its table is there.
                with contextlib.suppress(FileExistsError):
                    _rename(new, made)
        return _mapped(made)

    def once(self, key: object, check: Callable[[], None]) -> None:
        """Run a check that needs to be run once, however often its input is opened."""

        def checked() -> Iterable[Mapping[str, Array]]:
            check()
            return ()

        self.table(["checked", key], checked)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """Make a folder that is removed at the end; only if there is a folder at all."""
        assert self.folder is not None
        self._open(self.folder)
        new = Path(tempfile.mkdtemp(_HALF_DONE, dir=self.folder))
        try:
            yield new
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def clear(self) -> None:
        """Remove the folder of a run that was ended; not of one that is at work."""
        if self.folder is not None and self.folder.is_dir() and not is_locked(self.folder):
            shutil.rmtree(self.folder)

    def _open(self, folder: Path) -> None:
        """Make the folder, lock it if it is this one's, and remove what is half done."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._owned and self._lock is None:
            self._lock = lock(folder)
            for left in folder.glob(f"*{_HALF_DONE}"):
                shutil.rmtree(left)


def identity(path: Path) -> list[Any]:
    """Return what tells a file from others, and from itself at another time."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def _rename(new: Path, made: Path) -> None:
    try:
        new.rename(made)
    except OSError as error:  # ENOTEMPTY or EEXIST, by file system
        if (made / _INDEX).is_file():
            raise FileExistsError(str(made)) from error
        raise


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


def _write(folder: Path, pieces: Iterable[Mapping[str, Array]]) -> None:
    flat: dict[str, _Flat] = {}
    count = 0
    with contextlib.ExitStack() as stack:
        for piece in pieces:
            _checked(
                piece, {name: (column.dtype, column.row_shape) for name, column in flat.items()}
            )
            for name, rows in piece.items():
                if name not in flat:
                    file = stack.enter_context((folder / f"{len(flat)}.bin").open("wb"))
                    flat[name] = _Flat(file, rows.dtype, rows.shape[1:])
                with _explained(folder):
                    flat[name].file.write(bytes_of(np.ascontiguousarray(rows)))
            count += len(next(iter(piece.values()), ()))
        with _explained(folder):
            for column in flat.values():
                column.file.flush()
                os.fsync(column.file.fileno())
    index = {name: [column.dtype.name, [count, *column.row_shape]] for name, column in flat.items()}
    (folder / _INDEX).write_text(json.dumps(index))


def _mapped(folder: Path) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for i, (name, (dtype, shape)) in enumerate(json.loads((folder / _INDEX).read_bytes()).items()):
        if 0 in shape:
            found[name] = np.empty(shape, dtype)
        else:
            mapped = np.memmap(folder / f"{i}.bin", dtype, "r", shape=tuple(shape))
            found[name] = mapped.view(np.ndarray)
    return found


def _explained(folder: Path) -> AbstractContextManager[None]:
    return explained_write(f"unpack input to '{folder}'", folder, "--tmp names another folder")
