"""Output of a job's processes: lines with their origin, on the terminal and in files.

A thread writes them, so that a reader of standard output that waits delays nothing else. Imports no
torch.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import re
import shutil
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO

from khop.log import printable

_MAX_WAITING = 1 << 22
_MAX_LOG_BYTES = 64 << 20
_KEPT_LINES, _KEPT_CHARACTERS = 20, 2000
# Colours may pass to the terminal, and nothing else that controls it.
_COLOUR = re.compile(r"(\x1b\[[\d;]*m)")


class Output:
    """Writer of lines with their origin.

    Args:
        folder: folder for a file per process, or None. A file of more than 64 MiB is renamed to
            `.1`, in place of an earlier one, and begun again. If one cannot be written, a line on
            standard error says so, and output goes on without files.

    Raises:
        OSError: the folder cannot be made, or its disk has less than 64 MiB left.
    """

    def __init__(self, folder: Path | None) -> None:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if (free := shutil.disk_usage(folder).free) < _MAX_LOG_BYTES:
                raise OSError(errno.ENOSPC, f"{free >> 20} MiB are free for logs", str(folder))
        self._folder = folder
        self._files: dict[str, IO[str]] = {}
        self._last: dict[str, deque[str]] = {}
        self._queue: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self.error: OSError | None = None
        """Error of standard output, if there was one."""
        self._thread = threading.Thread(target=self._run, name="khop-output", daemon=True)
        self._thread.start()

    @property
    def is_slow(self) -> bool:
        """True if so many characters wait that no more should be read."""
        return self._waiting > _MAX_WAITING

    def write(self, origin: str, line: str) -> None:
        """Write a line of the process `origin`, 'host/rank' for example."""
        parts = _COLOUR.split(line)
        line = "".join(p if i % 2 else printable(p, "\t") for i, p in enumerate(parts))
        kept = self._last.setdefault(origin, deque(maxlen=_KEPT_LINES))
        kept.append(line[:_KEPT_CHARACTERS])
        with self._lock:
            self._waiting += len(line)
        self._queue.put((origin, line))

    def last_lines(self, origin: str) -> list[str]:
        """Return the last lines of a process."""
        return list(self._last.get(origin, ()))

    def close(self, seconds: float | None) -> None:
        """Write what is waiting, for at most `seconds`. None: until all is written."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            origin, line = entry
            try:
                if self.error is None:
                    sys.stdout.write(f"{origin}: {line}\n")
                    if self._queue.empty():
                        sys.stdout.flush()
                    self._log(origin, line)
            except OSError as error:
                self.error = error
            with self._lock:
                self._waiting -= len(line)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            for file in self._files.values():
                file.close()

    def _log(self, origin: str, line: str) -> None:
        if self._folder is None:
            return
        try:
            self._append(self._folder, origin, line)
        except OSError as error:
            print(f"khop run: no more log files are written: {error}", file=sys.stderr, flush=True)
            self._folder = None

    def _append(self, folder: Path, origin: str, line: str) -> None:
        file = self._files.get(origin)
        path = folder / f"{origin.replace('/', '-')}.log"
        if file is not None and file.tell() > _MAX_LOG_BYTES:
            file.close()
            path.replace(path.with_suffix(".log.1"))
            file = None
        if file is None:
            file = self._files[origin] = path.open("w", buffering=1, encoding="utf-8")
        file.write(f"{line}\n")
