"""Bounds of the bytes that a server keeps for tensors, of a job and of all. Imports no torch."""

from __future__ import annotations

import threading


class Account:
    """Count of bytes, with a bound. Any thread may use it.

    Args:
        limit: maximum bytes. If None, there is no bound.
        owner: owner of the bytes, for errors.
        total: account of all owners, which counts the bytes, too. If None, there is none.
    """

    def __init__(self, limit: int | None, owner: str, total: Account | None = None) -> None:
        self._limit = limit
        self._owner = owner
        self._total = total
        self._lock = threading.Lock()
        self._is_closed = False
        self.nbytes = 0

    def take(self, nbytes: int, content: str) -> None:
        """Count bytes for `content`.

        Raises:
            MemoryError: a bound does not allow them. Nothing is counted then.
        """
        with self._lock:
            if self._limit is not None and self.nbytes + nbytes > self._limit:
                raise MemoryError(
                    f"{nbytes:,} bytes for {content}: {self._owner} has {self.nbytes:,} of "
                    f"{self._limit:,} bytes for tensors (--tensor-limit, --job-tensor-limit)"
                )
            if self._total is not None:
                self._total.take(nbytes, content)
            self.nbytes += nbytes

    def give(self, nbytes: int) -> None:
        """Count bytes no more. Does nothing once the account is closed."""
        with self._lock:
            if self._is_closed:
                return
            self.nbytes -= nbytes
            if self._total is not None:
                self._total.give(nbytes)

    def close(self) -> None:
        """Give back all bytes. Further bytes are refused."""
        with self._lock:
            if self._total is not None and not self._is_closed:
                self._total.give(self.nbytes)
            self.nbytes, self._limit, self._is_closed = 0, 0, True
