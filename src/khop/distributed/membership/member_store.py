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
    """Record of a member's last sign of life, as a store has it.

    Attributes:
        renewals: number of signs of life so far. None if the store counts none.
        silent: seconds since the last sign of life, by the store's clock. None if it measures none.
        has_left: True if the member has left without a failure.
        where: its process and machine. '' if not known.
        is_cut_off: True if its connection to the store has ended, and it has made no other.
    """

    renewals: int | None = None
    silent: float | None = None
    has_left: bool = False
    where: str = ""
    is_cut_off: bool = False


class Failure(NamedTuple):
    """Notice that a member has failed.

    Attributes:
        rank: rank of the member.
        seconds: time since its last sign of life.
        where: its process and machine, in parentheses. '' if not known.
        has_left: True if it has left the group without an error.
    """

    rank: int
    seconds: float
    where: str
    has_left: bool

    def __str__(self) -> str:
        """Return the end of an error message, which follows the member's name."""
        if self.has_left:
            return f"has left the job{self.where}"
        return f"has not been heard of for {self.seconds:.0f} s{self.where}"


OnLook = Callable[[Mapping[int, Any]], None]
"""Function that gets the values that a watch has read, by rank."""


@dataclass(eq=False)
class Watch:
    """Repeated reading of a value that members publish. `Membership.watch` makes it.

    Attributes:
        every: seconds between two readings.
        on_look: called with the values after each reading.
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
        is_bounded: True if each call ends soon, or raises an error.
    """

    role: str
    is_bounded: bool

    @abc.abstractmethod
    def put(self, name: str, value: object) -> None:
        """Publish a value of this member under a name. JSON must be able to hold the value."""

    @abc.abstractmethod
    def get(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values `name` that members have published, by rank, without waiting."""

    @abc.abstractmethod
    def get_all(self, name: str, ranks: Sequence[int], seconds: float) -> dict[int, Any]:
        """Return the values `name` of all `ranks`. If one is missing after `seconds`, fewer."""

    def announce(self, name: str, value: object) -> None:
        """Publish a value that few members have, and that other members read repeatedly."""
        self.put(name, value)

    def announced(self, name: str, ranks: Sequence[int]) -> dict[int, Any]:
        """Return announced values `name` by rank. While there are none, this costs little."""
        return self.get(name, ranks)

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Delete this member's value `name`, unless the store removes it itself."""

    @abc.abstractmethod
    def renew(self, renewals: int, has_left: bool = False) -> None:
        """Record a sign of life of a member, number `renewals`, or that it leaves (`has_left`)."""

    @abc.abstractmethod
    def sightings(self, ranks: Iterable[int]) -> dict[int, Sighting]:
        """Return records of members' signs of life, by rank. Members without any are left out."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """Close the connection if this object opened it. Calls in other threads then fail."""
