"""An .npy file that is written from its first row to its last. Runs in partitioners.

Imports no torch.
"""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from khop.data.arrays import bytes_of
from khop.private_folders import PrivateFolder
from khop.storage.folder.checksums import RangeHash, Written
from khop.storage.folder.npy import npy_header
from khop.typing import Array

_PIECE = 1 << 24


class Explain(Protocol):
    """Context that adds to the error of a failed write of so many bytes of a file."""

    def __call__(self, file: Path, nbytes: int) -> AbstractContextManager[None]: ...


class ArrayFile:
    """Writer of one array, row after row; checksums are computed on the way.

    The file has its final size from the start, so that a full disk shows at once.

    Args:
        folder: holds the file.
        name: of the file in it, a path; made, or gone on with.
        dtype, shape: of the array.
        explain: adds to errors of the disk.
        written: how far a former run came. If None, the file is begun.

    Attributes:
        path: of the file.
        dtype: of the array.
        rows: rows written so far; 0 if rows have no bytes.

    Raises:
        OSError: the disk has no room for it.
        SecurityError: another user has made the file, or it is a link.
        ValueError: what a former run wrote is not what is there.
    """

    def __init__(
        self,
        folder: PrivateFolder,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        explain: Explain,
        written: Written | None = None,
    ) -> None:
        self.path = folder.path / name
        self.dtype, self._shape, self._explain = dtype, shape, explain
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._hash = RangeHash()
        header = npy_header(dtype, shape)
        nbytes = len(header) + shape[0] * self._row_bytes
        with explain(self.path, nbytes):
            opened = folder.create if written is None else folder.update
            self._file = opened(name, buffering=0)
            if written is None:
                # Allocate all of it now: a disk that is full is known before the work is done.
                os.posix_fallocate(self._file.fileno(), 0, nbytes)
                self._file.write(header)
                self._hash.update(memoryview(header))
            else:
                self._go_on(written)
        self.rows = (self._hash.bytes - len(header)) // max(1, self._row_bytes)

    def _go_on(self, written: Written) -> None:
        if not self._hash.resume(self._file.fileno(), written):
            raise ValueError(
                f"'{self.path}' has changed since it was written: nothing of the "
                "folder is kept; run the same again to begin anew"
            )
        self._file.seek(written.bytes)

    def append(self, rows: Array) -> None:
        """Write further rows.

        Raises:
            OSError: the disk has no room, or fails.
            ValueError: rows of another dtype or shape, or more than the array has.
        """
        if rows.dtype != self.dtype or rows.shape[1:] != self._shape[1:]:
            raise ValueError(
                f"'{self.path.name}' has rows of {self.dtype} {list(self._shape[1:])} (got "
                f"{rows.dtype} {list(rows.shape[1:])})"
            )
        if rows.nbytes == 0:
            return
        if self.rows + len(rows) > self._shape[0]:
            raise ValueError(f"'{self.path.name}' has {self._shape[0]} rows: these are too many")
        self.rows += len(rows)
        content = bytes_of(np.ascontiguousarray(rows))
        with self._explain(self.path, rows.nbytes):
            for first in range(0, len(content), _PIECE):
                piece = content[first : first + _PIECE]
                self._hash.update(piece)
                while piece:
                    piece = piece[self._file.write(piece) :]

    def written(self) -> Written:
        """Return what is known of the file so far."""
        return self._hash.written()

    def sync(self) -> None:
        """Wait until the disk has all that was written."""
        with self._explain(self.path, self._hash.bytes):
            os.fsync(self._file.fileno())

    def close(self) -> Written:
        """Close the complete file and return its size and checksums."""
        if self._row_bytes and self.rows != self._shape[0]:
            raise ValueError(f"'{self.path.name}' has {self.rows} of {self._shape[0]} rows")
        self._file.close()
        return self.written()

    def abandon(self) -> None:
        """Close a file that is not complete."""
        self._file.close()
