"""Steps that all members of a group take together, with notice of those that cannot come.

A step may take one member hours longer than another, so a fixed timeout does not work. A wait ends
when all members have arrived, when one has published a failure, when the lease of a missing one has
ended (it was killed, stopped or cut off), or when one has not begun the first step in the group's
timeout. Imports no torch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from khop.distributed.membership.members import Membership
from khop.distributed.membership.polling import pauses
from khop.distributed.membership.watch import Failure, Watch
from khop.distributed.rpc.protocol import describe_error
from khop.errors import RendezvousError
from khop.log import printable_lines

_LOOK_SECONDS = 1.0
_LONGEST_PAUSE = 0.2
# What a member publishes of its part in the barrier, beside a failure.
_BEGUN, _ENDED = "begun", "ended"


class Barrier:
    """Context manager for steps that all members of a group take together.

    All members create one, in the same order, and enter it. An exception that leaves the context
    is published. The other members raise RendezvousError at their next `check` or `all_gather`.
    They raise it in place of an OSError too: that may be a consequence, as files and servers are
    gone.

    Args:
        members: the group.
        name: prefix of the names of values; unique in the group.
    """

    def __init__(self, members: Membership, name: str) -> None:
        self._members = members
        self._name = name
        self._state_name = f"{name}/state"
        self._last_step: str | None = None
        self._stop = threading.Event()
        self._began_at = self._looked_at = time.monotonic()
        self._watch: Watch | None = None
        self._failure: RendezvousError | None = None
        self._is_given_up = False
        # What is published if this member has found that another has ended: that one may return.
        self._lost: dict[str, Any] | None = None

    def __enter__(self) -> Barrier:
        self.start()
        return self

    def start(self) -> None:
        """Renew this member's lease, and look for failures of others, until `close`."""
        self._began_at = self._looked_at = time.monotonic()
        if not self._members.others:
            return
        self._members.hold()
        self._members.publish(self._state_name, {"state": _BEGUN})
        self._watch = self._members.watch(
            self._state_name, self._members.others, self._on_look, _LOOK_SECONDS
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End this member's part.

        Args:
            error: a failure to publish. If None, there was none.
        """
        members, watch = self._members, self._watch
        self._stop.set()
        if watch is None:
            return
        members.unwatch(watch)
        if error is None:
            members.post(self._state_name, {"state": _ENDED})
        elif error is not self._failure:
            if isinstance(error, OSError):
                self._take_states(members.poll(self._state_name, members.others))
                self.check()
            with contextlib.suppress(RuntimeError):  # the store is gone: the others notice it, too
                members.publish(self._state_name, {"state": "failed", **describe_error(error)})
        elif self._lost is not None:
            with contextlib.suppress(RuntimeError):
                members.publish(self._state_name, self._lost)

    def _on_look(self, states: Mapping[int, Any], failures: Mapping[int, Failure]) -> None:
        del failures  # of a missing member only: others may have ended in order
        self._take_states(states)

    def _take_states(self, states: Mapping[int, Any]) -> None:
        """Record a failure that another member has published."""
        self._looked_at = time.monotonic()
        role, rank = self._members.role, self._members.rank
        for other, state in states.items():
            if self._failure is not None:
                return
            if state["state"] == "failed":
                failure = printable_lines(f"{state['type']}: {state['message']}")
                self._failure = RendezvousError(
                    f"{role} {rank} cannot go on with {self._name}: {role} {other} has failed with "
                    f"{failure}"
                )
            elif state["state"] == "lost":
                self._is_given_up = state["rank"] == rank
                who = "this process" if self._is_given_up else f"{role} {state['rank']}"
                self._failure = RendezvousError(
                    f"{role} {rank} cannot go on with {self._name}: {role} {other} has given up "
                    f"{who}, {printable_lines(state['why'])}"
                )

    def check(self) -> None:
        """Raise RendezvousError if a failure of another member is known, or the store is gone."""
        members = self._members
        if self._failure is None:
            members.check()
            if self._was_stopped:
                self._take_states(members.poll(self._state_name, members.others))
        if self._failure is not None:
            raise self._failure

    @property
    def _was_stopped(self) -> bool:
        """Whether this member has looked so long ago that the others may have given it up."""
        since = time.monotonic() - self._looked_at
        return self._watch is not None and since > self._members.lease / 2

    def find_silent(self, seconds: float) -> list[int]:
        """Return the ranks of members whose leases are not renewed for some seconds from now.

        Args:
            seconds: how long to wait for renewals; all that are there come sooner.

        Raises:
            RendezvousError: the store is unreachable.
        """
        members = self._members
        silent = list(members.others)
        members.look(silent)
        began = time.monotonic()
        for _ in pauses(seconds):
            members.look(silent)
            silent = [rank for rank in silent if members.renewed_at(rank) <= began]
            if not silent:
                break
        return silent

    def all_gather(self, step: str, value: Any) -> list[Any]:
        """Publish a value and wait for those of all members.

        Args:
            step: name of the step; all members must take the same steps, each of another name.
            value: anything that JSON can hold.

        Returns:
            The values of all members, by rank.

        Raises:
            RendezvousError: a member has failed, or the lease of a missing one has ended.
        """
        members, name = self._members, f"{self._name}/{step}"
        members.publish(name, value)
        everybody = range(members.world_size)
        pause, last_look = 0.005, time.monotonic()
        while len(values := members.get_all(name, everybody, _LOOK_SECONDS)) < len(everybody):
            self.check()
            self._stop.wait(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            if time.monotonic() - last_look > _LOOK_SECONDS:
                last_look = time.monotonic()
                self._look_for_missing(name)
        if self._is_given_up or self._was_stopped:  # the others do not go on from this step
            self.check()
        if self._last_step is not None:  # all have come this far, so all have read it
            members.delete(self._last_step)
        self._last_step = name
        return [values[rank] for rank in everybody]

    def _look_for_missing(self, name: str) -> None:
        """Raise RendezvousError if a missing member cannot come any more."""
        members = self._members
        states = members.poll(self._state_name, members.others)
        arrived = members.poll(name, members.others)  # after the states: it may have come and ended
        for rank in members.others:
            if rank in arrived:
                continue
            state = states.get(rank, {}).get("state")
            waited = time.monotonic() - self._began_at
            failure, why = members.failure_of(rank), ""
            if failure is not None:
                why = f"which {failure}: it has ended, or has not begun"
            elif state == _ENDED:
                why = "which has ended it without this step: all must take the same steps"
            elif state is None and waited > members.timeout:
                why = f"which is alive, but has not begun it in {waited:.0f} s"
            if why:
                role = members.role
                self._lost = {"state": "lost", "rank": rank, "why": why}
                self._failure = RendezvousError(
                    f"{role} {members.rank} waits in {self._name} for {role} {rank}, {why}"
                )
                raise self._failure
