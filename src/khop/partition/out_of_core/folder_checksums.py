"""Checksums of all files of a folder, computed by threads, with a journal to resume from.

`khop verify` compares them with meta.json, `khop convert` writes them. Imports no torch.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from khop.codec import Word
from khop.errors import FolderError
from khop.partition.out_of_core.journal import read_journal, write_journal
from khop.partition.out_of_core.stage import ENTRIES
from khop.partition.out_of_core.workspace import run_name
from khop.partition.source import no_progress
from khop.private_folders import PrivateFolder
from khop.storage.folder import RESUMABLE, VERSION_RANGES, PartitionFolder, Written, lock
from khop.storage.folder.checksums import (
    RANGE_BYTES,
    RangeHash,
    Sha256,
    default_threads,
    hash_range,
)
from khop.typing import Progress

# Bytes read between two entries of the journal: most work that a kill undoes.
_CHECKPOINT_BYTES = 4 << 30
# Files that are open at a time.
_MOST_FILES = 64
_PIECE = 1 << 20


@dataclass(frozen=True)
class ReadFile:
    """Digests (SHA-256) of a file, as far as the file has been read. Part of a journal.

    Attributes:
        stamp: size, times of change, device and inode. If the stamp differs, the file is read anew.
        ranges: digests of the byte ranges that have been read, from the first on.
        whole: digest of all bytes, for folders of versions 1 and 2 if there are several ranges.
    """

    stamp: Annotated[list[Word], ENTRIES]
    ranges: Annotated[list[Sha256], ENTRIES]
    whole: Sha256 | None = None


@dataclass
class ChecksumJournal:
    """Digests of files by path, from which an interrupted computation of checksums resumes."""

    format: Literal[1] = 1
    files: Annotated[dict[str, ReadFile], ENTRIES] = field(default_factory=dict)


class FileChecksums(NamedTuple):
    """Checksums of a file.

    Attributes:
        path: path of the file in the folder.
        problem: reason why there is no checksum: the file is missing, or has a wrong length.
        written: length and digests of the file.
        sha256: checksum of the file, in the folder's version.
    """

    path: str
    problem: str | None = None
    written: Written | None = None
    sha256: str = ""


class FolderChecksums:
    """Computation of the checksums of a folder's files. Use as a context manager.

    With `tmp`, digests are recorded in a journal, from which a later computation resumes. It is
    kept after an error or an interruption, and removed after success.

    Args:
        folder: the folder.
        jobs: threads. If None, one per core, at most 8.
        tmp: parent of the journal's folder. If None, there is no journal.
        progress: called as progress('checksums', bytes done, all bytes).

    Raises:
        BlockingIOError: another process uses the same journal.
        NotADirectoryError: `tmp` is no folder.
        SecurityError: another user has made the journal's folder.
        ValueError: `jobs` is not positive.
    """

    def __init__(
        self,
        folder: PartitionFolder,
        jobs: int | None = None,
        tmp: Path | None = None,
        progress: Progress = no_progress,
    ) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs must be at least 1 (got {jobs})")
        self._folder, self._jobs, self._progress = folder, jobs or default_threads(), progress
        self._whole = folder.version < VERSION_RANGES
        self._total = sum(known.bytes for known in folder.files.values())
        self._done, self._unsaved = 0, 0
        self._work: PrivateFolder | None = None
        self._journal = ChecksumJournal()
        if tmp is not None:
            if not tmp.is_dir():
                raise NotADirectoryError(f"tmp must be a folder that exists (got '{tmp}')")
            name = run_name([str(folder.root), folder.fingerprint])
            self._work = PrivateFolder.make(tmp / f".khop-{folder.root.name}-{name}.stage")
            lock(self._work)
            self._journal = read_journal(self._work, ChecksumJournal) or self._journal

    def __enter__(self) -> FolderChecksums:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        if self._work is None:
            return
        if error_type is None or not issubclass(error_type, RESUMABLE):
            shutil.rmtree(self._work.path, ignore_errors=True)
        else:
            write_journal(self._work, self._journal)
        self._work.close()

    def compute(self) -> Iterator[FileChecksums]:
        """Yield the checksums of each file, in the order of meta.json."""
        pool = ThreadPoolExecutor(self._jobs, "khop-checksum")
        waiting: deque[_Reading] = deque()
        try:
            for path in self._folder.files:
                waiting.append(self._begin(path, pool))
                if len(waiting) == _MOST_FILES:
                    yield self._finish(waiting.popleft())
            while waiting:
                yield self._finish(waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)
            for reading in waiting:
                reading.close()

    def _begin(self, path: str, pool: ThreadPoolExecutor) -> _Reading:
        nbytes = self._folder.files[path].bytes
        if not os.path.lexists(self._folder.root / path):
            return _Reading(FileChecksums(path, f"{path}: missing"))
        try:
            descriptor = self._folder.open_file(path)
        except FolderError as error:
            return _Reading(FileChecksums(path, f"{path}: {error}"))
        status = os.fstat(descriptor)
        if status.st_size != nbytes:
            problem = f"{path}: {status.st_size} bytes instead of {nbytes}"
            return _Reading(FileChecksums(path, problem), descriptor)
        times = status.st_mtime_ns, status.st_ctime_ns
        stamp = [nbytes, *(max(0, t) for t in times), status.st_dev, status.st_ino]
        known = self._journal.files.get(path)
        if known is None or known.stamp != stamp or not _fits(known, nbytes):
            known = ReadFile(stamp, [])
        reading = _Reading(FileChecksums(path), descriptor, known)
        if self._whole and nbytes > RANGE_BYTES:  # the state of its SHA-256 cannot be kept
            if known.whole is None:
                reading.known = ReadFile(stamp, [])
                reading.whole = pool.submit(_hash_both_ways, descriptor, nbytes)
            return reading
        firsts = range(RANGE_BYTES * len(known.ranges), nbytes, RANGE_BYTES)
        reading.ranges = [pool.submit(hash_range, descriptor, nbytes, first) for first in firsts]
        return reading

    def _finish(self, reading: _Reading) -> FileChecksums:
        path, known = reading.result.path, reading.known
        nbytes = self._folder.files[path].bytes
        begun = self._done
        try:
            if known is None:
                return reading.result
            for future in reading.ranges:
                known = ReadFile(known.stamp, [*known.ranges, future.result()])
                self._note(path, known, RANGE_BYTES)
            if reading.whole is not None:
                ranges, whole = reading.whole.result()
                known = ReadFile(known.stamp, ranges, whole)
                self._note(path, known, nbytes)
            written = Written(nbytes, known.ranges)
            return FileChecksums(path, None, written, known.whole or written.sha256)
        finally:
            self._done = begun + nbytes
            reading.close()

    def _note(self, path: str, known: ReadFile, nbytes: int) -> None:
        self._done, self._unsaved = self._done + nbytes, self._unsaved + nbytes
        self._progress("checksums", min(self._done, self._total), self._total)
        if self._work is None:
            return
        self._journal.files[path] = known
        if self._unsaved >= _CHECKPOINT_BYTES:
            write_journal(self._work, self._journal)
            self._unsaved = 0


def _fits(known: ReadFile, nbytes: int) -> bool:
    """Return True if the recorded digests `known` can be of a file of `nbytes` bytes."""
    begun = min(nbytes, RANGE_BYTES * len(known.ranges))
    try:
        Written(begun, known.ranges)
    except ValueError:
        return False
    return known.whole is None or begun == nbytes


@dataclass
class _Reading:
    """File that threads are reading. `result` has its path, `known` digests of an earlier run."""

    result: FileChecksums
    descriptor: int = -1
    known: ReadFile | None = None
    ranges: list[Future[str]] = field(default_factory=list)
    whole: Future[tuple[list[str], str]] | None = None

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _hash_both_ways(descriptor: int, nbytes: int) -> tuple[list[str], str]:
    """Return the digest of each byte range of an open file, and the digest of all its bytes."""
    ranges, whole, offset = RangeHash(), hashlib.sha256(), 0
    room = memoryview(bytearray(_PIECE))
    while offset < nbytes and (done := os.preadv(descriptor, [room], offset)):
        whole.update(room[:done])
        ranges.update(room[:done])
        offset += done
    if offset < nbytes:
        raise OSError(errno.EIO, f"a file of {nbytes} bytes ended at {offset} while it was read")
    return ranges.written().ranges, whole.hexdigest()
