"""Work folders that no other user can change, and replacement of whole files. No torch.

A work folder has the unfinished work of a run. A later run finds it by its name, which follows from
the run's arguments. On a shared scratch disk another user can make a folder or a link of this name
first. So `PrivateFolder` trusts no name. It opens the folder once, checks owner and mode of the
open folder, and opens everything inside by its descriptor, never through a link. Any process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import IO

from khop.errors import SecurityError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a FIFO must not block.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class PrivateFolder:
    """Folder of this user that no other user can change, held open.

    Names of files are relative paths in the folder. Links, files and folders of other users, and
    files with a second name (hard links), are refused with SecurityError.

    Args:
        path: path of the folder, for messages and for other processes.
        descriptor: descriptor of the open folder, which `close` closes.

    Raises:
        SecurityError: the folder is another user's, or others may write to it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        try:
            self._check()
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def make(cls, path: Path, exist_ok: bool = True) -> PrivateFolder:
        """Make a folder for this user alone, or open one that exists.

        Raises:
            FileExistsError: the folder exists, and `exist_ok` is False.
            SecurityError: it is a link, another user's, or others may write to it.
            OSError: it cannot be made.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not exist_ok:
                raise
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> PrivateFolder:
        """Open an existing folder of this user.

        Raises:
            SecurityError: it is a symbolic link, another user's, or others may write to it.
            OSError: it does not exist.
        """
        return cls(path, open_folder(path))

    def _check(self) -> None:
        status = os.fstat(self.descriptor)
        _check_owner(status, self.path)
        if status.st_mode & _OTHERS_WRITE:
            raise SecurityError(
                f"'{self.path}' has mode {stat.S_IMODE(status.st_mode):04o}: other users can "
                "change what a run keeps there. Remove it, and choose a place whose new folders "
                "are yours alone"
            )
        if status.st_mode & _OTHERS:
            with contextlib.suppress(PermissionError):  # a file system without modes
                os.fchmod(self.descriptor, stat.S_IMODE(status.st_mode) & ~_OTHERS)

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder. Further calls have no effect."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def create(self, name: str, buffering: int = -1) -> IO[bytes]:
        """Create a file and open it for writing. An old file of this name is removed first."""
        self.unlink(name, missing_ok=True)
        return self._opened(name, "xb", buffering)

    def update(self, name: str, buffering: int = -1) -> IO[bytes]:
        """Open an existing file for reading and writing."""
        return self._opened(name, "r+b", buffering)

    def read(self, name: str) -> IO[bytes]:
        """Open an existing file for reading."""
        return self._opened(name, "rb", -1)

    def _opened(self, name: str, mode: str, buffering: int) -> IO[bytes]:
        def opener(path: str, flags: int) -> int:
            with self._folder_of(name) as (at, last):
                try:
                    descriptor = os.open(last, flags | _FILE, 0o666, dir_fd=at)
                except OSError as error:
                    _refuse_link(error, path)
                    raise
            try:
                _check_file(os.fstat(descriptor), path)
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor

        # Errors, and other processes that map the file, know it by its path.
        return open(self.path / name, mode, buffering, opener=opener)

    @contextlib.contextmanager
    def _folder_of(self, name: str) -> Iterator[tuple[int, str]]:
        """Open the folder of file `name`. Yield its descriptor and the last part of `name`."""
        *above, last = PurePosixPath(name).parts
        if ".." in above or last in ("..", "/") or name.startswith("/"):
            raise ValueError(f"'{name}' leads out of '{self.path}'")
        with contextlib.ExitStack() as stack:
            at, path = self.descriptor, self.path
            for part in above:
                path /= part
                at = open_folder(part, at, path)
                stack.callback(os.close, at)
                _check_owner(os.fstat(at), path)
            yield at, last

    def make_folder(self, name: str, mode: int = 0o777) -> None:
        """Make a folder inside this one, with its parents, unless they exist."""
        path = PurePosixPath(name)
        for folder in (*reversed(path.parents[:-1] if path.parts else ()), path):
            with self._folder_of(str(folder)) as (at, last), contextlib.suppress(FileExistsError):
                os.mkdir(last, mode, dir_fd=at)

    def folder(self, name: str) -> PrivateFolder:
        """Open an existing folder inside this one. Errors are as for `open`."""
        with self._folder_of(name) as (at, last):
            return PrivateFolder(self.path / name, open_folder(last, at, self.path / name))

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it is missing or another user's."""
        with contextlib.suppress(OSError, SecurityError), self._folder_of(name) as (at, last):
            status = os.stat(last, dir_fd=at, follow_symlinks=False)
            _check_file(status, name)
            return status.st_size
        return None

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder inside this one. A file of the new name is replaced."""
        with self._folder_of(old) as (before, first), self._folder_of(new) as (after, last):
            os.rename(first, last, src_dir_fd=before, dst_dir_fd=after)

    def unlink(self, name: str, missing_ok: bool = False) -> None:
        try:
            with self._folder_of(name) as (at, last):
                os.unlink(last, dir_fd=at)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove(self, name: str) -> None:
        """Remove a file, link or folder with its content, if it exists. Links are not followed."""
        try:
            self.unlink(name, missing_ok=True)
        except OSError:  # a folder: EISDIR or EPERM, by system
            shutil.rmtree(self.path / name)

    def names(self) -> list[str]:
        """Return the sorted names of the files and folders directly in this folder."""
        with os.scandir(self.descriptor) as entries:
            return sorted(entry.name for entry in entries)

    def sync(self) -> None:
        """Flush the names of all files in the folder, and in its inner folders, to the disk."""
        for _, _, _, descriptor in os.fwalk(".", dir_fd=self.descriptor):
            os.fsync(descriptor)

    def publish(self) -> None:
        """Give the folder the access rights of an ordinary new folder, by this process's umask."""
        probe = f".{token_hex(8)}"
        os.mkdir(probe, dir_fd=self.descriptor)  # the umask is not known without changing it
        mode = os.stat(probe, dir_fd=self.descriptor, follow_symlinks=False).st_mode
        os.rmdir(probe, dir_fd=self.descriptor)
        os.fchmod(self.descriptor, stat.S_IMODE(mode))


