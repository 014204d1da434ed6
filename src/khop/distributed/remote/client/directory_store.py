"""Values and leases of a group of clients, which the directory keeps. Runs in trainers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from khop.distributed.membership.member_store import MemberStore, Sighting
from khop.distributed.remote.directory_client import DirectoryClient

# The directory answers after this time even if values are missing.
_WAIT_SECONDS = 5.0


class DirectoryStore(MemberStore):
    """Store of a group of clients' values and leases, which the directory keeps for them.

    `DirectoryClient` renews this client's lease whenever it registers.

    Args:
        directory: this client's connections, registered with role 'client'.
        prefix: prefix of all names, so that groups do not collide.
        lost: seconds after which a lost connection to the directory is an error. If None, requests
            wait for their timeout.
    """

    role = "client"
    is_bounded = True

    def __init__(self, directory: DirectoryClient, prefix: str, lost: float | None = None) -> None:
        self._directory = directory
        self._prefix = prefix
        self._lost = lost
        self._began_at = time.monotonic()

    def put(self, name: str, value: Any) -> None:
        self._directory.publish(f"{self._prefix}/{name}", value, self._lost)

    def get(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        return self._read(name, list(ranks), 0.0)

    def get_all(self, name: str, ranks: Sequence[int], seconds: float) -> dict[int, Any]:
        """Return the published values by rank, as soon as all are there or after `seconds`."""
        return self._read(name, list(ranks), min(seconds, _WAIT_SECONDS))

    def _read(self, name: str, missing: list[int], seconds: float) -> dict[int, Any]:
        values: dict[int, Any] = {}
        end = time.monotonic() + seconds
        while missing:
            left = max(0.0, end - time.monotonic())
            more = self._directory.wait_for(f"{self._prefix}/{name}", missing, left, self._lost)
            values |= more
            missing = [rank for rank in missing if rank not in more]
            if not more and left == 0:  # a reply does not hold many long values
                break
        return values

    def delete(self, name: str) -> None:
        """Drop this client's value, so that a restarted directory does not get it again.

        The directory itself drops it once it has many newer ones.
        """
        self._directory.forget(f"{self._prefix}/{name}")

    def renew(self, renewals: int, has_left: bool = False) -> None:
        """Do nothing: `DirectoryClient` registers every second, and unregisters at its end."""

    def disconnect(self) -> None:
        """Do nothing: the client closes its own connection, and requests have a timeout."""

    def sightings(self, ranks: Iterable[int]) -> dict[int, Sighting]:
        """Return what is known of the leases of clients, by rank.

        Clients that have been silent since before this object was made are left out, as they may
        belong to an earlier start of the job.
        """
        clients, sightings = self._directory.look_up(self._lost).clients, dict[int, Sighting]()
        for rank in ranks:
            entry = clients.get(rank)
            if entry is not None and entry.silent < time.monotonic() - self._began_at:
                where = f"process {entry.pid}"
                sightings[rank] = Sighting(None, entry.silent, entry.gone, where, entry.is_cut_off)
        return sightings
