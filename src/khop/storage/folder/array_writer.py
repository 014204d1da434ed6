"""Writers of the arrays of a folder: what those who fill it need, and one for other processes.

A `FolderWriter` makes the folder. Processes of other machines may write some of its files, each
with an `AttemptWriter`: all of them see the folder, on storage that they share. Imports no torch.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any

import numpy as np

from khop.private_folders import PrivateFolder
from khop.storage.folder.array_file import ArrayFile
from khop.storage.folder.checksums import Written
from khop.typing import Array

ATTEMPTS = ".attempts"
"""Folder, in one that is being written, of files that attempts have not completed."""


class ArrayWriter(abc.ABC):
    """Writer of arrays of a folder."""

    @abc.abstractmethod
    def has(self, path: str) -> bool:
        """Return True if an array is complete; it is then part of the folder."""

    @abc.abstractmethod
    def array(
        self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> AbstractContextManager[ArrayFile]:
        """Open an array to be written piece by piece; it is complete when the context ends.

        Raises:
            OSError: the disk has no room for it.
        """

    def save(self, path: str, array: Array) -> None:
        """Write an array that is in memory.

        Raises:
            OSError: the disk has no room for it.
        """
        if array.dtype.hasobject:
            raise ValueError(f"Object arrays cannot be saved (got '{path}')")
        if self.has(path):
            return
        with self.array(path, array.dtype, array.shape) as file:
            file.append(array[file.rows :])


class AttemptWriter(ArrayWriter):
    """Writer of some files of a folder that another process makes.

    A file gets its name when it is complete and on disk. So what is written may be written again,
    also by two processes at a time, as long as both write the same.

    Args:
        folder: what `FolderWriter.shared` returns.

    Attributes:
        written: path -> size and checksum of each file, in the order in which they were opened, for
            `FolderWriter.take`.

    Raises:
        FileNotFoundError: the folder is not there, on this machine.
        SecurityError: it is another user's, or others may write to it.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.close()

    def has(self, path: str) -> bool:
        """Return False: an attempt begins anew."""
        del path
        return False

    @contextlib.contextmanager
    def array(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[ArrayFile]:
        """Open an array to be written piece by piece; it is complete when the context ends."""
        attempt = f"{ATTEMPTS}/{token_hex(8)}-{Path(path).name}"

        def explain(file: Path, nbytes: int) -> AbstractContextManager[None]:
            del file
            what = f"write {nbytes:,} bytes of '{path}' in '{self._folder.path}'"
            return explained_write(what, self._folder.path, "Nothing of it is kept; make room")

        file = ArrayFile(self._folder, attempt, dtype, shape, explain)
        self.written[path] = file.written()  # keeps its place in the order of opening
        try:
            yield file
            file.sync()
            written = file.close()
            self._folder.make_folder(str(Path(path).parent))
            # Not if the folder is complete since then: attempts are removed first.
            self._folder.rename(attempt, path)
        except BaseException:
            file.abandon()
            self._folder.unlink(attempt, missing_ok=True)
            raise
        self.written[path] = written


@contextlib.contextmanager
def explained_write(what: str, folder: Path, advice: str) -> Iterator[None]:
    """Add what was written, free space and advice to the error of a failed write.

    Args:
        what: what is done, as in "write 8 bytes of 'a'".
        folder: on the disk that is written to.
        advice: what is kept, and what to do.
    """
    try:
        yield
    except OSError as error:
        number = error.errno or errno.EIO
        raise OSError(
            number,
            f"cannot {what}: {os.strerror(number)}. "
            f"{shutil.disk_usage(folder).free:,} bytes are free there. {advice}",
        ) from error
