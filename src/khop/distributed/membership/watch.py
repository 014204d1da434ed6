"""Watches of members, and notices of their failures. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Failure(NamedTuple):
    """Notice that a member has failed.

    Attributes:
        rank: rank of the member.
        seconds: time since it was last heard of.
        where: its process and machine, in parentheses; '' if not known.
        has_left: whether it has left in order.
    """

    rank: int
    seconds: float
    where: str
    has_left: bool

    def __str__(self) -> str:
        """Return what has happened, to follow the member's name."""
        if self.has_left:
            return f"has left the job{self.where}"
        return f"has not been heard of for {self.seconds:.0f} s{self.where}"


OnLook = Callable[[Mapping[int, Any]], None]
"""Function that gets the values that a watch has read, by rank."""


@dataclass(eq=False)
class Watch:
    """Watch of a value that members announce; made by `Membership.watch`.

    Attributes:
        name: name of the value.
        ranks: ranks of the members.
        every: seconds between looks.
        on_look: called after each look.
        until: time at which it ends (`time.monotonic`). If None, it does not.
        next_look: time of the next look.
    """

    name: str
    ranks: Sequence[int]
    every: float
    on_look: OnLook
    until: float | None
    next_look: float = 0.0
