"""Writers of the arrays of a partition folder. Used by partitioners.

A `FolderWriter` makes the folder. Processes of other machines may write some of its files, each
with an `AttemptWriter`. All of them see the folder, on storage that they share.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import math
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

import numpy as np

from khop.data.arrays import bytes_of
from khop.private_folders import PrivateFolder
from khop.storage.folder.checksums import RangeHash, Written
from khop.storage.folder.npy import npy_header
from khop.typing import Array

ATTEMPTS = ".attempts"
"""Name of the subfolder with the incomplete files of each `AttemptWriter`."""

_PIECE = 1 << 24


class Explain(Protocol):
    """Function that returns a context for a write of `nbytes` bytes to `file`.

    If the write fails, the context adds an explanation to the error.
    """

    def __call__(self, file: Path, nbytes: int) -> AbstractContextManager[None]: ...


class ArrayFile:
    """Writer of one .npy file, from its first row to its last, with checksums.

    The file has its final size from the start, so that a full disk is an error at once.

    Args:
        folder: folder of the file.
        name: path of the file in the folder.
        dtype, shape: dtype and shape of the array.
        explain: returns a context for each write, which explains its error.
        written: size and digests of the part that an earlier run wrote. If None, a new file.

    Attributes:
        path: path of the file.
        dtype: dtype of the array.
        rows: number of rows written so far. If rows have no bytes, 0.

    Raises:
        OSError: the disk is full.
        SecurityError: another user has made the file, or it is a link.
        ValueError: the file has changed since the earlier run.
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
                # Allocate the whole file now: a full disk is an error before the work is done.
                os.posix_fallocate(self._file.fileno(), 0, nbytes)
                self._file.write(header)
                self._hash.update(memoryview(header))
            elif self._hash.resume(self._file.fileno(), written):
                self._file.seek(written.bytes)
            else:
                raise ValueError(
                    f"'{self.path}' has changed since it was written: nothing of the "
                    "folder is kept; run the same again to begin anew"
                )
        self.rows = (self._hash.bytes - len(header)) // max(1, self._row_bytes)

    def append(self, rows: Array) -> None:
        """Write further rows of the array.

        Raises:
            ValueError: there are too many rows, or they have another dtype or shape.
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
        """Return the length and the checksums of the bytes written so far."""
        return self._hash.written()

    def sync(self) -> None:
        """Flush all bytes written so far to the disk."""
        with self._explain(self.path, self._hash.bytes):
            os.fsync(self._file.fileno())

    def close(self) -> Written:
        """Close the file, which must be complete. Return its length and checksums."""
        if self._row_bytes and self.rows != self._shape[0]:
            raise ValueError(f"'{self.path.name}' has {self.rows} of {self._shape[0]} rows")
        self._file.close()
        return self.written()

    def abandon(self) -> None:
        """Close the file while it is incomplete. The file itself is not removed."""
        self._file.close()


class ArrayWriter(abc.ABC):
    """Base of the writers of a partition folder's arrays."""

    @abc.abstractmethod
    def has(self, path: str) -> bool:
        """Return True if the array at `path` is complete, also if an interrupted run wrote it."""

    @abc.abstractmethod
    def array(
        self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> AbstractContextManager[ArrayFile]:
        """Open a new array for writing, as a context. It is complete when the context ends.

        `path` is its path in the folder.

        Raises:
            OSError: the disk is full.
        """

    def save(self, path: str, array: Array) -> None:
        """Write an array that is in memory to `path` in the folder. Errors are as for `array`."""
        if array.dtype.hasobject:
            raise ValueError(f"Object arrays cannot be saved (got '{path}')")
        if self.has(path):
            return
        with self.array(path, array.dtype, array.shape) as file:
            file.append(array[file.rows :])


class AttemptWriter(ArrayWriter):
    """Writer of some files of a folder that another process makes.

    A file gets its name when it is complete and on disk. So two processes may write the same file,
    also at the same time, if both write the same content.

    Args:
        folder: path that `FolderWriter.shared` returned.

    Attributes:
        written: path -> size and checksum of each file, in the order in which they were opened, for
            `FolderWriter.take`.

    Raises:
        FileNotFoundError: the folder is not on this machine.
        SecurityError: the folder is another user's, or others may write to it.
    """

    def __init__(self, folder: Path) -> None:
        self.written: dict[str, Written] = {}
        try:
            self._folder = PrivateFolder.open(folder)
        except FileNotFoundError:
            raise FileNotFoundError(
                errno.ENOENT,
                f"machine {socket.gethostname()} does not see '{folder}', where the folder is "
                "written: write to storage that all machines share, under one path",
            ) from None

    def __enter__(self) -> AttemptWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.close()

    def has(self, path: str) -> bool:
        del path
        return False

    @contextlib.contextmanager
    def array(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[ArrayFile]:
        attempt = f"{ATTEMPTS}/{token_hex(8)}-{Path(path).name}"

        def explain(file: Path, nbytes: int) -> AbstractContextManager[None]:
            del file
            action = f"write {nbytes:,} bytes of '{path}' in '{self._folder.path}'"
            return explained_write(action, self._folder.path, "Nothing of it is kept; make room")

        file = ArrayFile(self._folder, attempt, dtype, shape, explain)
        self.written[path] = file.written()  # keeps its position in the order of opening
        try:
            yield file
            file.sync()
            written = file.close()
            self._folder.make_folder(str(Path(path).parent))
            # Fails if the folder has been completed since: `finish` removes attempts first.
            self._folder.rename(attempt, path)
        except BaseException:
            file.abandon()
            self._folder.unlink(attempt, missing_ok=True)
            raise
        self.written[path] = written


@contextlib.contextmanager
def explained_write(action: str, folder: Path, advice: str) -> Iterator[None]:
    """Add the action, the free space and advice to the error of a failed write.

    Args:
        action: as in "write 8 bytes of 'a'".
        folder: a folder on the disk that is written to.
        advice: what is kept, and what the user should do.
    """
    try:
        yield
    except OSError as error:
        code = error.errno or errno.EIO
        raise OSError(
            code,
            f"cannot {action}: {os.strerror(code)}. "
            f"{shutil.disk_usage(folder).free:,} bytes are free there. {advice}",
        ) from error
