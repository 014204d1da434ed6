"""Stage of `khop distribute` on a host: receives files of a partition folder, and checks them.

It is sent as the stage of a job, with `errors` and `private_folders`. So it imports only these and
the standard library. Files are written to a folder beside the target, which is renamed when all are
there. If the target exists, they are moved into it. Nothing else is changed, and no link is
followed. A later run finds what an ended one has left. Imports no torch.

Both sides write lines of JSON. An empty line is a sign of life. From `khop distribute`:

    check   target, name, lease, range_bytes, files -> checked: what is here, and what is wrong
    begin   opens the folder that is written
    write   path, first byte, number of bytes. The bytes follow the line
    finish  moves everything to its end             -> done

A problem after `checked` is reported as `failed`, and ends the stage. So do the end of standard
input, and silence for the length of a lease.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from khop.errors import SecurityError
from khop.private_folders import PrivateFolder, open_folder

META_FILE = "meta.json"
_PIECE, _BEAT_SECONDS, _THREADS = 1 << 20, 1.0, 4


class Gone(Exception):
    """`khop distribute` has ended, or was silent for the length of a lease."""


class Launcher:
    """Connection to `khop distribute`, over standard input and output. Calls wait."""

    def __init__(self) -> None:
        self.lease = 60.0
        self._received = bytearray()
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.send()
                time.sleep(_BEAT_SECONDS)

    def send(self, **message: object) -> None:
        """Send a message, or a sign of life without one."""
        line = json.dumps(message).encode() + b"\n" if message else b"\n"
        with self._lock:
            while line:
                line = line[os.write(1, line) :]

    def _fill(self) -> None:
        ready, _, _ = select.select([0], [], [], self.lease)
        chunk = os.read(0, _PIECE) if ready else b""
        if not chunk:
            raise Gone
        self._received += chunk

    def message(self) -> dict[str, Any]:
        """Return the next message."""
        while True:
            while (end := self._received.find(b"\n")) < 0:
                self._fill()
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            if line:
                return dict(json.loads(line))

    def content(self, nbytes: int) -> Iterator[bytes]:
        """Yield the next `nbytes` bytes in pieces."""
        while nbytes:
            if not self._received:
                self._fill()
            piece = bytes(self._received[: min(nbytes, _PIECE)])
            del self._received[: len(piece)]
            nbytes -= len(piece)
            yield piece


class Delivery:
    """Files of a partition folder on this host, before and while they arrive.

    Args:
        request: content of the message `check`.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        try:
            self._target = Path(request["target"]).expanduser()
        except RuntimeError as error:  # no such user
            raise ValueError(f"'{request['target']}': {error}") from None
        self._range: int = request["range_bytes"]
        self._files: dict[str, tuple[int, list[str]]] = dict(request["files"])
        for path in self._files:
            if ".." in (parts := PurePosixPath(path).parts) or parts[:1] == ("/",):
                raise ValueError(f"'{path}' leads out of the folder")
        self._draft = self._target.with_name(f".{self._target.name}.{request['name']}.tmp")
        self._folder: PrivateFolder | None = None
        self._missing = set(self._files)
        """Paths of the files that the target does not have whole."""

    def check(self) -> dict[str, Any]:
        """Return what is here already, what is missing and what is wrong. Nothing is changed."""
        problems: list[str] = []
        present: list[int] = []
        needed = 0
        try:
            self._check_target()
            present = self._present()
            needed = sum(
                min(self._range, size - index * self._range)
                for bits, (size, digests) in zip(present, self._files.values(), strict=True)
                for index in range(len(digests))
                if not bits >> index & 1
            )
            above = self._existing_parent()
            status = os.statvfs(above)
            free = status.f_bavail * status.f_frsize
            if needed and not os.access(above, os.W_OK | os.X_OK):
                problems.append(f"there is no permission to write in '{above}'")
            if needed > free:
                problems.append(f"{needed:,} bytes are needed in '{above}', and {free:,} are free")
        except (OSError, ValueError, SecurityError) as error:
            problems.append(_text(error))
        return {
            "name": socket.gethostname(),
            "present": [f"{bits:x}" for bits in present],
            "needed": needed,
            "is_complete": not self._missing,
            "problems": problems,
        }

    def _check_target(self) -> None:
        if not self._target.is_absolute() or ".." in self._target.parts or not self._target.name:
            raise ValueError(f"'{self._target}' is no absolute path: give another --to")
        if not os.path.lexists(self._target):
            return
        root = open_folder(self._target)
        try:
            known = self._equal_ranges(root, self._target, META_FILE)
            if _names(root) and known != 1:
                raise ValueError(
                    f"'{self._target}' exists, and is not this partition folder: remove it, or "
                    "give another --to"
                )
        finally:
            os.close(root)

    def _existing_parent(self) -> Path:
        above = self._target.parent
        while not above.exists() and above != above.parent:
            above = above.parent
        return above

    def _present(self) -> list[int]:
        """Return bits of the ranges of each file that are here: all of a file, or of a draft."""
        present = dict.fromkeys(self._files, 0)
        for folder in (self._target, self._draft):
            if not self._missing or not os.path.lexists(folder):
                continue
            root = open_folder(folder)
            try:
                for path in sorted(self._missing):
                    bits = self._equal_ranges(root, folder, path)
                    if folder == self._draft:
                        present[path] = bits
                    elif bits == (1 << len(self._files[path][1])) - 1:
                        present[path] = bits
                        self._missing.remove(path)
            finally:
                os.close(root)
        return list(present.values())

    def _equal_ranges(self, root: int, folder: Path, path: str) -> int:
        """Return bits of the ranges of a file that have their digest. A missing file has none.

        `root` is the open `folder` that the file is in.
        """
        size, digests = self._files[path]
        try:
            with _folder_of(root, folder, path) as (above, last):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(last, flags, dir_fd=above)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder / path)) from None
        try:
            length = os.fstat(descriptor).st_size
            if length > size:
                return 0

            def is_equal(index: int) -> bool:
                first = index * self._range
                end = min(first + self._range, size)
                if end > length:
                    return False
                digest, content = hashlib.sha256(), b"-"
                while first < end and content:
                    content = os.pread(descriptor, min(_PIECE, end - first), first)
                    digest.update(content)
                    first += len(content)
                return digest.hexdigest() == digests[index]

            with ThreadPoolExecutor(_THREADS) as pool:
                equal = pool.map(is_equal, range(len(digests)))
                return sum(1 << index for index, same in enumerate(equal) if same)
        finally:
            os.close(descriptor)

    def begin(self) -> None:
        """Open the folder beside the target, for this process alone."""
        self._folder = PrivateFolder.make(self._draft)
        try:
            fcntl.flock(self._folder.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process writes '{self._draft}': wait for it") from None
        # Other files are of a run with other parts: they may be incomplete.
        for above, _, files, descriptor in os.fwalk(".", dir_fd=self._folder.descriptor):
            for name in files:
                if str(PurePosixPath(above) / name) not in self._missing:
                    os.unlink(name, dir_fd=descriptor)

    def write(self, path: str, first: int, nbytes: int, content: Iterator[bytes]) -> None:
        """Write a range of a file.

        Raises:
            ValueError: the bytes have another checksum than the folder states.
        """
        assert self._folder is not None
        size, digests = self._files[path]
        index, rest = divmod(first, self._range)
        if first < 0 or rest or nbytes != min(self._range, size - first):
            raise ValueError(f"bytes {first} to {first + nbytes} are no range of '{path}'")
        if self._folder.size(path) is None:
            if "/" in path:
                self._folder.make_folder(str(PurePosixPath(path).parent))
            self._folder.create(path).close()
        digest = hashlib.sha256()
        with self._folder.update(path, buffering=0) as file:
            if file.seek(0, os.SEEK_END) > size:
                file.truncate(size)
            file.seek(first)
            for piece in content:
                digest.update(piece)
                unwritten = memoryview(piece)
                while unwritten:
                    unwritten = unwritten[file.write(unwritten) :]
        if digest.hexdigest() != digests[index]:
            raise ValueError(
                f"'{path}' has another checksum in bytes {first:,} to {first + nbytes - 1:,}: "
                "check the folder with khop verify"
            )

    def finish(self) -> None:
        """Flush everything to the disk, and move it to its end."""
        assert self._folder is not None
        for path in self._missing:
            with self._folder.update(path) as file:
                os.fsync(file.fileno())
        self._folder.sync()
        if len(self._missing) == len(self._files):
            self._folder.publish()
            self._draft.rename(self._target)
        else:
            self._merge()
        self._folder.close()
        parent = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(parent)
        os.close(parent)

    def _merge(self) -> None:
        """Move what was written into the target: whole folders if they are new, else files."""
        assert self._folder is not None
        self._check_target()
        draft, root = self._folder.descriptor, open_folder(self._target)
        try:
            for name in _names(draft) - _names(root):
                os.rename(name, name, src_dir_fd=draft, dst_dir_fd=root)
            for path in self._missing:
                if self._folder.size(path) is not None:
                    with (
                        _folder_of(draft, self._draft, path) as (before, last),
                        _folder_of(root, self._target, path, is_made=True) as (after, _),
                    ):
                        os.rename(last, last, src_dir_fd=before, dst_dir_fd=after)
            os.fsync(root)
        finally:
            os.close(root)
        for _, folders, _, descriptor in os.fwalk(".", topdown=False, dir_fd=draft):
            for name in folders:
                os.rmdir(name, dir_fd=descriptor)
        self._draft.rmdir()


@contextlib.contextmanager
def _folder_of(root: int, at: Path, path: str, is_made: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder of file `path` below `root`, through no link. Yield it and the last name.

    `at` is the path of `root`, for messages.
    """
    *above, last = PurePosixPath(path).parts
    with contextlib.ExitStack() as stack:
        for name in above:
            at /= name
            if is_made:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=root)
            root = open_folder(name, root, at)
            stack.callback(os.close, root)
        yield root, last


def _names(folder: int) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries}


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: '{error.filename}'" if error.filename else error.strerror
    return str(error)


def main() -> None:
    """Serve one `khop distribute`."""
    launcher = Launcher()
    delivery: Delivery | None = None
    try:
        while True:
            message = launcher.message()
            if "check" in message:
                launcher.lease = message["check"]["lease"]
                delivery = Delivery(message["check"])
                launcher.send(checked=delivery.check())
                continue
            assert delivery is not None
            if "begin" in message:
                delivery.begin()
            elif "write" in message:
                path, first, nbytes = message["write"]
                delivery.write(path, first, nbytes, launcher.content(nbytes))
            elif "finish" in message:
                delivery.finish()
                launcher.send(done=True)
                return
    except Gone:
        sys.exit(1)
    except (OSError, ValueError, SecurityError) as error:
        with contextlib.suppress(OSError):
            launcher.send(failed=_text(error))
        sys.exit(1)
