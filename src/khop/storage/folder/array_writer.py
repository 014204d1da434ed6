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
from typing import Any

import numpy as np

from khop.storage.folder.array_file import ArrayFile, Written
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
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.written: dict[str, Written] = {}
        if not (folder / ATTEMPTS).is_dir():
            raise FileNotFoundError(
                errno.ENOENT,
                f"machine {socket.gethostname()} does not see '{folder}', where the folder is "
                "written: write to storage that all machines share, under one path",
            )

    def has(self, path: str) -> bool:
        """Return False: an attempt begins anew."""
        del path
        return False

    @contextlib.contextmanager
    def array(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[ArrayFile]:
        """Open an array to be written piece by piece; it is complete when the context ends."""
        attempt = self._folder / ATTEMPTS / f"{token_hex(8)}-{Path(path).name}"

        def explain(file: Path, nbytes: int) -> AbstractContextManager[None]:
            del file
            what = f"write {nbytes:,} bytes of '{path}' in '{self._folder}'"
            return explained_write(what, self._folder, "Nothing of it is kept; make room")

        file = ArrayFile(attempt, dtype, shape, explain)
        self.written[path] = file.written()  # keeps its place in the order of opening
        try:
            yield file
            file.sync()
            written = file.close()
            # Not with parents=True: the folder may be complete, and have another name, since then.
            for parent in reversed(Path(path).parents[:-1]):
                (self._folder / parent).mkdir(exist_ok=True)
            attempt.replace(self._folder / path)
        except BaseException:
            file.abandon()
            attempt.unlink(missing_ok=True)
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
