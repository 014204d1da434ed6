"""Steps that all members of a group take together, with notice of members that cannot come.

A step may take one member hours longer than another, so a fixed timeout does not work. A wait ends

- when all members have arrived,
- when a member has published a failure,
- when a missing member's lease has ended: the member was killed, stopped or cut off,
- when a member has not begun the first step in the group's timeout.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from khop.distributed.membership.member_store import Watch
from khop.distributed.membership.members import Membership
from khop.distributed.membership.polling import pauses
from khop.distributed.rpc.protocol import describe_error
from khop.errors import RendezvousError
from khop.log import printable_lines

_LOOK_SECONDS = 1.0
_LONGEST_PAUSE = 0.2
_LONGEST_BETWEEN_LOOKS = 1.0
_NO_SIGN = "it has ended, or has not begun"


class Barrier:
    """Context manager for steps that all members of a group take together.

    All members create one, in the same order, with a name that is unique in the group. An error
    that leaves the context is published. The other members raise RendezvousError at their next
    `check` or `all_gather`. They also raise it in place of an OSError, which may be a consequence
    of the failure: files and servers are gone.
    """

    def __init__(self, members: Membership, name: str) -> None:
        self._members = members
        self._name = name
        self._last_step: str | None = None
        self._began_at = self._looked_at = time.monotonic()
        self._stop = threading.Event()
        self._watch: Watch | None = None
        self._failure: RendezvousError | None = None
        # Announcement about another member that this one has given up: it may come back.
        self._given_up: dict[str, Any] | None = None
        self._is_given_up = False

    def __enter__(self) -> Barrier:
        self.start()
        return self

    def start(self) -> None:
        """Watch for failures of members, and give signs of life (a lease), until `close`."""
        members = self._members
        self._began_at = self._looked_at = time.monotonic()
        if members.others:
            members.hold()
            members.publish(f"{self._name}/state", "begun")
            self._watch = members.watch(
                f"{self._name}/failed", members.others, self._take_failures, _LOOK_SECONDS
            )

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the steps. If `error` is not None, publish that this member has failed."""
        members, watch = self._members, self._watch
        self._stop.set()
        if watch is None:
            return
        members.unwatch(watch)
        failure: Any = None if error is None else self._given_up
        if error is not None and error is not self._failure:
            if isinstance(error, OSError):
                with contextlib.suppress(OSError):
                    self._look_for_failures()
                self.check()
            failure = describe_error(error)
        if error is None:
            members.post(f"{self._name}/state", "ended")
        elif failure is not None:
            with contextlib.suppress(RuntimeError, OSError):  # the store is gone: all notice it
                members.announce(f"{self._name}/failed", failure)

    def _look_for_failures(self) -> None:
        members = self._members
        self._take_failures(members.announced(f"{self._name}/failed", members.others))

    def _take_failures(self, failures: Mapping[int, Any]) -> None:
        self._looked_at = time.monotonic()
        role, rank = self._members.role, self._members.rank
        for other, failure in failures.items():
            if self._failure is not None:
                return
            event = f"has failed with {failure.get('type')}: {failure.get('message')}"
            if "given_up" in failure:
                self._is_given_up = failure["given_up"] == rank
                whom = "this process" if self._is_given_up else f"{role} {failure['given_up']}"
                event = f"has given up {whom}, {failure['why']}"
            self._failure = RendezvousError(
                f"{role} {rank} cannot go on with {self._name}: {role} {other} "
                f"{printable_lines(event)}"
            )

    @property
    def _was_stopped(self) -> bool:
        """True if this process was stopped so long that other members may count it as ended."""
        since = time.monotonic() - self._looked_at
        return self._watch is not None and since > self._members.lease / 2

    def check(self) -> None:
        """Raise RendezvousError if another member has published a failure, or the store is gone."""
        if self._failure is None:
            self._members.check()
            if self._was_stopped:
                self._look_for_failures()
        if self._failure is not None:
            raise self._failure

    def look(self) -> None:
        """Raise RendezvousError if another member has published a failure by now."""
        if self._failure is None:
            self._look_for_failures()
        self.check()

    def find_silent(self, seconds: float) -> list[int]:
        """Return the ranks of members that give no sign of life within `seconds` from now.

        Returns as soon as all members have given one.

        Raises:
            RendezvousError: the store is unreachable.
        """
        members = self._members
        silent = list(members.others)
        members.look(silent)
        began = time.monotonic()
        for _ in pauses(seconds):
            members.look(silent)
            members.check()
            silent = [rank for rank in silent if members.renewed_at(rank) <= began]
            if not silent:
                break
        return silent

    def all_gather(self, step: str, value: object) -> list[Any]:
        """Publish a value and wait for the values of all members.

        Args:
            step: name of the step. All members must take the same steps, each of another name.
            value: anything that JSON can hold.

        Returns:
            The values of all members, in the order of their ranks.

        Raises:
            RendezvousError: a member has failed, or a missing member has given no sign of life for
                too long.
        """
        members, name = self._members, f"{self._name}/{step}"
        members.publish(name, value)
        everybody = members.ranks
        pause, last_look = 0.005, time.monotonic()
        while len(values := members.get_all(name, everybody, _LOOK_SECONDS)) < len(everybody):
            self.check()
            self._stop.wait(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            since_look = time.monotonic() - last_look
            if since_look > _LOOK_SECONDS:
                # As for leases: this member was stopped, or the store was away.
                self._began_at += max(0.0, since_look - _LOOK_SECONDS - _LONGEST_BETWEEN_LOOKS)
                last_look = time.monotonic()
                self._look_for_missing(name)
        if self._is_given_up or self._was_stopped:  # the others do not go on from this step
            self.check()
        if self._last_step is not None:  # all have come this far, so all have read it
            members.delete(self._last_step)
        self._last_step = name
        return [values[rank] for rank in everybody]

    def _look_for_missing(self, name: str) -> None:
        """Raise RendezvousError if a member that has not published `name` can no longer come."""
        members = self._members
        states = members.poll(f"{self._name}/state", members.others)
        arrived = members.poll(name, members.others)  # after the states: it may have come and ended
        missing = [rank for rank in members.others if rank not in arrived]
        failures = members.look(missing)
        waited = time.monotonic() - self._began_at
        is_late = self._last_step is None and waited > members.timeout
        for rank in missing:
            if rank in failures:
                self._give_up(rank, f"{failures[rank]}: {_NO_SIGN}")
            elif states.get(rank) == "ended":
                self._give_up(rank, "has ended it without this step: all must take the same steps")
            elif rank not in states and is_late:
                if members.renewed_at(rank) > float("-inf"):
                    self._give_up(rank, f"is alive, but has not begun it in {waited:.0f} s")
                self._give_up(rank, f"has not been heard of for {waited:.0f} s: {_NO_SIGN}")

    def _give_up(self, rank: int, why: str) -> None:
        role = self._members.role
        self._given_up = {"given_up": rank, "why": f"which {why}"}
        self._failure = RendezvousError(
            f"{role} {self._members.rank} waits in {self._name} for {role} {rank}, which {why}"
        )
        raise self._failure
