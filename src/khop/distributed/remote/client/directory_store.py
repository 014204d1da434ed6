"""Values and leases of clients, in the graph servers' directory. Runs in trainers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from khop.distributed.membership.member_store import MemberStore, Sighting
from khop.distributed.remote.directory_client import DirectoryClient

# The directory answers after this time even if values are missing.
_WAIT_SECONDS = 5.0


class DirectoryStore(MemberStore):
    """Values that clients publish in the directory, and what it knows of their leases.

    `DirectoryClient` renews this client's lease, by its registration.

    Args:
        directory: this client's connections; registered with role 'client'.
        prefix: prefix of all names, so that groups do not collide.
    """

    role = "client"
    is_bounded = True

    def __init__(self, directory: DirectoryClient, prefix: str) -> None:
        self._directory = directory
        self._prefix = prefix
        self._began_at = time.monotonic()

    def put(self, name: str, value: Any) -> None:
        """Publish this client's value; see `MemberStore`."""
        self._directory.publish(f"{self._prefix}/{name}", value)

    def get(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values that are in the directory; see `MemberStore`."""
        return self._read(name, list(ranks), 0.0)

    def get_all(self, name: str, ranks: Sequence[int], seconds: float) -> dict[int, Any]:
        """Return values as soon as all are there, else those that are; see `MemberStore`."""
        return self._read(name, list(ranks), min(seconds, _WAIT_SECONDS))

    def _read(self, name: str, missing: list[int], seconds: float) -> dict[int, Any]:
        values: dict[int, Any] = {}
        end = time.monotonic() + seconds
        while missing:
            left = max(0.0, end - time.monotonic())
            found = self._directory.wait_for(f"{self._prefix}/{name}", missing, left)
            values |= found
            missing = [rank for rank in missing if rank not in found]
            if not found and left == 0:  # a reply may hold only some of many long values
                break
        return values

    def delete(self, name: str) -> None:
        """Forget a value, which the directory drops once a client has published many others."""
        self._directory.forget(f"{self._prefix}/{name}")

    def renew(self, renewals: int, has_left: bool = False) -> None:
        """Do nothing: `DirectoryClient` registers every second, and unregisters at its end."""

    def disconnect(self) -> None:
        """Do nothing: the connection is the client's, and its requests have a timeout."""

    def sightings(self, ranks: Iterable[int]) -> dict[int, Sighting]:
        """Return what the directory says of clients' leases; see `MemberStore`.

        A client that was silent since this one began is of an earlier start of the job.
        """
        clients, sightings = self._directory.look_up().clients, dict[int, Sighting]()
        for rank in ranks:
            entry = clients.get(rank)
            if entry is not None and entry.silent < time.monotonic() - self._began_at:
                where = f"process {entry.pid}"
                sightings[rank] = Sighting(None, entry.silent, entry.gone, where)
        return sightings
