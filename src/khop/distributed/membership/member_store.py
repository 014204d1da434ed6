"""Interface of the places where a group's members keep values and leases. Imports no torch.

Trainers keep them in torch's store (`job.torch_store`), clients of graph servers in the directory
(`remote.client.client_context`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Sighting(NamedTuple):
    """Record of a store about a member's lease.

    Attributes:
        renewals: number of renewals; None if the store counts none.
        silent: seconds since the last renewal, by the store's clock; None if it measures none.
        has_left: whether the member has left in order.
        where: its process and machine; '' if not known.
    """

    renewals: int | None = None
    silent: float | None = None
    has_left: bool = False
    where: str = ""


class MemberStore(abc.ABC):
    """Place of the values and leases of a group's members.

    Attributes:
        role: role of the members in errors: 'trainer', 'client'.
        is_bounded: whether each call ends soon, or raises an error.
    """

    role: str
    is_bounded: bool

    @abc.abstractmethod
    def put(self, name: str, value: Any) -> None:
        """Publish a value of this member, anything that JSON can hold."""

    @abc.abstractmethod
    def get(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values that members have published, by rank, without waiting."""

    @abc.abstractmethod
    def get_all(self, name: str, ranks: Sequence[int], seconds: float) -> dict[int, Any]:
        """Return values; those of some ranks, or none, where one is missing.

        Args:
            name: name of the value.
            ranks: ranks of the members.
            seconds: time that the call may wait for missing ones.
        """

    def announce(self, name: str, value: Any) -> None:
        """Publish a value that few members have, and that others look for again and again."""
        self.put(name, value)

    def announced(self, name: str, ranks: Sequence[int]) -> dict[int, Any]:
        """Return announced values, by rank; cheap while there is none."""
        return self.get(name, ranks)

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Delete a value of this member, if the store does not do so itself."""

    @abc.abstractmethod
    def renew(self, renewals: int, has_left: bool = False) -> None:
        """Renew this member's lease, or note that it leaves."""

    @abc.abstractmethod
    def sightings(self, ranks: Iterable[int]) -> dict[int, Sighting]:
        """Return what is known of members' leases, by rank; none of those never renewed."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """End the connection, if it is this object's: calls that wait elsewhere fail at once."""
