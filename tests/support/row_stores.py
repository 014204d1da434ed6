"""Row stores for tests: a row is a function of its id, and comes when the test says so."""

import os
import sqlite3
import time
from pathlib import Path

import numpy as np

from khop.data import ReadThreads, ReadTicket, RowFormat, RowStore

WIDTH = 3


def rows_of(ids):
    """Return the [n, 3] float32 rows of ids."""
    ids = np.asarray(ids, np.int64)
    return np.stack([ids, ids**2 % 97, -ids], axis=1).astype(np.float32)


class HeldRows(RowStore):
    """Rows whose tickets the test completes: `pending` has (ticket, ids, out) of each read."""

    stored = RowFormat("float32", (WIDTH,))

    def __init__(self, num_rows=100, descriptor=None):
        self.num_rows = num_rows
        self.pending = []
        self._descriptor = descriptor

    def read(self, ids, out):
        ticket = ReadTicket(self._descriptor)
        self.pending.append((ticket, ids, out))
        return ticket

    def complete(self):
        """Write the rows of the oldest read, and complete its ticket."""
        ticket, ids, out = self.pending.pop(0)
        out[:] = rows_of(ids)
        ticket.succeed()


class ReapedRows(HeldRows):
    """Rows whose reads end with an eventfd, as with io_uring: only `reap` completes tickets."""

    def __init__(self, num_rows=100):
        super().__init__(num_rows, os.eventfd(0, os.EFD_NONBLOCK))

    def read(self, ids, out):
        ticket = super().read(ids, out)
        ticket.reap = self._reap
        return ticket

    def kernel_is_done(self):
        os.eventfd_write(self._descriptor, 1)

    def _reap(self):
        os.eventfd_read(self._descriptor)
        while self.pending:
            self.complete()

    def close(self):
        os.close(self._descriptor)


class ThreadRows(RowStore):
    """Rows that threads read, controlled by files in a folder.

    - `hold-<id>`: a read of this id waits until the file is gone. `held-<id>` shows that it waits.
    - `fail-<id>`: a read of this id raises sqlite3.OperationalError.

    Each process that opens the store leaves a file `opened-<process id>`.
    """

    stored = RowFormat("float32", (WIDTH,))

    def __init__(self, folder, num_rows):
        self.num_rows = num_rows
        self._folder = Path(folder)
        self._threads = ReadThreads(4)
        (self._folder / f"opened-{os.getpid()}").touch()

    def read(self, ids, out):
        return self._threads.submit(self._read, ids, out)

    def _read(self, ids, out):
        asked = {*ids.tolist()}
        for file in sorted(self._folder.glob("fail-*")):
            if int(file.name[5:]) in asked:
                raise sqlite3.OperationalError(f"row {file.name[5:]} is locked")
        for file in sorted(self._folder.glob("hold-*")):
            if int(file.name[5:]) in asked:
                (self._folder / f"held-{file.name[5:]}").touch()
                while file.exists():
                    time.sleep(0.005)
        out[:] = rows_of(ids)

    def close(self):
        self._threads.close()


class WrongRows(ThreadRows):
    """Rows that have another shape in all processes but the first that opens the store."""

    def __init__(self, folder, num_rows):
        if any(Path(folder).glob("opened-*")):
            self.stored = RowFormat("float32", (WIDTH + 1,))
        super().__init__(folder, num_rows)
