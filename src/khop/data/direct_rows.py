"""Rows of an .npy file that is larger than memory, read past the page cache.

`DirectRows` is the store, and `rows_on_disk` opens one. `khop.data.direct_reads` has the part that
belongs to one process: threads, cache and reads in flight. Used by samplers, servers and trainers.
Imports no torch.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from khop.data.arrays import check_range, storage_dtype
from khop.data.direct_reads import NARROW_BYTES, DiskCounts, ProcessReads
from khop.data.files import file_region_of, load_npy, release_pages
from khop.data.hot_rows import parse_bytes
from khop.data.row_store import RowFormat, RowStore
from khop.data.tickets import Ticket
from khop.errors import RowStoreError
from khop.typing import Array, Int64Array, IntArray

ENGINES = ("auto", "threads")
"""Engines of reads. 'auto': io_uring where it is allowed, else threads."""

MAX_ROW_BYTES = 1 << 20
"""Most bytes of a row."""


class DiskOptions(NamedTuple):
    """Options of attributes whose rows are read past the page cache.

    Attributes:
        names: names of the attributes, of nodes and of edges.
        cache_memory: bytes of a process for all of these attributes, see `rows_on_disk`.
        engine: one of `ENGINES`.
        structure: whether neighbours and edge ids are read so, too.
        keeps_rows: whether rows may be needed again, as opposed to rows of a pack.

    Example:
        >>> khop.data.direct_rows.DiskOptions(("x",), 1 << 30).among(4).cache_memory
        268435456
    """

    names: tuple[str, ...]
    cache_memory: int
    engine: str = "auto"
    structure: bool = False
    keeps_rows: bool = True

    @classmethod
    def of(
        cls,
        widths: Sequence[tuple[str, int]],
        names: bool | Sequence[str],
        cache_memory: int,
        structure: bool = False,
    ) -> DiskOptions | None:
        """Return the options that a user chooses. If nothing is read so, None.

        Args:
            widths: name and bytes of a row of each attribute that there is.
            names: the names. True: all attributes with rows of 64 bytes or more.
            cache_memory: see above.
            structure: see above.

        Raises:
            ValueError: there is no such attribute, or it has rows of more than 1 MiB.
        """
        if isinstance(names, bool):
            chosen = {name for name, width in widths if names and width >= NARROW_BYTES}
        else:
            chosen = {names} if isinstance(names, str) else set(names)
        for name in sorted(chosen):
            widest = max((width for known, width in widths if known == name), default=0)
            if not 0 < widest <= MAX_ROW_BYTES:
                raise ValueError(
                    f"features_on_disk: no attribute '{name}' with rows of 1 to {MAX_ROW_BYTES} "
                    f"bytes: there are {dict(widths)}"
                )
        if not chosen and not structure:
            return None
        return cls(tuple(sorted(chosen)), cache_memory, structure=structure)

    @classmethod
    def from_json(cls, content: Sequence[Any] | None) -> DiskOptions | None:
        """Return the options that JSON, where they are a list, holds. If None, there are none."""
        if content is None:
            return None
        names, *rest = content
        return cls(tuple(names), *rest)

    def among(self, num_processes: int) -> DiskOptions:
        """Return the options of each of several processes, which divide the memory."""
        return self._replace(cache_memory=self.cache_memory // max(num_processes, 1))

    def without_cache(self) -> DiskOptions:
        """Return the options of a process that has memory for reads in flight alone."""
        return self._replace(cache_memory=0)


class DirectRows(RowStore):
    """Rows of an .npy file, read past the page cache, with a cache of their own.

    Each process that reads opens the file and has a cache. `rows_on_disk` opens a file by its path.

    Args:
        rows: [num_rows, ...] the mapped file. `array` returns it, for code that reads all rows.
        descriptor: descriptor of the same file. The store closes it.
        path: path of the file, for error messages.
        options: memory and engine.
        dtype: name of the values' dtype where NumPy has none. If None, the dtype of `rows`.

    Raises:
        ValueError: rows of more than 1 MiB, an unknown engine, or a negative amount of memory.
        RowStoreError: the file ends before its rows.
    """

    def __init__(
        self,
        rows: Array,
        descriptor: int,
        path: str,
        options: DiskOptions,
        dtype: str | None = None,
    ) -> None:
        self._stop = weakref.finalize(self, os.close, descriptor)
        self.num_rows = len(rows)
        self.stored = RowFormat(dtype or rows.dtype.name, rows.shape[1:])
        if not 1 <= self.stored.nbytes <= MAX_ROW_BYTES:
            raise ValueError(
                f"'{path}' has rows of {self.stored.nbytes} bytes: rows of 1 to {MAX_ROW_BYTES} "
                "bytes are read past the page cache, so leave this one mapped"
            )
        if options.engine not in ENGINES:
            raise ValueError(f"engine must be one of {ENGINES} (got {options.engine!r})")
        region = file_region_of(rows)
        end = os.fstat(descriptor).st_size
        self._begin = end - rows.nbytes if region is None else region.offset
        if self._begin < 0 or self._begin + rows.nbytes > end:
            raise RowStoreError(f"'{path}' ends before its rows: it was cut off or replaced")
        self.array = rows
        self.path = path
        self.options = options
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._reads: ProcessReads | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the path: the process that unpickles the store opens the file again."""
        options = self.options
        return rows_on_disk, (self.path, self.stored.dtype, options.cache_memory, options.engine)

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """See `RowStore.read`. Rows in the cache are copied now, and others are read by threads."""
        return self._of_process().read(ids, out)

    def start(self, rows: IntArray) -> tuple[Array, Ticket | None]:
        """See `RowStore.start`. Rows that `expect` has begun to read are not copied again."""
        early = self._of_process().take_early(rows)
        return super().start(rows) if early is None else early

    def expect(self, ids: Int64Array) -> None:
        """See `RowStore.expect`."""
        check_range(ids, self.num_rows, "rows that are expected")
        self._of_process().expect(ids)

    def counts(self) -> DiskCounts:
        """Return the counts of this process so far."""
        reads = self._reads
        return DiskCounts() if reads is None or not reads.is_own else reads.counts()

    def _of_process(self) -> ProcessReads:
        reads = self._reads
        if reads is not None and reads.is_own:
            return reads
        if reads is not None:  # of the process that forked this one, whose threads are not here
            self._lock, self._reads = threading.Lock(), None
        with self._lock:
            if self._reads is None:
                self._reads = ProcessReads(
                    self._descriptor,
                    self.path,
                    self._begin,
                    self.stored,
                    self.num_rows,
                    self.options.cache_memory,
                    self.options.engine == "auto",
                    self.options.keeps_rows,
                )
            return self._reads

    def content(self) -> tuple[Array, ...]:
        return (self.array,)

    def release(self) -> None:
        release_pages(self.array)

    def close(self) -> None:
        """End the threads. Reads in flight fail with RowStoreError, and the next starts anew."""
        reads, self._reads = self._reads, None
        if reads is not None and reads.is_own:
            reads.close()


