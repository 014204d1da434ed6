"""DGL's binary streams: numbers, texts and arrays, one after the other. Imports no torch.

All numbers are little-endian. A text is its length (8 bytes) and its UTF-8 bytes. An array is

    uint64 magic, uint64 reserved        _ARRAY_MAGIC, 0
    int32 device, int32 index            1 (CPU), 0
    int32 number of axes
    uint8 kind, uint8 bits, uint16 lanes 0 int, 1 uint, 2 float, 4 bfloat16; lanes is 1
    int64 length of each axis
    int64 number of bytes, then the bytes

as `dgl.save_tensors` and `dgl.save_graphs` of DGL 0.5 to 2.x write it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from khop.data.arrays import storage_dtype
from khop.errors import FolderError
from khop.storage.folder import open_inside
from khop.typing import Array

ARRAY_MAGIC = 0xDD5E40F096B4A13F
_CPU = 1
_KINDS = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_NAMES = {
    (code, bits): f"{kind}{bits}"
    for kind, code in _KINDS.items()
    for bits in {"float": (16, 32, 64), "bfloat": (16,)}.get(kind, (8, 16, 32, 64))
}
_CODES = {name: code for code, name in _NAMES.items()}
_MAX_AXES = 15
_MAX_TEXT = 1 << 16
_PIECE = 1 << 24


class Tensor(NamedTuple):
    """Array of a file; `dtype` is 'bfloat16' where NumPy has uint16.

    Values of a file that was read lie in the mapped file, not necessarily aligned.
    """

    values: Array
    dtype: str


class ByteReader:
    """Reader of one file, from its begin to its end. Arrays are mapped, not read.

    Nothing is taken on trust: each count is compared with what is left of the file first.

    Args:
        root: folder of the file; its path contains no links.
        path: path of the file, relative to `root`.

    Raises:
        FolderError: the file is missing, not a regular file, or outside the folder.
    """

    def __init__(self, root: Path, path: str) -> None:
        self.name = root / path
        descriptor = open_inside(root, path)
        try:
            self.size = os.fstat(descriptor).st_size
            if self.size == 0:
                self.refuse("it is empty")
            self._bytes = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        self.at = 0

    def refuse(self, why: str) -> NoReturn:
        """Raise FolderError: the file is not what it should be."""
        raise FolderError(f"'{self.name}' is damaged, or no file of DGL: {why}")

    def skip(self, count: int) -> int:
        """Pass over `count` bytes and return where they begin."""
        if not 0 <= count <= self.size - self.at:
            self.refuse(f"it ends at byte {self.size:,}, within {count:,} bytes at {self.at:,}")
        first, self.at = self.at, self.at + count
        return first

    def number(self, code: str = "Q") -> int:
        """Read one integer; `code` is that of `struct`."""
        first = self.skip(struct.calcsize(code))
        value: int = struct.unpack_from(f"<{code}", self._bytes, first)[0]
        return value

    def expect(self, value: int, what: str) -> None:
        """Read eight bytes that must have one value."""
        found = self.number()
        if found != value:
            self.refuse(f"{what} should be {value:#x} (got {found:#x} at byte {self.at - 8:,})")

    def count(self, least: int) -> int:
        """Read how many entries follow, of at least `least` bytes each."""
        count = self.number()
        if count * least > self.size - self.at:
            self.refuse(f"{count:,} entries do not fit into what follows byte {self.at:,}")
        return count

    def text(self) -> str:
        """Read a text."""
        length = self.number()
        if length > _MAX_TEXT:
            self.refuse(f"a name of {length:,} bytes")
        first = self.skip(length)
        try:
            return self._bytes[first : first + length].decode()
        except UnicodeDecodeError:
            self.refuse(f"a name at byte {first:,} is no UTF-8")

    def tensor(self) -> Tensor:
        """Read an array."""
        self.expect(ARRAY_MAGIC, "the begin of an array")
        self.skip(16)  # reserved, device
        axes = self.number("i")
        kind, bits, lanes = self.number("B"), self.number("B"), self.number("H")
        if not 0 <= axes <= _MAX_AXES:
            self.refuse(f"an array of {axes} axes")
        dtype = _NAMES.get((kind, bits))
        if dtype is None or lanes != 1:
            self.refuse(f"an array of kind {kind} with {bits} bits and {lanes} lanes")
        shape = tuple(self.number("q") for _ in range(axes))
        stored = storage_dtype(dtype)
        nbytes = self.number("q")
        if min(shape, default=0) < 0 or math.prod(shape) * stored.itemsize != nbytes:
            self.refuse(f"an array of shape {list(shape)} and {dtype} in {nbytes:,} bytes")
        first = self.skip(nbytes)
        values = np.frombuffer(self._bytes, stored, math.prod(shape), first) if nbytes else None
        return Tensor(np.empty(shape, stored) if values is None else values.reshape(shape), dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Read a list of named arrays."""
        return {self.text(): self.tensor() for _ in range(self.count(least=52))}


@contextlib.contextmanager
def open_writer(path: Path) -> Iterator[ByteWriter]:
    """Make a new file and open it for writing; it is on the disk when the context ends.

    Raises:
        OSError: it cannot be written.
    """
    try:
        with path.open("xb") as file:
            yield ByteWriter(file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise OSError(
            error.errno, f"cannot write '{path}': {reason}. Nothing of the folder is kept"
        ) from error


class ByteWriter:
    """Writer of one file, opened by `open_writer`: the counterpart of `ByteReader`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def number(self, value: int, code: str = "Q") -> None:
        """Write one integer."""
        self._file.write(struct.pack(f"<{code}", value))

    def zeros(self, count: int) -> None:
        """Write bytes that mean nothing, or False."""
        self._file.write(bytes(count))

    def text(self, value: str) -> None:
        """Write a text."""
        encoded = value.encode()
        self.number(len(encoded))
        self._file.write(encoded)

    def tensor(self, values: Array, dtype: str | None = None) -> None:
        """Write an array; bool becomes uint8, as DGL stores it."""
        stored = values.view(np.uint8) if values.dtype == np.bool_ else values
        name = stored.dtype.name if dtype in (None, "bool") else str(dtype)
        self.number(ARRAY_MAGIC)
        self.number(0)
        self._file.write(struct.pack("<iii", _CPU, 0, stored.ndim))
        kind, bits = _CODES[name]
        self._file.write(struct.pack("<BBH", kind, bits, 1))
        for length in stored.shape:
            self.number(length, "q")
        self.number(stored.nbytes, "q")
        step = max(1, _PIECE // max(1, stored.nbytes // max(1, len(stored))))
        for first in range(0, len(stored), step):
            self._file.write(np.ascontiguousarray(stored[first : first + step]).tobytes())

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Write a list of named arrays, or `Tensor`s."""
        self.number(len(tensors))
        for name, value in tensors.items():
            self.text(name)
            self.tensor(*(value if isinstance(value, Tensor) else (value,)))
