"""Pages of a partition folder in memory, for `khop doctor`: how many of them are huge pages.

A mapped file costs a page fault at each page that a process touches first. With huge pages that is
one per 2 MiB. Nothing is read from the disk: only pages in the page cache are touched. No torch.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import NamedTuple

from khop.storage.folder import PartitionFolder, open_inside

HUGE_BYTES = 2 << 20


class MappedPages(NamedTuple):
    """Pages of a folder's files of 2 MiB or more.

    Attributes:
        nbytes: bytes of these files.
        cached: bytes of their ranges of 2 MiB that are in the page cache.
        huge: bytes of these that are mapped by huge pages.
    """

    nbytes: int
    cached: int
    huge: int

    @property
    def share(self) -> float:
        """Share of huge pages, 0 to 1. If nothing is in the page cache, 1."""
        return min(self.huge / self.cached, 1.0) if self.cached else 1.0


def mapped_pages(root: str | os.PathLike[str]) -> MappedPages:
    """Map the files of a folder that are here, and count their huge pages.

    Raises:
        FolderError: no partition folder, or a file is missing.
    """
    folder = PartitionFolder(root)
    nbytes = cached = huge = 0
    for path, known in folder.files.items():
        if known.bytes < HUGE_BYTES or not (folder.root / path).exists():
            continue
        descriptor = open_inside(folder.root.resolve(), path)
        try:
            in_cache, in_huge = _count(descriptor)
        finally:
            os.close(descriptor)
        nbytes, cached, huge = nbytes + known.bytes, cached + in_cache, huge + in_huge
    return MappedPages(nbytes, cached, huge)


def _count(descriptor: int) -> tuple[int, int]:
    """Return the bytes of a file that are cached, and of these the ones in huge pages."""
    num_ranges = os.fstat(descriptor).st_size // HUGE_BYTES
    with mmap.mmap(descriptor, num_ranges * HUGE_BYTES, access=mmap.ACCESS_READ) as mapping:
        byte, num_cached = bytearray(1), 0
        for first in range(0, len(mapping), HUGE_BYTES):
            try:  # fails for pages that are not in memory
                os.preadv(descriptor, [byte], first, os.RWF_NOWAIT)
            except OSError:
                continue
            mapping[first]  # maps the page
            num_cached += 1
        return num_cached * HUGE_BYTES, _huge_bytes(descriptor)


def _huge_bytes(descriptor: int) -> int:
    """Return the bytes of a file that this process has mapped by huge pages."""
    path, total, is_own = str(Path(f"/proc/self/fd/{descriptor}").readlink()), 0, False
    with Path("/proc/self/smaps").open() as lines:
        for line in lines:
            name, *values = line.split(maxsplit=5)
            if not name.endswith(":"):
                is_own = len(values) == 5 and values[-1].rstrip("\n") == path
            elif is_own and name == "FilePmdMapped:":
                total += 1024 * int(values[0])
    return total
