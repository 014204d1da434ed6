"""Stores in which a group's members keep values and leases, and records about members.

Trainers keep them in torch's store (`job.torch_store`), clients of graph servers in the directory
(`remote.client.client_context`). Imports no torch.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Sighting(NamedTuple):
    """Record of a store about a member's lease.

    Attributes:
        renewals: number of renewals. None if the store counts none.
        silent: seconds since the last renewal, by the store's clock. None if it measures none.
        has_left: whether the member has left without a failure.
        where: its process and machine. '' if not known.
    """

    renewals: int | None = None
    silent: float | None = None
    has_left: bool = False
    where: str = ""


class Failure(NamedTuple):
    """Notice that a member has failed.

    Attributes:
        rank: rank of the member.
        seconds: time since its last sign of life.
        where: its process and machine, in parentheses. '' if not known.
        has_left: whether it has left the group without an error.
    """

    rank: int
    seconds: float
    where: str
    has_left: bool

    def __str__(self) -> str:
        """Return text that follows the member's name in an error message."""
        if self.has_left:
            return f"has left the job{self.where}"
        return f"has not been heard of for {self.seconds:.0f} s{self.where}"


OnLook = Callable[[Mapping[int, Any]], None]
"""Function that gets the values that a watch has read, by rank."""


@dataclass(eq=False)
class Watch:
    """Watch of a value that members announce, from `Membership.watch`.

    Attributes:
        every: seconds between looks.
        on_look: called after each look.
        until: time at which the watch ends (`time.monotonic`). If None, it does not end.
    """

    name: str
    ranks: Sequence[int]
    every: float
    on_look: OnLook
    until: float | None
    next_look: float = 0.0


class MemberStore(abc.ABC):
    """Interface to a store of the values and leases of a group's members.

    Attributes:
        role: role of the members in errors: 'trainer', 'client'.
        is_bounded: whether each call ends soon, or raises an error.
    """

    role: str
    is_bounded: bool

    @abc.abstractmethod
    def put(self, name: str, value: object) -> None:
        """Publish a value of this member, anything that JSON can hold."""

    @abc.abstractmethod
    def get(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values that members have published, by rank, without waiting."""

    @abc.abstractmethod
    def get_all(self, name: str, ranks: Sequence[int], seconds: float) -> dict[int, Any]:
        """Return the values of all ranks, or fewer if a value is missing after `seconds`."""

    def announce(self, name: str, value: object) -> None:
        """Publish a value that few members have, and that other members read repeatedly."""
        self.put(name, value)

    def announced(self, name: str, ranks: Sequence[int]) -> dict[int, Any]:
        """Return announced values, by rank. Cheap while there is none."""
        return self.get(name, ranks)

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Delete a value of this member, if the store does not do so itself."""

    @abc.abstractmethod
    def renew(self, renewals: int, has_left: bool = False) -> None:
        """Renew this member's lease, or note that it leaves."""

    @abc.abstractmethod
    def sightings(self, ranks: Iterable[int]) -> dict[int, Sighting]:
        """Return records of members' leases, by rank, without members that never renewed."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """End the connection if this object made it. Calls in other threads then fail at once."""
