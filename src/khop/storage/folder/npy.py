"""Arrays of a folder, opened as strangers' files.

A file must lie in the folder, be a regular file of the length that meta.json says, and begin with
the header that NumPy writes for an array of plain numbers in C order, of exactly the bytes that
follow. The header is matched, not evaluated, and nothing is ever unpickled.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from pathlib import Path

import numpy as np

from khop.data.arrays import storage_dtype
from khop.errors import FolderError
from khop.typing import Array

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000
_MAX_BYTES = 1 << 48
_HEADER = re.compile(
    rb"\{'descr': '([<|])([biuf])(\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18},(?: \d{1,18})?|\d{1,18}(?:, \d{1,18})+)?)\), \} *\n"
)
_KINDS = {b"b": "bool", b"i": "int", b"u": "uint", b"f": "float"}


def open_npy(root: Path, path: str, nbytes: int) -> Array:
    """Maps an array of a folder, read-only.

    Args:
        root: the folder, without links on the way to it.
        path: of the file, relative to it.
        nbytes: its length.

    Raises:
        FolderError: missing, of another length, outside the folder, or not an array of numbers.
    """
    file = root / path
    descriptor = open_inside(root, path)
    try:
        size = os.fstat(descriptor).st_size
        if size != nbytes:
            raise FolderError(
                f"'{file}' has {size} bytes instead of {nbytes}: it is damaged; `khop verify` "
                "checks the whole folder"
            )
        if size == 0:
            raise FolderError(f"'{file}' is damaged: it is empty")
        # The mapping has a descriptor of its own.
        memory = mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    try:
        dtype, shape, begin = parse_header(memory[: _MAX_HEADER + 12], nbytes)
    except ValueError as error:
        raise FolderError(f"'{file}' is damaged: {error}") from None
    array: Array = np.ndarray(shape, dtype, memory, begin)
    return array


def open_inside(root: Path, path: str) -> int:
    """Opens a regular file of a folder for reading; returns its descriptor.

    Args:
        root: the folder, without links on the way to it.
        path: of the file, relative to it.

    Raises:
        FolderError: missing, no regular file, or outside the folder.
    """
    file = root / path
    try:
        # A FIFO must not keep us waiting.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise FolderError(
            f"'{file}' cannot be read ({error.strerror}): copy the part's whole folder to this "
            "machine"
        ) from None
    try:
        # Links were followed: where they led is asked of what is open, which nobody can exchange.
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if place != file and not place.is_relative_to(root):
            raise FolderError(
                f"'{file}' is a link that leads out of the folder, to '{place}': copy the file, or "
                "mount what it is on below the folder"
            )
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FolderError(f"'{file}' is damaged: it is no regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def parse_header(head: bytes, nbytes: int) -> tuple[np.dtype[np.generic], tuple[int, ...], int]:
    """What the beginning of an .npy file says.

    Args:
        head: its first bytes, 10,012 of them if there are so many.
        nbytes: length of the file.

    Returns:
        Dtype and shape of the array, and where it begins.

    Raises:
        ValueError: not a header that NumPy writes for numbers, or not of so many bytes.
    """
    if head[:6] != _MAGIC or head[6:8] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise ValueError("it is not an .npy file")
    width = 2 if head[6] == 1 else 4
    length = int.from_bytes(head[8 : 8 + width], "little")
    begin = 8 + width + length
    if length > _MAX_HEADER or begin > nbytes:
        raise ValueError(f"its header has {length} bytes")
    match = _HEADER.fullmatch(head[8 + width : begin])
    if match is None:
        raise ValueError(
            "its header is not one of a plain array of numbers (objects, records, strings and "
            "other byte orders are not read)"
        )
    _, kind, size, fortran, axes = match.groups()
    if fortran == b"True":
        raise ValueError("its array is in Fortran's order")
    name = "bool" if kind == b"b" else f"{_KINDS[kind]}{8 * int(size)}"
    try:
        dtype = storage_dtype(name)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if dtype.itemsize != int(size):
        raise ValueError(f"its booleans have {int(size)} bytes")
    shape = tuple(int(n) for n in axes.replace(b",", b" ").split())
    total, counted = dtype.itemsize, dtype.itemsize
    for n in shape:
        total *= n
        counted *= max(n, 1)
    if total != nbytes - begin or counted >= _MAX_BYTES or len(shape) > 16:
        raise ValueError(
            f"its array of shape {shape} does not fill the {nbytes - begin} bytes after the header"
        )
    return dtype, shape, begin
