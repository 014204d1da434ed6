"""Checksums of files by ranges of 64 MiB, so that threads share the work and damage is located.

The checksum of a file of one range is the SHA-256 of its bytes. The checksum of a longer file is
the SHA-256 of its ranges' digests, which are in a file of their own (`RANGES_FILE`). Used by
processes that write or verify folders.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from khop.codec import AtMost, Id
from khop.cores import available_cores

RANGE_BYTES = 64 << 20
"""Bytes of a range. The last range of a file may be shorter."""

RANGES_FILE = "ranges.npy"
"""File with the digests of all ranges of longer files, [n, 32] uint8, in the order of meta.json.

The file needs no checksum of its own: the checksums of the longer files are made of its rows."""

Sha256 = Annotated[str, AtMost(64)]

_PIECE = 1 << 20


@dataclass(frozen=True)
class Written:
    """Length of a file, or of the part written so far, and SHA-256 of each 64 MiB (hexadecimal)."""

    bytes: Id
    ranges: Annotated[list[Sha256], AtMost(1 << 24)]

    def __post_init__(self) -> None:
        digests = [bytes.fromhex(digest) for digest in self.ranges]  # ValueError if they are none
        if len(digests) != num_ranges(self.bytes) or any(len(digest) != 32 for digest in digests):
            raise ValueError(f"has no digest for each range of {self.bytes} bytes")

    @property
    def sha256(self) -> str:
        """Checksum of the whole file, in hexadecimal, computed from the ranges' digests."""
        if len(self.ranges) == 1:
            return self.ranges[0]
        return hashlib.sha256(b"".join(map(bytes.fromhex, self.ranges))).hexdigest()


def num_ranges(nbytes: int) -> int:
    return -(-nbytes // RANGE_BYTES)


class RangeHash:
    """Checksums of a file, per range of 64 MiB, while it is written from begin to end.

    Attributes:
        bytes: number of bytes added so far.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._complete: list[str] = []
        self._last = hashlib.sha256()

    def update(self, content: memoryview) -> None:
        """Add `content`, the next bytes of the file."""
        while content:
            piece = content[: RANGE_BYTES - self.bytes % RANGE_BYTES]
            self._last.update(piece)
            self.bytes += len(piece)
            content = content[len(piece) :]
            if self.bytes % RANGE_BYTES == 0:
                self._complete.append(self._last.hexdigest())
                self._last = hashlib.sha256()

    def resume(self, descriptor: int, written: Written) -> bool:
        """Add what an interrupted run wrote. Return False if its checksums are not `written`."""
        rest = written.bytes % RANGE_BYTES
        first = written.bytes - rest
        self._complete, self._last = hash_ranges(descriptor, first), _hash(descriptor, first, rest)
        self.bytes = written.bytes
        return self.written() == written

    def written(self) -> Written:
        """Return the number and the digests of the bytes added so far."""
        last = [self._last.hexdigest()] if self.bytes % RANGE_BYTES else []
        return Written(self.bytes, [*self._complete, *last])


def hash_ranges(descriptor: int, nbytes: int, threads: int | None = None) -> list[str]:
    """Return the SHA-256, in hexadecimal, of each range of 64 MiB of an open file's first `nbytes`.

    If `threads` is None, one thread per core, at most 8.
    """
    firsts = range(0, nbytes, RANGE_BYTES)
    digest = partial(hash_range, descriptor, nbytes)
    if len(firsts) < 2 or threads == 1:
        return list(map(digest, firsts))
    with ThreadPoolExecutor(threads or default_threads(), "khop-checksum") as pool:
        return list(pool.map(digest, firsts))


def hash_range(descriptor: int, nbytes: int, first: int) -> str:
    """Return the SHA-256, in hexadecimal, of 64 MiB from `first` on, or fewer at the file's end."""
    digest: str = _hash(descriptor, first, min(RANGE_BYTES, nbytes - first)).hexdigest()
    return digest


def default_threads() -> int:
    """Return the number of threads for checksums: one per core, at most 8.

    More threads are not faster: memory and disks are the limit.
    """
    return min(8, available_cores())


def _hash(descriptor: int, first: int, count: int) -> Any:
    """Return the SHA-256 object of `count` bytes from offset `first`, or fewer if the file ends."""
    digest, room = hashlib.sha256(), memoryview(bytearray(min(_PIECE, max(1, count))))
    while count and (done := os.preadv(descriptor, [room[:count]], first)):
        digest.update(room[:done])
        first, count = first + done, count - done
    return digest
