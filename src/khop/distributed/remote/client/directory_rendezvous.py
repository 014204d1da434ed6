"""Values that clients of graph servers publish for each other. Runs in trainers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from khop.distributed.job.rendezvous import Rendezvous
from khop.distributed.remote.directory_client import DirectoryClient

# The directory answers after this time even if values are missing.
_WAIT_SECONDS = 5.0


class DirectoryRendezvous(Rendezvous):
    """Named values that clients publish in the directory.

    Args:
        directory: this client's connections; registered with role 'client'.
        prefix: prefix of all names, so that groups do not collide.
        rank: rank of this client.
        world_size: number of clients.
        timeout: seconds to wait for a client.
    """

    def __init__(
        self, directory: DirectoryClient, prefix: str, rank: int, world_size: int, timeout: float
    ) -> None:
        super().__init__(rank, world_size, timeout)
        self._directory = directory
        self._prefix = prefix

    def publish(self, name: str, value: Any) -> None:
        """Publish this client's value; see `Rendezvous`."""
        self._directory.publish(f"{self._prefix}/{name}", value)

    def wait_for(self, name: str, ranks: Iterable[int], what: str) -> dict[int, Any]:
        """Wait for the values of other clients; see `Rendezvous`."""
        ranks, end = list(ranks), time.monotonic() + self.timeout
        values: dict[int, Any] = {}
        while True:
            left = end - time.monotonic()
            missing = [rank for rank in ranks if rank not in values]
            found = self._ask(name, missing, max(0.0, min(left, _WAIT_SECONDS)))
            values |= found
            missing = [rank for rank in missing if rank not in found]
            if not missing:
                return values
            if left <= 0 and not found:  # a reply may hold only some of many long values
                raise self._late("client", missing, what)

    def poll(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values that are in the directory; see `Rendezvous`."""
        values: dict[int, Any] = {}
        missing = list(ranks)
        # A reply may hold only some of many long values.
        while missing and (found := self._ask(name, missing, 0.0)):
            values |= found
            missing = [rank for rank in missing if rank not in found]
        return values

    def _ask(self, name: str, ranks: list[int], wait: float) -> dict[int, Any]:
        return self._directory.wait_for(f"{self._prefix}/{name}", ranks, wait)