def rows_on_disk(
    path: str | os.PathLike[str],
    dtype: str | None = None,
    cache_memory: int | str = "1GB",
    engine: str = "auto",
) -> RowStore:
    """Open the rows of an .npy file that is larger than memory.

    Args:
        path: the file: [num_rows, ...] numbers.
        dtype: name of the values' dtype where NumPy has none: 'bfloat16', stored as uint16. If
            None, the dtype of the file.
        cache_memory: bytes of a process for rows that are kept, rows that are read ahead, and reads
            in flight. A number, or a text such as '4GB'.
        engine: 'auto' reads by io_uring, or by threads where that is forbidden, as in many
            containers. 'threads' always reads by threads.

    Returns:
        The store. It can be a value of `stores` of `DistDataset.load`, or an attribute of PyG's
        `Data` for loaders in memory.

    Raises:
        OSError, ValueError: no regular file, no array of numbers, or rows of more than 1 MiB.
        TypeError: `dtype` is not stored as the file's dtype.

    Example:
        >>> np.save(path / "rows.npy", np.arange(6.0).reshape(3, 2))
        >>> rows = khop.data.rows_on_disk(path / "rows.npy", cache_memory="64MB")
        >>> rows.gather(np.array([2])).tolist()
        [[4.0, 5.0]]
    """
    rows = load_npy(path, "r")
    if dtype is not None and storage_dtype(dtype) != rows.dtype:
        raise TypeError(f"dtype '{dtype}' is not stored as '{rows.dtype}'")
    if rows.ndim == 0 or not rows.flags.c_contiguous:
        raise ValueError(f"'{path}' has no rows: an array in C order with a row axis is read")
    options = DiskOptions((), parse_bytes(cache_memory), engine)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return DirectRows(rows, descriptor, str(Path(path).absolute()), options, dtype)
