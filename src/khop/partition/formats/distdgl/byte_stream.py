"""DGL's binary streams: integers, texts and arrays, one after the other. Imports no torch.

Integers are little-endian. A text is its length (8 bytes) and its UTF-8 bytes. An array, as
`dgl.save_tensors` and `dgl.save_graphs` of DGL 0.5 to 2.x write it, is::

    uint64 magic, uint64 reserved        _ARRAY_MAGIC, 0
    int32 device, int32 index            1 (CPU), 0
    int32 number of axes
    uint8 code, uint8 bits, uint16 lanes 0 int, 1 uint, 2 float, 4 bfloat16; lanes is 1
    int64 length of each axis
    int64 number of bytes, then the bytes

A file of named arrays, as `dgl.data.save_tensors` writes it, is::

    uint64 magic, uint64 number of arrays, uint64 the same number again
    for each: a text, its name; an array
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
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np

from khop.data.arrays import storage_dtype
from khop.errors import FolderError
from khop.storage.folder import open_inside
from khop.typing import Array

ARRAY_MAGIC = 0xDD5E40F096B4A13F
_TENSORS_MAGIC = 0xDD5A9FBE3FA2443F
_CPU = 1
_NAMES = {
    (code, bits): f"{prefix}{bits}"
    for prefix, code in {"int": 0, "uint": 1, "float": 2, "bfloat": 4}.items()
    for bits in {"float": (16, 32, 64), "bfloat": (16,)}.get(prefix, (8, 16, 32, 64))
}
_CODES = {name: code for code, name in _NAMES.items()}
_MAX_AXES = 15
_MAX_TEXT = 1 << 16
_PIECE = 1 << 24


class Tensor(NamedTuple):
    """Array of a DGL file, and the name of its dtype.

    bfloat16 values are uint16 in NumPy, with `dtype` 'bfloat16'. Arrays that were read are views of
    the mapped file. They may be unaligned.
    """

    values: Array
    dtype: str


class ByteReader:
    """Reader of one DGL file, from begin to end. Arrays are mapped, not copied.

    Before memory is taken, each count in the file is compared with the bytes that are left.

    Args:
        root: folder of the file, a path without symbolic links.
        path: path of the file, relative to `root`.

    Raises:
        FolderError: the file is missing, not a regular file, or outside the folder. All methods
            raise it if the content is damaged.
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
        """Raise FolderError, whose message names the file and the reason `why`."""
        raise FolderError(f"'{self.name}' is damaged, or no file of DGL: {why}")

    def skip(self, count: int) -> int:
        """Move forward by `count` bytes, and return the offset in the file before the move."""
        if not 0 <= count <= self.size - self.at:
            self.refuse(f"it ends at byte {self.size:,}, within {count:,} bytes at {self.at:,}")
        first, self.at = self.at, self.at + count
        return first

    def integer(self, code: str = "Q") -> int:
        """Read one little-endian integer. `code` is its type in `struct` (default: uint64)."""
        first = self.skip(struct.calcsize(code))
        value: int = struct.unpack_from(f"<{code}", self._bytes, first)[0]
        return value

    def expect(self, value: int, field: str) -> None:
        """Read a uint64. Raise FolderError, which names `field`, if it is not `value`."""
        stored = self.integer()
        if stored != value:
            self.refuse(f"{field} should be {value:#x} (got {stored:#x} at byte {self.at - 8:,})")

    def count(self, least: int) -> int:
        """Read a uint64: the number of entries that follow. An entry has at least `least` bytes.

        Raises:
            FolderError: the rest of the file is too short for so many entries.
        """
        count = self.integer()
        if count * least > self.size - self.at:
            self.refuse(f"{count:,} entries do not fit into what follows byte {self.at:,}")
        return count

    def text(self) -> str:
        length = self.integer()
        if length > _MAX_TEXT:
            self.refuse(f"a name of {length:,} bytes")
        first = self.skip(length)
        try:
            return self._bytes[first : first + length].decode()
        except UnicodeDecodeError:
            self.refuse(f"a name at byte {first:,} is no UTF-8")

    def tensor(self) -> Tensor:
        self.expect(ARRAY_MAGIC, "the begin of an array")
        self.skip(16)  # reserved, device
        axes = self.integer("i")
        code, bits, lanes = self.integer("B"), self.integer("B"), self.integer("H")
        if not 0 <= axes <= _MAX_AXES:
            self.refuse(f"an array of {axes} axes")
        dtype = _NAMES.get((code, bits))
        if dtype is None or lanes != 1:
            self.refuse(f"an array of kind {code} with {bits} bits and {lanes} lanes")
        shape = tuple(self.integer("q") for _ in range(axes))
        stored = storage_dtype(dtype)
        nbytes = self.integer("q")
        if min(shape, default=0) < 0 or math.prod(shape) * stored.itemsize != nbytes:
            self.refuse(f"an array of shape {list(shape)} and {dtype} in {nbytes:,} bytes")
        first = self.skip(nbytes)
        values = np.frombuffer(self._bytes, stored, math.prod(shape), first) if nbytes else None
        return Tensor(np.empty(shape, stored) if values is None else values.reshape(shape), dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Read {name: array}: a number of entries, then names with arrays."""
        return {self.text(): self.tensor() for _ in range(self.count(least=52))}


@contextlib.contextmanager
def open_writer(path: Path) -> Iterator[ByteWriter]:
    """Create a file and open it for writing. It is flushed to the disk when the context ends.

    Raises:
        OSError: the file exists, or cannot be written.
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
    """Writer of one file in DGL's binary format. `open_writer` makes it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def integer(self, value: int, code: str = "Q") -> None:
        self._file.write(struct.pack(f"<{code}", value))

    def integers(self, *values: int) -> None:
        """Write each value as a little-endian uint64."""
        for value in values:
            self.integer(value)

    def zeros(self, count: int) -> None:
        """Write `count` bytes of value 0."""
        self._file.write(bytes(count))

    def text(self, value: str) -> None:
        encoded = value.encode()
        self.integer(len(encoded))
        self._file.write(encoded)

    def tensor(self, values: Array, dtype: str | None = None) -> None:
        """Write an array. `dtype` is its stored dtype (None: its own).

        bool becomes uint8, as in DGL.
        """
        stored = values.view(np.uint8) if values.dtype == np.bool_ else values
        name = stored.dtype.name if dtype in (None, "bool") else str(dtype)
        self.integers(ARRAY_MAGIC, 0)
        self._file.write(struct.pack("<iii", _CPU, 0, stored.ndim))
        self._file.write(struct.pack("<BBH", *_CODES[name], 1))
        for length in stored.shape:
            self.integer(length, "q")
        self.integer(stored.nbytes, "q")
        step = max(1, _PIECE // max(1, stored.nbytes // max(1, len(stored))))
        for first in range(0, len(stored), step):
            self._file.write(np.ascontiguousarray(stored[first : first + step]).tobytes())

    def tensors(self, tensors: Mapping[str, Array | Tensor]) -> None:
        """Write {name: array}: the number of entries, then names with arrays."""
        self.integer(len(tensors))
        for name, value in tensors.items():
            self.text(name)
            if isinstance(value, Tensor):
                self.tensor(value.values, value.dtype)
            else:
                self.tensor(value)


def read_tensors(root: Path, path: str) -> dict[str, Tensor]:
    """Return the arrays of a DGL file by name, mapped, not copied.

    Args:
        root: folder of the file.
        path: path of the file, relative to `root`.

    Raises:
        FolderError: the file is missing, damaged or outside the folder.
    """
    stream = ByteReader(root, path)
    stream.expect(_TENSORS_MAGIC, "the begin of a file of tensors")
    stream.count(least=0)
    return stream.tensors()


def write_tensors(path: Path, tensors: Mapping[str, Array | Tensor]) -> None:
    """Write arrays with their names to a new file, in DGL's format."""
    with open_writer(path) as stream:
        stream.integers(_TENSORS_MAGIC, len(tensors))
        stream.tensors(tensors)
