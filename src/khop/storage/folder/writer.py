"""Writer of partition folders: complete or not at all. Runs in partitioners.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any

import numpy as np

from khop.data import Feature
from khop.data.arrays import storage_dtype
from khop.storage.folder.meta import FORMAT, META_FILE, AttrMeta, FolderMeta, content_of, sealed
from khop.typing import Array, IntArray

# Bytes of rows copied at a time: limits the extra memory for attributes.
_CHUNK_BYTES = 64 << 20


class FolderWriter:
    """Writer of a folder. It writes a temporary sibling and renames it: complete or absent.

    Use as a context manager; `finish` renames the folder. After an exception nothing is left.

    Args:
        root: path of the folder.
        overwrite: replace a folder that exists.

    Raises:
        FileExistsError: `root` exists and `overwrite` is False, or it is no partition folder.
        OSError: the folder cannot be created.
    """

    def __init__(self, root: str | os.PathLike[str], overwrite: bool = False) -> None:
        self.root = Path(root).absolute()
        self._overwrite = overwrite
        check_output(self.root, overwrite)
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            # Not by tempfile, whose folders ignore the umask and have mode 0700.
            self._temporary = self.root.with_name(f".{self.root.name}.{token_hex(8)}.tmp")
            self._temporary.mkdir()
        except OSError as error:
            # EEXIST: the parent exists, and is a file.
            number = errno.ENOTDIR if error.errno == errno.EEXIST else error.errno or errno.EIO
            raise OSError(
                number, f"cannot write a partition folder to '{self.root}': {os.strerror(number)}"
            ) from None
        self._paths: list[str] = []

    def __enter__(self) -> FolderWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def create(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Create an array to be filled piece by piece.

        Raises:
            OSError: the disk has no room for it.
        """
        file = self._new_file(path)
        if 0 in shape:  # nothing to map
            np.save(file, np.empty(shape, dtype))
            return np.empty(shape, dtype)
        with self._writing(file, math.prod(shape) * dtype.itemsize):
            mapped: Array = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
            # Allocate all of it now: a page without room on the disk would later kill the process.
            with file.open("rb+") as opened:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        return mapped

    def save(self, path: str, array: Array) -> None:
        """Write an array that is in memory.

        Raises:
            OSError: the disk has no room for it.
        """
        file = self._new_file(path)
        with self._writing(file, array.nbytes):
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)

    @contextlib.contextmanager
    def _writing(self, file: Path, nbytes: int) -> Iterator[None]:
        """Add file name, size, free space and advice to the error of a failed write."""
        try:
            yield
        except OSError as error:
            free = shutil.disk_usage(self._temporary).free
            name = file.relative_to(self._temporary)
            # NumPy reports how much of an array it wrote, but not the cause.
            number = error.errno or (errno.ENOSPC if free < nbytes else errno.EFBIG)
            raise OSError(
                number,
                f"cannot write {nbytes:,} bytes of '{name}' for the partition folder "
                f"'{self.root}': {os.strerror(number)}. {free:,} bytes are free there. Nothing "
                "of the folder is kept; make room, or choose another place",
            ) from error

    def save_rows(self, path: str, feature: Feature, rows: IntArray) -> None:
        """Write rows of an attribute, a chunk at a time."""
        out = self.create(path, storage_dtype(feature.dtype), (len(rows), *feature.row_shape))
        row_bytes = AttrMeta(feature.dtype, feature.row_shape).row_bytes
        step = max(1, _CHUNK_BYTES // max(1, row_bytes))
        for first in range(0, len(rows), step):
            chunk = np.ascontiguousarray(rows[first : first + step])
            feature.gather(chunk, out[first : first + step])

    def _new_file(self, path: str) -> Path:
        file = self._temporary / path
        file.parent.mkdir(parents=True, exist_ok=True)
        self._paths.append(path)
        return file

    def finish(self, meta: FolderMeta) -> None:
        """Write meta.json, sync all files to disk, and rename the folder to its final path."""
        files = {}
        for path in self._paths:
            file = self._temporary / path
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
            files[path] = {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
        with (self._temporary / META_FILE).open("wb") as opened_meta:
            opened_meta.write(sealed(content_of(meta, files)))
            opened_meta.flush()
            os.fsync(opened_meta.fileno())
        for folder, _, _ in os.walk(self._temporary):
            _sync_folder(Path(folder))
        self._replace()

    def _replace(self) -> None:
        if self._overwrite and self.root.exists():
            aside = Path(tempfile.mkdtemp(prefix=f".{self.root.name}.", dir=self.root.parent))
            self.root.rename(aside / "old")
            self._temporary.rename(self.root)
            shutil.rmtree(aside)
        else:
            self._temporary.rename(self.root)
        _sync_folder(self.root.parent)


def check_output(root: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise FileExistsError if `root` must not be written."""
    root = Path(root).absolute()
    if not os.path.lexists(root):
        return
    if not overwrite:
        raise FileExistsError(
            f"'{root}' exists: choose another output folder or pass overwrite=True "
            "(--overwrite on the command line)"
        )
    if not _may_be_replaced(root):
        raise FileExistsError(f"'{root}' is not a partition folder: it will not be overwritten")


def _may_be_replaced(root: Path) -> bool:
    """Return True for an empty folder or a partition folder, of any version, whole or damaged."""
    if root.is_symlink() or not root.is_dir():
        return False
    meta = root / META_FILE
    if not meta.is_file():
        return not any(root.iterdir())
    with meta.open("rb") as opened:
        return FORMAT.encode() in opened.read(256)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
