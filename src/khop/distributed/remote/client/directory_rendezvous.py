"""Values that clients of graph servers publish for each other. Runs in trainers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from khop.errors import RendezvousError

if TYPE_CHECKING:
    from khop.distributed.remote.directory_client import DirectoryClient

# The directory answers after this time even if values are missing.
_HEAR_SECONDS = 5.0


class DirectoryRendezvous:
    """Named values that clients publish in the directory, as `job.rendezvous.Rendezvous`.

    Args:
        remote: this client's connections; registered with role 'client'.
        prefix: prefix of all names, so that groups do not collide.
        rank: rank of this client.
        world_size: number of clients.
        timeout: seconds to wait for a client.
    """

    def __init__(
        self, remote: DirectoryClient, prefix: str, rank: int, world_size: int, timeout: float
    ) -> None:
        self._remote = remote
        self._prefix = prefix
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout

    def tell(self, name: str, value: Any) -> None:
        """Publish this client's value."""
        self._remote.tell(f"{self._prefix}/{name}", value)

    def hear(self, name: str, ranks: Iterable[int], what: str) -> dict[int, Any]:
        """Wait for the values of clients, and return them by rank; see `Rendezvous.hear`.

        Raises:
            RendezvousError: a client did not publish its value in time; names the clients.
        """
        ranks, end = list(ranks), time.monotonic() + self.timeout
        heard: dict[int, Any] = {}
        while True:
            left = end - time.monotonic()
            missing = [rank for rank in ranks if rank not in heard]
            found = self._ask(name, missing, max(0.0, min(left, _HEAR_SECONDS)))
            heard |= found
            missing = [rank for rank in missing if rank not in found]
            if not missing:
                return heard
            if left <= 0 and not found:  # a reply may hold only some of many long values
                raise RendezvousError(
                    f"client {self.rank} waited {self.timeout:.0f} s for client(s) {missing} to "
                    f"{what}; they have ended, are late, or do not do so"
                )

    def all_gather(self, name: str, what: str) -> list[Any]:
        """Wait for the values of all clients, and return them in the order of ranks."""
        heard = self.hear(name, range(self.world_size), what)
        return [heard[rank] for rank in range(self.world_size)]

    def told(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values that clients have already published, by rank, without waiting."""
        heard: dict[int, Any] = {}
        missing = list(ranks)
        # A reply may hold only some of many long values.
        while missing and (found := self._ask(name, missing, 0.0)):
            heard |= found
            missing = [rank for rank in missing if rank not in found]
        return heard

    def all_published(self, name: str) -> bool:
        """Return whether all clients have published their value."""
        return len(self.told(name, range(self.world_size))) == self.world_size

    def _ask(self, name: str, ranks: list[int], wait: float) -> dict[int, Any]:
        return self._remote.hear(f"{self._prefix}/{name}", ranks, wait)