def open_folder(name: str | Path, at: int | None = None, path: Path | None = None) -> int:
    """Open a folder and return its descriptor. Raise SecurityError if it is a link or a file.

    Args:
        name: path of the folder, or its name in folder `at`.
        at: descriptor of a folder. If None, the working directory.
        path: path of the folder in messages. If None, `name`.
    """
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except OSError as error:
        _refuse_link(error, str(name if path is None else path))
        raise


def is_own_folder(path: Path) -> bool:
    """Return True if a path is a folder of this user, and no link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file for writing, which replaces the file at `path` when the context ends.

    Readers see the old or the new file, never a part. After an exception they see the old file.
    The new file's name is random, and it is not opened through a link.
    """
    draft = path.with_name(f".{path.name}.{token_hex(8)}")
    try:
        with draft.open("xb") as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _refuse_link(error: OSError, path: str) -> None:
    """Raise SecurityError if `error` means that `path` is a symbolic link, or no folder."""
    # With O_NOFOLLOW, a link to a folder fails with ENOTDIR, and any other link with ELOOP.
    if error.errno in (errno.ENOTDIR, errno.ELOOP) and os.path.lexists(path):
        entry = "a link" if Path(path).is_symlink() else "no folder"
        raise SecurityError(
            f"'{path}' is {entry}, where khop needs one of its own: remove it, or choose another "
            "place"
        ) from None


def _check_owner(status: os.stat_result, path: Path | str) -> None:
    if status.st_uid != os.geteuid():
        raise SecurityError(
            f"'{path}' belongs to user {status.st_uid}, not to you (user {os.geteuid()}), who "
            "could change what a run keeps there: remove it, or choose another place"
        )


def _check_file(status: os.stat_result, path: str) -> None:
    _check_owner(status, path)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise SecurityError(
            f"'{path}' is no regular file, or has a second name elsewhere: khop writes no such "
            "file. Remove it"
        )
