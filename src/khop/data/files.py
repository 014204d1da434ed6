"""Files that users name: opened without blocking, read without running code, pickled as paths."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from khop.cores import memory_limit
from khop.safe_versions import check_torch
from khop.typing import Array

if TYPE_CHECKING:
    from torch import Tensor

# Share of the memory that files may fill: processes and batches need the rest.
MOST_HELD = 0.8

_MAGIC = b"\x93NUMPY"


def check_regular(path: str | os.PathLike[str]) -> Path:
    """Check that a path leads to a regular file, also through links, and return it.

    Opening a FIFO would block until a process writes to it.

    Raises:
        OSError: the path does not exist or cannot be accessed, as the system reports it.
        ValueError: the path leads to a FIFO, a folder, a socket or a device.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"'{path}' is no regular file: khop reads neither pipes nor devices")
    return path


def load_npy(path: str | os.PathLike[str], mmap_mode: Literal["r", "c"] | None = None) -> Array:
    """Load an array of numbers, or of texts, from an .npy file.

    Args:
        path: path of the file.
        mmap_mode: 'r' or 'c' maps the file, see `numpy.load`. If None, the file is read.

    Raises:
        OSError, ValueError: no regular file, or no array. Python objects are never unpickled.
    """
    path = check_regular(path)
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(
                f"'{path}' cannot be read as an array of numbers: it is not an .npy file"
            )
    try:
        # An ordinary view: indexing a np.memmap costs microseconds.
        array: Array = np.load(path, mmap_mode, allow_pickle=False).view(np.ndarray)
    except (ValueError, OverflowError, EOFError) as error:
        # NumPy's message advises to allow pickles.
        reason = str(error)
        if "pickle" in reason or "object" in reason.lower():
            reason = "it holds Python objects, or a header that NumPy does not write for numbers"
        elif any(words in reason for words in ("mmap length", "reshape array", "could only read")):
            size = path.stat().st_size
            reason = f"it has {size:,} bytes, fewer than its header says; write or copy it again"
        raise ValueError(f"'{path}' cannot be read as an array of numbers: {reason}") from None
    return array


def load_torch(path: str | os.PathLike[str], instead: str) -> Any:
    """Load a file that `torch.save` wrote, without running code that is in it.

    All of khop reads such files with this function. It refuses versions of torch that could run
    code from a file.

    Args:
        path: path of the file.
        instead: advice for users whose torch is too old, as in "pass the tensor itself".

    Raises:
        SecurityError: torch is older than 2.10.
        OSError: there is no such file.
        ValueError: no regular file, or the content takes more memory than the file: the file is
            compressed, or has tensors that repeat values (stride 0).
        Exception: error of `torch.load` for a damaged file, or for objects that could run code.
    """
    import torch

    check_torch(path, instead)
    path = check_regular(path)
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(info.file_size for info in archive.infolist())
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise ValueError(f"'{path}' is damaged: {error}") from None
        if unpacked > 4 * path.stat().st_size + (1 << 20):  # torch.save compresses nothing
            raise ValueError(f"'{path}' is compressed: {unpacked:,} bytes are in it")
    content = torch.load(path, map_location="cpu", weights_only=True)
    if any(
        t.layout is torch.strided and t.nbytes > t.untyped_storage().nbytes()
        for t in _tensors(content)
    ):
        raise ValueError(
            f"'{path}' holds a tensor with more values than are stored, as expand() makes them: "
            "save tensor.clone()"
        )
    return content


def _tensors(content: object) -> Iterator[Tensor]:
    """Yield the tensors in nested containers, each container once: they may share their entries."""
    import torch

    left, seen = [content], set[int]()
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, (list, tuple)):
            left += value
        else:
            left += getattr(value, "__dict__", {}).values()


def mapped_file(array: Array) -> np.memmap[Any, Any] | None:
    """Return the mapped file that an array is a view of. If the array is in memory, None."""
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base.base, mmap.mmap):
        base = base.base
    return base if isinstance(base, np.memmap) else None


def release_pages(array: Array) -> None:
    """Release the pages of a mapped file, which count as the process's memory.

    The next access reads them again. Arrays in memory stay as they are.
    """
    mapped = mapped_file(array)
    # Pages of a private mapping ("c") may have changes that are in no file.
    if mapped is not None and mapped.mode in ("r", "r+"):
        mapping: Any = mapped.base
        mapping.madvise(mmap.MADV_DONTNEED)


def advise_reads(array: Array, total: int) -> None:
    """Advise the kernel how a mapped file will be read: at random, by batches.

    A file that memory cannot hold is read without read-ahead, of up to 8 MiB around each row, for
    which other rows would be dropped. If memory holds all files, `total` bytes, it is filled by
    huge pages: random rows then take 0.6 of the time.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    limit = memory_limit()
    if not isinstance(base, mmap.mmap) or limit is None:
        return
    if len(base) > MOST_HELD * limit:
        base.madvise(mmap.MADV_RANDOM)
    elif total <= MOST_HELD * limit:
        advise_huge_pages(base)


def advise_huge_pages(mapping: mmap.mmap) -> None:
    """Request huge pages for a mapping. Kernels without them ignore this."""
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)


class PicklableByPath:
    """Base of objects whose arrays of mapped files are pickled as the paths of these files.

    The process that unpickles the object maps the files again, at the same paths. Arrays in memory
    are pickled with their values.
    """

    def __getstate__(self) -> dict[str, object]:
        return {name: file_region_of(value) or value for name, value in self.__dict__.items()}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        for name, value in state.items():
            self.__dict__[name] = value.map() if isinstance(value, FileRegion) else value


@dataclass(frozen=True)
class FileRegion:
    """Position of an array in a file: path, offset, shape and dtype, to map the array again.

    A mapped array is pickled as a `FileRegion`.
    """

    path: str
    file_bytes: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def map(self) -> Array:
        """Map the array from its file, and return it.

        Raises:
            FileNotFoundError: the file is not on this machine.
            ValueError: the file has another size on this machine.
        """
        machine = socket.gethostname()
        try:
            size = check_regular(self.path).stat().st_size
        except FileNotFoundError:
            raise FileNotFoundError(
                f"machine {machine} does not see '{self.path}': the input must lie on storage "
                "that all machines share, under one path"
            ) from None
        if size != self.file_bytes:
            raise ValueError(
                f"'{self.path}' has {size:,} bytes on machine {machine}, but {self.file_bytes:,} "
                "where the work was started: the input must lie on storage that all machines share"
            )
        content = np.memmap(self.path, np.uint8, "r")
        array: Array = np.ndarray(self.shape, self.dtype, content, self.offset, self.strides)
        return array


def file_region_of(value: object) -> FileRegion | None:
    """Return the region of a file that `value` is mapped from. If it is in memory, None."""
    if not isinstance(value, np.ndarray) or value.size == 0:
        return None
    mapped = mapped_file(value)
    # Pages of a private mapping ("c") may have changes that are in no file.
    if mapped is None or mapped.filename is None or mapped.mode not in ("r", "r+"):
        return None
    path = Path(mapped.filename).resolve()
    first, begin = (array.__array_interface__["data"][0] for array in (value, mapped))
    offset = mapped.offset + first - begin
    size = path.stat().st_size
    return FileRegion(str(path), size, offset, value.dtype.str, value.shape, value.strides)
