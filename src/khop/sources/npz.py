"""Reader of `.npz` files. Uncompressed arrays are mapped, and compressed ones unpacked first.

The header, dtype, shape and size of an array are checked against the archive before its values are
read. Nothing is unpickled, and no name in the archive becomes a path. Imports no torch.
"""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from khop.data.arrays import DTYPES
from khop.data.files import check_regular
from khop.sources.scratch import Scratch, identity
from khop.typing import Array

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# A deflated stream expands to at most this many times its size, plus some bytes.
_MOST_DEFLATED = 1032
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class _Header(NamedTuple):
    """Header of an array in an .npz file. `size` is its length in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    size: int

    @property
    def values(self) -> int:
        count = 1
        for length in self.shape:  # Python's integers: NumPy's would overflow
            count *= length
        return count


class Npz(Mapping[str, Array]):
    """Arrays of an .npz file by name. Each array is opened when it is read.

    Args:
        path: the file.
        scratch: temporary storage, in which compressed arrays are unpacked.

    Raises:
        ValueError: the file is damaged, or not written by `numpy.savez`.

    Example:
        >>> np.savez(path / "graph.npz", x=np.arange(3))
        >>> Npz(path / "graph.npz", Scratch())["x"].tolist()
        [0, 1, 2]
    """

    def __init__(self, path: Path, scratch: Scratch) -> None:
        self.path = check_regular(path)
        self._scratch = scratch
        self._members: dict[str, zipfile.ZipInfo] = {}
        with _checked(path, "it"), zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name in self._members or name == info.filename:
                    raise ValueError(f"its member '{info.filename[:80]}' is no array, or is twice")
                self._members[name] = info

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, name: str) -> Array:
        """Return an array, mapped from the file if it is stored without compression.

        Raises:
            KeyError: no array has this name.
            ValueError: the array is damaged, or does not hold numbers.
        """
        info = self._members[name]
        with _checked(self.path, f"array '{name}'"), zipfile.ZipFile(self.path) as archive:
            header = _read_header(archive, info, self.path.stat().st_size)
            if header.values == 0:
                return np.empty(header.shape, header.dtype.newbyteorder("="))
            flat = self._flat(archive, info, header)
        return flat.reshape(header.shape, order="F" if header.fortran else "C")

    def _flat(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: _Header) -> Array:
        """Return the values of an array in the order of the file, without its shape."""
        key = [identity(self.path), info.filename, info.CRC]
        if info.compress_type == zipfile.ZIP_STORED and header.dtype.isnative:
            self._scratch.once(key, lambda: self._read_all(archive, info))
            begin = _begin(self.path, info) + header.size
            mapped = np.memmap(self.path, header.dtype, "r", begin, (header.values,))
            return mapped.view(np.ndarray)
        nbytes = header.values * header.dtype.itemsize
        table = self._scratch.table(key, lambda: self._pieces(archive, info, header), nbytes)
        return table["values"]

    def _read_all(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        """Read an entry of the archive to its end, where zipfile compares its checksum."""
        with archive.open(info) as stream:
            while stream.read(self._scratch.piece_bytes):
                pass

    def _pieces(
        self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: _Header
    ) -> Iterator[dict[str, Array]]:
        item = header.dtype.itemsize
        step = max(1, self._scratch.piece_bytes // item) * item
        left = header.values * item
        with archive.open(info) as stream:
            _read_exactly(stream, header.size)
            while left:
                values = np.frombuffer(_read_exactly(stream, min(step, left)), header.dtype)
                left -= values.nbytes
                yield {"values": values.astype(header.dtype.newbyteorder("="), copy=False)}
            stream.read(1)  # at its end zipfile compares the checksum


_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, EOFError, struct.error, OverflowError, UnicodeDecodeError),
    *(ValueError, TypeError, SyntaxError, NotImplementedError, RuntimeError),
)


@contextlib.contextmanager
def _checked(path: Path, name: str) -> Iterator[None]:
    """Context that turns errors of a damaged archive into ValueError with the names."""
    try:
        yield
    except _DAMAGED as error:
        reason = "its header is not NumPy's" if "pickle" in str(error) else error
        raise ValueError(
            f"'{path}' is damaged, or no .npz file of numbers: {name} cannot be read ({reason})"
        ) from None


def _read_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file_size: int) -> _Header:
    """Read an array's header, and check it against the archive of `file_size` bytes."""
    if info.compress_type not in _METHODS or info.flag_bits & 1:
        raise ValueError("it is encrypted, or packed by another method than deflate")
    if info.compress_size > file_size:
        raise ValueError("it is longer than the file")
    most = info.compress_size
    if info.compress_type == zipfile.ZIP_DEFLATED:
        most = most * _MOST_DEFLATED + _MOST_DEFLATED
    if info.file_size > most:
        raise ValueError(f"{info.compress_size} bytes cannot hold {info.file_size}")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _READ_HEADER:
            raise ValueError(f"version {version} of the format holds no numbers")
        shape, fortran, dtype = _READ_HEADER[version](stream)
        header = _Header(dtype, shape, fortran, stream.tell())
    if dtype.name not in DTYPES:
        raise ValueError(f"it holds '{dtype}', not numbers that khop stores")
    if min(shape, default=0) < 0 or header.size + header.values * dtype.itemsize != info.file_size:
        raise ValueError(f"{info.file_size} bytes are no array of {dtype} {list(shape)}")
    return header


def _begin(path: Path, info: zipfile.ZipInfo) -> int:
    """Return the offset in the .npz file of the bytes of an uncompressed array."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        magic, name, extra = _LOCAL_HEADER.unpack(_read_exactly(file, _LOCAL_HEADER.size))
    if magic != b"PK\x03\x04":
        raise ValueError("the file holds something else where it should be")
    begin: int = info.header_offset + _LOCAL_HEADER.size + name + extra
    return begin


def _read_exactly(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    while len(content) < count:
        more = stream.read(count - len(content))
        if not more:
            raise EOFError("it ends too early")
        content += more
    return content
