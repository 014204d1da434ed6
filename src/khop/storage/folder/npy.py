"""Reading of a folder's .npy files, which are not trusted, and of their headers.

A file must be a regular file in the folder, of the length in meta.json. It must begin with the
header that NumPy writes for an array of plain numbers in C order, and the array must fill the rest.
The header is matched, not evaluated, and nothing is ever unpickled. Used by any process.
"""

from __future__ import annotations

import io
import mmap
import os
import re
import stat
from pathlib import Path
from typing import Any

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
_NAMES = {b"i": "int", b"u": "uint", b"f": "float"}


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an .npy file, as NumPy writes it before an array's data."""
    header = io.BytesIO()
    described = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        header, {"descr": described, "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def open_npy(
    root: Path, path: str, nbytes: int, shape: tuple[int, ...] | None = None, *dtypes: str
) -> Array:
    """Map an array of a folder, read-only.

    Args:
        root: the folder, as a path without symbolic links.
        path: path of the file, relative to `root`.
        nbytes: length of the file in bytes.
        shape: shape of the array. If None, any.
        *dtypes: names of the dtypes that the array may have, if `shape` is not None.

    Raises:
        FolderError: the file is missing, has another length, is outside the folder, is not an
            array of numbers, or the array has another shape or dtype.
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
        # The mapping keeps its own descriptor.
        memory = mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    try:
        dtype, own_shape, begin = parse_header(memory[: _MAX_HEADER + 12], nbytes)
    except ValueError as error:
        raise FolderError(f"'{file}' is damaged: {error}") from None
    if shape is not None and (own_shape != shape or dtype.name not in dtypes):
        raise FolderError(
            f"'{file}' is damaged: it holds {dtype.name} {own_shape} instead of "
            f"{' or '.join(dtypes)} {shape}"
        )
    array: Array = np.ndarray(own_shape, dtype, memory, begin)
    return array


def open_inside(root: Path, path: str) -> int:
    """Open a regular file of a folder for reading, and return its descriptor.

    Args:
        root: the folder, as a path without symbolic links.
        path: path of the file, relative to `root`.

    Raises:
        FolderError: the file is missing, not a regular file, or outside the folder.
    """
    file = root / path
    try:
        # O_NONBLOCK: opening a FIFO must not block.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise FolderError(
            f"'{file}' cannot be read ({error.strerror}): copy the part's whole folder to this "
            "machine"
        ) from None
    try:
        # `open` followed links. The target is read from the descriptor, which cannot be replaced.
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        if target != file and not target.is_relative_to(root):
            raise FolderError(
                f"'{file}' is a link that leads out of the folder, to '{target}': copy the file, "
                "or mount what it is on below the folder"
            )
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FolderError(f"'{file}' is damaged: it is no regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def parse_header(head: bytes, nbytes: int) -> tuple[np.dtype[np.generic], tuple[int, ...], int]:
    """Parse the header of an .npy file.

    Args:
        head: the file's first 10,012 bytes, or the whole file if it is shorter.
        nbytes: length of the file in bytes.

    Returns:
        Dtype and shape of the array, and its offset in the file.

    Raises:
        ValueError: the header is not one that NumPy writes for numbers, or does not fit the length.
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
    _, letter, size, fortran, axes = match.groups()
    if fortran == b"True":
        raise ValueError("its array is in Fortran's order")
    name = "bool" if letter == b"b" else f"{_NAMES[letter]}{8 * int(size)}"
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
