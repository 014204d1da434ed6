"""Writer of partition folders, which appear when they are complete. Runs in partitioners."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from khop.private_folders import PrivateFolder, open_folder
from khop.storage.folder.array_writer import ATTEMPTS, ArrayFile, ArrayWriter, explained_write
from khop.storage.folder.checksums import RANGES_FILE, Written
from khop.storage.folder.content import FORMAT, META_FILE, content_of, sealed
from khop.storage.folder.meta import FolderMeta
from khop.storage.folder.npy import npy_header

RESUMABLE = (OSError, MemoryError, KeyboardInterrupt, SystemExit)
"""Errors after which the same run can be resumed."""


@dataclass
class Unfinished:
    """State of a partition folder that is being written, from which a later run resumes.

    Attributes:
        name: part of the temporary folder's name, the same for runs that may resume one another.
        complete: path -> size and checksums of a complete file.
        begun: path -> size and checksums of the written part of an incomplete file.
    """

    name: str
    complete: dict[str, Written] = field(default_factory=dict)
    begun: dict[str, Written] = field(default_factory=dict)


class FolderWriter(ArrayWriter):
    """Writer of a folder. It writes a temporary folder beside `root`, which `finish` renames.

    Use as a context manager. An exception removes the temporary folder, unless `unfinished` is
    passed and the exception is one of `RESUMABLE`.

    Args:
        root: path of the folder.
        overwrite: replace a folder that exists.
        unfinished: state of an earlier writer of the same content, which `sync` updates. If None,
            the work cannot be resumed.

    Raises:
        FileExistsError: `root` exists, and `overwrite` is False or `root` is no partition folder.
        OSError: the folder cannot be created.
        SecurityError: another user has made the temporary folder, or may write to it.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        overwrite: bool = False,
        unfinished: Unfinished | None = None,
    ) -> None:
        self.root = Path(root).absolute()
        self._overwrite = overwrite
        self._is_resumable = unfinished is not None
        self._unfinished = unfinished or Unfinished(token_hex(8))
        check_output(self.root, overwrite)
        try:
            temporary = temporary_of(self.root, self._unfinished.name)
            self._temporary = PrivateFolder.make(temporary, exist_ok=self._is_resumable)
        except OSError as error:
            # EEXIST: the parent exists, and is a file.
            code = errno.ENOTDIR if error.errno == errno.EEXIST else error.errno or errno.EIO
            raise OSError(
                code,
                f"cannot write a partition folder to '{self.root}': {os.strerror(code)}; choose "
                "a place where folders can be made",
            ) from None
        lock(self._temporary)
        self._paths: list[str] = []
        self._folders: set[str] = set()
        self._open: dict[str, ArrayFile] = {}
        self._complete = dict(self._unfinished.complete)
        self._unsynced: list[str] = []
        # Files that are complete go to the disk while others are written.
        self._flusher = ThreadPoolExecutor(1, "khop-fsync")
        self._flushes: list[Future[None]] = []

    def __enter__(self) -> FolderWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *rest: object) -> None:
        for file in self._open.values():
            file.abandon()
        self._flusher.shutdown(cancel_futures=True)
        self._temporary.close()
        is_kept = error_type is not None and issubclass(error_type, RESUMABLE)
        if not (self._is_resumable and is_kept):
            shutil.rmtree(self._temporary.path, ignore_errors=True)

    def has(self, path: str) -> bool:
        if path not in self._complete:
            return False
        self._paths.append(path)
        return True

    @contextlib.contextmanager
    def array(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[ArrayFile]:
        self._paths.append(path)
        folder = str(Path(path).parent)
        if folder not in self._folders:
            self._temporary.make_folder(folder)
            self._folders.add(folder)
        begun = self._unfinished.begun.get(path)
        opened = ArrayFile(self._temporary, path, dtype, shape, self._writing, begun)
        self._open[path] = opened
        yield opened
        self._complete[path] = opened.close()
        del self._open[path]
        if self._is_resumable:
            self._unsynced.append(path)
        else:
            self._flushes.append(self._flusher.submit(self._flush, path))

    def shared(self) -> Path:
        """Return the path that `AttemptWriter` objects in other processes write to."""
        self._temporary.make_folder(ATTEMPTS)
        return self._temporary.path

    def take(self, written: Mapping[str, Written]) -> None:
        """Add files that an `AttemptWriter` in another process has written to the folder."""
        for path, known in written.items():
            size = self._temporary.size(path) or 0
            if size != known.bytes:
                raise OSError(
                    errno.EIO,
                    f"'{path}' has {size:,} bytes here, and {known.bytes:,} where it was written: "
                    "write to storage that all machines share",
                )
            self._paths.append(path)
            self._complete[path] = known

    def written(self, path: str) -> Written:
        """Return length and checksums of a complete file of the folder."""
        return self._complete[path]

    def _writing(self, file: Path, nbytes: int) -> AbstractContextManager[None]:
        kept = "Nothing of the folder is kept; make room, or choose another place"
        if self._is_resumable:
            kept = "What is done is kept: make room, and run the same again to go on"
        name = file.relative_to(self._temporary.path)
        action = f"write {nbytes:,} bytes of '{name}' for the partition folder '{self.root}'"
        return explained_write(action, self._temporary.path, kept)

    def _flush(self, path: str) -> None:
        nbytes = self._temporary.size(path) or 0
        with (
            self._writing(self._temporary.path / path, nbytes),
            self._temporary.update(path) as opened,
        ):
            os.fsync(opened.fileno())

    def sync(self) -> None:
        """Flush all bytes written so far to the disk, and update `unfinished`."""
        for opened in self._open.values():
            opened.sync()
        while self._unsynced:
            self._flush(self._unsynced.pop())
        for flush in self._flushes:
            flush.result()
        self._unfinished.complete = dict(self._complete)
        self._unfinished.begun = {path: file.written() for path, file in self._open.items()}

    def finish(self, meta: FolderMeta, identity: str | None = None) -> None:
        """Write meta.json, flush all files to the disk, and rename the folder to its final path.

        Args:
            meta: description of the graph.
            identity: fingerprint of the folder that this one was converted from, or None.
        """
        self.sync()
        shutil.rmtree(self._temporary.path / ATTEMPTS, ignore_errors=True)
        files = {path: self._complete[path] for path in self._paths}
        for name, content in description_of(meta, files, identity).items():
            with self._temporary.create(name) as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
        self._temporary.sync()
        self._temporary.publish()
        if self._overwrite and self.root.exists():
            aside = Path(tempfile.mkdtemp(prefix=f".{self.root.name}.", dir=self.root.parent))
            self.root.rename(aside / "old")
            self._temporary.path.rename(self.root)
            shutil.rmtree(aside)
        else:
            self._temporary.path.rename(self.root)
        _sync_folder(self.root.parent)

    def extend(self, meta: FolderMeta, files: Mapping[str, Written]) -> None:
        """Move the written files into the folder at `root`, and describe them there.

        The folder is whole at any time: the new meta.json comes last.

        Args:
            meta: description of the graph, with the new files.
            files: path -> length and checksums of the files that `root` has.
        """
        self.sync()
        written = {path: self._complete[path] for path in self._paths}
        for path in written:
            (self._temporary.path / path).replace(self.root / path)
        for folder in {(self.root / path).parent for path in written}:
            _sync_folder(folder)
        describe(self.root, meta, {**files, **written})


def describe(
    root: Path, meta: FolderMeta, files: Mapping[str, Written], identity: str | None = None
) -> None:
    """Replace meta.json and the checksums of a folder. Arguments: see `description_of`.

    meta.json is last. Until then, the old one is valid if its files come first in `files`.
    """
    for name, content in description_of(meta, files, identity).items():
        draft = root / draft_of(name)  # the same name in each run, so no draft is left
        draft.unlink(missing_ok=True)
        with draft.open("xb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(root / name)
        _sync_folder(root)


def _sync_folder(folder: Path) -> None:
    """Flush the names of a folder's files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def description_of(
    meta: FolderMeta, files: Mapping[str, Written], identity: str | None = None
) -> dict[str, bytes]:
    """Return {name: content} of the files that describe a folder. meta.json comes last.

    Args:
        meta: description of the graph.
        files: path -> length and checksums of each file.
        identity: fingerprint of the folder that this one was converted from, or None.
    """
    digests = [d for known in files.values() if len(known.ranges) > 1 for d in known.ranges]
    rows = npy_header(np.dtype(np.uint8), (len(digests), 32)) + bytes.fromhex("".join(digests))
    described = {META_FILE: sealed(content_of(meta, files, identity))}
    return {RANGES_FILE: rows, **described} if digests else described


def draft_of(name: str) -> str:
    """Return the temporary name of a new meta.json, or of another file that describes a folder."""
    return f".{name}.new"


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock the folder at `root` while it is changed, as a context.

    Raises:
        BlockingIOError: another process changes the folder.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _locks(descriptor):
            raise BlockingIOError(
                errno.EAGAIN, f"another process changes '{root}': wait for it, or end it"
            )
        yield
    finally:
        os.close(descriptor)


def lock(folder: PrivateFolder) -> None:
    """Lock a folder for writing. If another process has locked it, raise BlockingIOError."""
    if not _locks(folder.descriptor):
        folder.close()
        raise BlockingIOError(
            errno.EAGAIN,
            f"another process does the same work, in '{folder.path}': wait for it, or end it",
        )


def is_locked(folder: Path) -> bool:
    """Return True if a process is writing the folder at this path."""
    descriptor = open_folder(folder)
    try:
        return not _locks(descriptor)
    finally:
        os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def temporary_of(root: Path, name: str) -> Path:
    """Return the path of the incomplete folder, beside `root`. `name` is the name of the run."""
    return root.with_name(f".{root.name}.{name}.tmp")


def check_output(root: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise FileExistsError if `root` exists and must not be replaced.

    It may be replaced if it is empty, or with `overwrite` if it is a partition folder.
    """
    root = Path(root).absolute()
    if not os.path.lexists(root):
        return
    if not _may_be_replaced(root):
        raise FileExistsError(
            f"'{root}' exists and is not a partition folder: it will not be overwritten; choose "
            "another output folder"
        )
    if not overwrite:
        raise FileExistsError(
            f"'{root}' exists: choose another output folder or pass overwrite=True "
            "(--overwrite on the command line)"
        )


def _may_be_replaced(root: Path) -> bool:
    """Return True for an empty folder or a partition folder, of any version, whole or damaged."""
    if root.is_symlink() or not root.is_dir():
        return False
    meta = root / META_FILE
    if not meta.is_file():
        return not any(root.iterdir())
    with meta.open("rb") as opened:
        return FORMAT.encode() in opened.read(256)
