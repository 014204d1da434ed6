"""Array files of checkpoints, written and read past the page cache. Imports no torch.

A file is an .npy file whose values begin at byte 4,096. So rows in memory are written as they are,
without a copy. Checksums are of ranges of 64 MiB. Threads compute them while the disk works. A
range is read and checked by itself, so trainers share the work of a file.

Checksums are CRC-32, which finds damage: they take 0.25 s per GB, SHA-256 0.6 s. Older checkpoints
have SHA-256. Neither finds a change on purpose, since checkpoint.json could be changed, too.

File systems without direct access, such as those in memory, use their page cache.
"""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from khop.codec import AtMost, Id
from khop.data.arrays import bytes_of
from khop.distributed.tensors.disk_rows import aligned_blocks, use_direct
from khop.errors import FolderError
from khop.private_folders import PrivateFolder
from khop.storage.folder.array_writer import explained_write
from khop.storage.folder.checksums import RANGE_BYTES, Sha256, default_threads, num_ranges
from khop.storage.folder.npy import npy_header
from khop.typing import Array

_PAGE = 4096
_PIECE = 8 << 20  # of a read or a write
_CRC_LENGTH = 8


@dataclass(frozen=True)
class SavedFile:
    """Length of a file, and the checksum of each 64 MiB of it, in hexadecimal."""

    bytes: Id
    ranges: Annotated[list[Sha256], AtMost(1 << 24)]

    def __post_init__(self) -> None:
        if len(self.ranges) != num_ranges(self.bytes):
            raise ValueError(f"has no checksum for each range of {self.bytes} bytes")


def write_array(
    folder: PrivateFolder,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    pieces: Iterable[Array],
) -> SavedFile:
    """Write a file, and return its length and checksums. It is on the disk then.

    Args:
        folder: folder of the file.
        name: path of the file in the folder.
        dtype: dtype of the array.
        shape: shape of the array.
        pieces: its rows, from first to last. Pieces in memory that begins at a page are not copied.

    Raises:
        OSError: the disk is full.
    """
    header = _padded_header(dtype, shape)
    nbytes = len(header) + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    action = f"write {nbytes:,} bytes of '{name}' in '{folder.path}'"
    advice = "Nothing of the checkpoint is kept; make room"
    with (
        explained_write(action, folder.path, advice),
        folder.create(name, buffering=0) as file,
        ThreadPoolExecutor(default_threads(), "khop-checksum") as pool,
    ):
        descriptor, begin = file.fileno(), 0
        os.posix_fallocate(descriptor, 0, nbytes)  # a full disk is an error at once
        use_direct(descriptor)
        checksums: list[Future[str]] = []
        for content in _ranges(header, pieces):
            checksums.append(pool.submit(_checksum, content))
            _write(descriptor, content, begin)
            begin += len(content)
            if len(checksums) > default_threads():  # bounds the memory of ranges
                checksums[-1 - default_threads()].result()
        os.ftruncate(descriptor, nbytes)
        os.fsync(descriptor)
        if begin != nbytes:
            raise ValueError(f"'{name}' got {begin} of {nbytes} bytes")
        return SavedFile(nbytes, [checksum.result() for checksum in checksums])


def read_ranges(
    folder: Path, tasks: Iterable[tuple[str, SavedFile, int]], extra: int
) -> Iterator[tuple[str, int, Array]]:
    """Read ranges of files, and check them. A thread reads the next range meanwhile.

    Args:
        folder: folder of the files.
        tasks: path, length and checksums, and number of the range, for each.
        extra: bytes to read beyond the end of a range, which are not checked.

    Yields:
        Path, first byte in the file, and content, [n] uint8. It is valid until the next one.

    Raises:
        FolderError: a file is missing or damaged.
    """
    rooms = deque(aligned_blocks(1, RANGE_BYTES + extra + 2 * _PAGE)[0] for _ in range(2))
    with ThreadPoolExecutor(1, "khop-reader") as pool:
        waiting: deque[tuple[str, int, Future[Array]]] = deque()
        for path, known, index in tasks:
            future = pool.submit(_read_range, folder, path, known, index, extra, rooms[0])
            waiting.append((path, index * RANGE_BYTES, future))
            rooms.rotate(1)
            if len(waiting) > 1:
                name, first, read = waiting.popleft()
                yield name, first, read.result()
        for name, first, read in waiting:
            yield name, first, read.result()


def _read_range(
    folder: Path, path: str, known: SavedFile, index: int, extra: int, room: Array
) -> Array:
    begin = index * RANGE_BYTES
    size, count = min(RANGE_BYTES, known.bytes - begin), min(RANGE_BYTES + extra, known.bytes)
    count = min(count, known.bytes - begin)
    try:
        descriptor = os.open(folder / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if os.fstat(descriptor).st_size == known.bytes:
                use_direct(descriptor)
                _read(descriptor, room[: -(-count // _PAGE) * _PAGE], begin)
            else:
                size = 0
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FolderError(
            f"'{path}' of checkpoint '{folder}': {os.strerror(error.errno or errno.EIO)}"
        ) from None
    if _checksum(room[:size], len(known.ranges[index])) != known.ranges[index]:
        raise FolderError(f"'{path}' of checkpoint '{folder}' is damaged")
    return room[:count]


def _read(descriptor: int, room: Array, begin: int) -> None:
    """Fill memory from a file, whose end may come before."""
    done = 0
    while done < len(room):
        read = os.preadv(descriptor, [room[done : done + _PIECE].data], begin + done)
        if read % _PAGE or not read:
            return
        done += read


def _write(descriptor: int, content: Array, begin: int) -> None:
    """Write a range. Its last page is filled with zeros."""
    rest = len(content) % _PAGE
    done, whole = 0, len(content) - rest
    while done < whole:
        piece = content[done : min(done + _PIECE, whole)]
        done += os.pwrite(descriptor, piece.data, begin + done)
    if rest:
        page = aligned_blocks(1, _PAGE)[0]
        page[:rest] = content[whole:]
        os.pwrite(descriptor, page.data, begin + whole)


def _ranges(header: bytes, pieces: Iterable[Array]) -> Iterator[Array]:
    """Yield the ranges of a file, [n] uint8, each in memory that begins at a page."""
    room = aligned_blocks(1, RANGE_BYTES)[0]
    room[: len(header)] = np.frombuffer(header, np.uint8)
    filled = len(header)
    for piece in pieces:
        content = np.frombuffer(bytes_of(np.ascontiguousarray(piece)), np.uint8)
        while len(content):
            count = min(RANGE_BYTES - filled, len(content))
            is_aligned = content.ctypes.data % _PAGE == 0
            if count == RANGE_BYTES and is_aligned:
                yield content[:count]
            else:
                room[filled : filled + count] = content[:count]
                filled += count
                if filled == RANGE_BYTES:
                    yield room
                    room, filled = aligned_blocks(1, RANGE_BYTES)[0], 0
            content = content[count:]
    if filled:
        yield room[:filled]


def _checksum(content: Array, length: int = _CRC_LENGTH) -> str:
    """Return the checksum of `length` hexadecimal digits: CRC-32, or SHA-256."""
    if length == _CRC_LENGTH:
        return f"{zlib.crc32(content.data):0{_CRC_LENGTH}x}"
    return hashlib.sha256(content.data).hexdigest()


def _padded_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an .npy file with spaces up to the first page's end."""
    header = npy_header(dtype, shape)
    text = header[10:].rstrip(b"\n ")
    length = _PAGE - 10
    return header[:8] + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"
