"""A process as member of a group: shared values, leases, notices of failures. Imports no torch.

Trainers and clients of graph servers have one `Membership` each, over a `MemberStore`: torch's
store or the graph servers' directory. One thread of a member renews its lease, and reads values
and leases of others that this process watches. Calls of some stores may wait for the network
without an end. The thread then makes all calls of the store, and other threads wait for the results
for at most the length of a lease. So they get an error if the store's machine has gone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from khop import log
from khop.distributed.membership.leases import Lease, LeaseTable, lease_seconds
from khop.distributed.membership.member_store import (
    Failure,
    MemberStore,
    OnLook,
    Sighting,
    Watch,
)
from khop.distributed.membership.polling import pauses
from khop.errors import RendezvousError
from khop.interrupts import raise_dropped

_BEAT_SECONDS = 1.0
# Most seconds of silence once the store is unreachable for this member, or for the other one.
_SILENCE_WITHOUT_STORE = 3.0
# Seconds for values that are still to be published. Then a call of the store is cut off.
_CLOSING_SECONDS = 3.0
_Result = TypeVar("_Result")
_log = log.get(__name__)


class Membership:
    """Membership of this process in a group: values that members share, and signs of life.

    Args:
        store: store of values and leases.
        rank: rank of this member.
        world_size: number of members.
        timeout: seconds to wait for a member that has not arrived yet.
        lease: seconds without a sign of life after which a member counts as ended. If None,
            $KHOP_LEASE or 30.
        ranks: ranks of the members, if they are not 0 to `world_size` - 1.

    Attributes:
        role: role of the members in errors.
        others: ranks of the other members.
    """

    def __init__(
        self,
        store: MemberStore,
        rank: int,
        world_size: int,
        timeout: float,
        lease: float | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.ranks = range(world_size) if ranks is None else ranks
        self.timeout = timeout
        self.lease = lease_seconds() if lease is None else lease
        self.role = store.role
        self.others = [r for r in self.ranks if r != rank]
        self._store = store
        self._table = LeaseTable()
        self._leases: dict[int, Lease] = {}
        self._sightings: dict[int, Sighting] = {}
        self._watches: list[Watch] = []
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._holds = False
        self._renewals = 0
        self._next_renewal = 0.0
        self._unreachable: str | None = None
        self._changed = threading.Condition()
        self._is_closing = False
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None

    # Values -------------------------------------------------------------------------------------

    def publish(self, name: str, value: object) -> None:
        """Publish this member's value, anything that JSON can hold.

        Raises:
            RendezvousError: the store is unreachable.
        """
        self._call(self._store.put, name, value)

    def post(self, name: str, value: object) -> None:
        """Publish a value without waiting. It is in the store soon, if the store is reachable."""
        self._submit_if_reachable(self._store.put, name, value)

    def announce(self, name: str, value: object, wait: bool = True) -> None:
        """Publish a value that few members have, for other members that call `watch`.

        Without `wait`, the value is in the store soon, unless the store has gone.

        Raises:
            RendezvousError: the store is unreachable (only with `wait`).
        """
        if wait:
            self._call(self._store.announce, name, value)
        else:
            self._submit_if_reachable(self._store.announce, name, value)

    def announced(self, name: str, ranks: Sequence[int]) -> dict[int, Any]:
        """Return the values `name` that these members have announced, by rank.

        Raises:
            RendezvousError: the store is unreachable.
        """
        return self._call(self._store.announced, name, ranks)

    def delete(self, name: str) -> None:
        """Delete this member's value `name` soon, without waiting."""
        self._submit_if_reachable(self._store.delete, name)

    def poll(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values that members have already published, by rank, without waiting.

        Raises:
            RendezvousError: the store is unreachable.
        """
        return self._call(self._store.get, name, list(ranks))

    def get_all(self, name: str, ranks: Sequence[int], seconds: float = 0.0) -> dict[int, Any]:
        """Return the values `name` of all `ranks`. If one is missing after `seconds`, fewer."""
        return self._call(self._store.get_all, name, ranks, seconds)

    def wait_for(self, name: str, ranks: Iterable[int], action: str) -> dict[int, Any]:
        """Wait for the values of other members, and return them by rank.

        Raises:
            RendezvousError: a member did not publish its value in time. The message names these
                members, and the `action` that publishes the value.
        """
        ranks, values = list(ranks), dict[int, Any]()
        end = time.monotonic() + self.timeout
        for _ in pauses(self.timeout):
            missing = [rank for rank in ranks if rank not in values]
            values |= self.get_all(name, missing, max(0.0, end - time.monotonic()))
            if len(values) == len(ranks):
                return values
        arrived = self.poll(name, ranks)
        missing = [rank for rank in ranks if rank not in arrived]
        if not missing:
            return arrived
        raise RendezvousError(
            f"{self.role} {self.rank} waited {self.timeout:.0f} s for {self.role}(s) {missing} to "
            f"{action}; they have ended, are late, or do not do so"
        )

    def all_gather(self, name: str, action: str) -> list[Any]:
        """Wait for all members' values `name`, and return them in the order of `ranks`.

        RendezvousError names late members, and the `action` that publishes a value.
        """
        values = self.wait_for(name, self.ranks, action)
        return [values[rank] for rank in self.ranks]

    # Leases and failures ------------------------------------------------------------------------

    def hold(self) -> None:
        """Give a sign of life every second from now on, since other members need this process."""
        if self.others and not self._holds:
            self._holds = True
            self._wake()

    def leave(self) -> None:
        """Publish that this member leaves without a failure."""
        self._holds = False
        self._call(partial(self._store.renew, has_left=True), self._renewals)

    def have_left(self, ranks: Sequence[int]) -> bool:
        """Return True if all members with these ranks have left without a failure."""
        sightings = self._call(self._store.sightings, ranks)
        return all(rank in sightings and sightings[rank].has_left for rank in ranks)

    def watch(
        self,
        name: str,
        ranks: Sequence[int],
        on_look: OnLook,
        every: float,
        seconds: float | None = None,
    ) -> Watch:
        """Read a value of other members at intervals, in this object's thread.

        Args:
            name: name of the value.
            ranks: ranks of the members.
            on_look: called after each reading, in the thread, with the values that were read.
            every: seconds between two readings.
            seconds: time after which the watch ends. If None, at `unwatch`.
        """
        until = None if seconds is None else time.monotonic() + seconds
        watch = Watch(name, ranks, every, on_look, until)
        if os.getpid() != self._owner:
            return watch  # a fork has no threads
        with self._changed:
            self._watches.append(watch)
        self._wake()
        return watch

    def unwatch(self, watch: Watch) -> None:
        """End the reading that `watch` has begun. If it has ended, nothing happens."""
        with self._changed, contextlib.suppress(ValueError):
            self._watches.remove(watch)

    def look(self, ranks: Sequence[int]) -> dict[int, Failure]:
        """Read the members' signs of life, and return failures by rank.

        Call it every second while failures matter. Time without calls counts for no member.
        """
        sightings: Mapping[int, Sighting] = {}
        try:
            sightings = self._call(self._store.sightings, ranks)
        except Exception:
            if self.has_store:  # a directory that may come back
                return {}
        self._table.look()
        for rank in ranks:
            before, seen = self._sightings.get(rank), sightings.get(rank)
            if rank not in self._leases:
                self._leases[rank] = self._table.grant()
            if seen is None:
                continue
            if seen.silent is not None:
                self._leases[rank].renew(seen.silent)
            elif before is None or seen.renewals != before.renewals:
                self._leases[rank].renew()
            self._sightings[rank] = seen
        failures = [self._failure_of(rank) for rank in ranks]
        return {failure.rank: failure for failure in failures if failure is not None}

    def renewed_at(self, rank: int) -> float:
        """Return the time (`time.monotonic`) of the last sign of life of `rank` that `look` saw.

        The first `look` counts as one. Minus infinity if there was none.
        """
        return self._leases[rank].heard_at if rank in self._sightings else float("-inf")

    def _failure_of(self, rank: int) -> Failure | None:
        seconds, seen = self._leases[rank].silence(), self._sightings.get(rank)
        limit = self.timeout if seen is None else self.lease  # if None, it is still to come
        if not self.has_store or (seen is not None and seen.is_cut_off):
            limit = min(limit, _SILENCE_WITHOUT_STORE)
        has_left = seen is not None and seen.has_left
        if seconds <= limit and not has_left:
            return None
        where = f" ({seen.where})" if seen is not None and seen.where else ""
        # A directory notes silent clients as gone, too.
        return Failure(rank, seconds, where, has_left and seconds <= limit)

    @property
    def has_store(self) -> bool:
        """True until a function of the group's store has failed."""
        return self._unreachable is None

    def check(self) -> None:
        """Raise RendezvousError if the group's store (of values and leases) is unreachable."""
        if self._unreachable is not None:
            raise RendezvousError(self._unreachable)

    def close(self) -> None:
        """Publish the remaining values, for some seconds at most, and end the thread."""
        if os.getpid() != self._owner:
            return
        with self._changed:
            self._is_closing = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(_CLOSING_SECONDS)
        self._store.disconnect()  # the store may be unreachable without an error
        if thread is not None:
            thread.join(_CLOSING_SECONDS)

    # Calls of the store -------------------------------------------------------------------------

    def _call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function of the store in the store's thread, and return its result.

        Raises:
            RendezvousError: the store is unreachable.
        """
        if self._store.is_bounded or threading.current_thread() is self._thread:
            return function(*arguments)
        future = self._submit(partial(function, *arguments))
        # Counted, not measured: a process that was stopped meanwhile has not waited.
        seconds, num_waits = min(1.0, self.lease), 0
        while not wait([future], seconds).done:
            raise_dropped()
            num_waits += 1
            if num_waits * seconds >= self.lease:
                self._unreachable = (
                    f"{self.role} {self.rank} cannot reach the job's store: it has not answered "
                    f"for {self.lease:.0f} s"
                )
                self._store.disconnect()
                self.check()
        return future.result()  # type: ignore[no-any-return]

    def _submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            self.check()
            if self._is_closing:
                raise RendezvousError(f"{self.role} {self.rank} has left the job")
            self._calls.append((call, future))
        self._wake()
        return future

    def _submit_if_reachable(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RendezvousError):
            self._submit(partial(function, *arguments))

    # The thread ---------------------------------------------------------------------------------

    def _wake(self) -> None:
        if os.getpid() != self._owner:
            return  # a fork has no threads
        with self._changed:
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(
                    target=self._run, name="khop-membership", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        """Thread of the store: calls, signs of life and watched values, until `close`."""
        while True:
            with self._changed:
                if not self._calls and not self._is_closing:
                    self._changed.wait(self._pause())
                calls, self._calls = self._calls, deque()
                is_closing = self._is_closing
            for call, future in calls:
                try:
                    self.check()
                    future.set_result(call())
                except Exception as error:
                    self._note_error(error)
                    future.set_exception(error)
            if is_closing:
                return
            if self._holds and time.monotonic() >= self._next_renewal:
                self._next_renewal = time.monotonic() + _BEAT_SECONDS
                self._renewals += 1
                self._attempt(partial(self._store.renew, self._renewals))
            self._look()

    def _pause(self) -> float | None:
        """Return the seconds until the thread must read or renew next. None if never."""
        now = time.monotonic()
        self._watches = [w for w in self._watches if w.until is None or w.until > now]
        due = [watch.next_look for watch in self._watches]
        if self._holds and self.has_store:
            due.append(self._next_renewal)
        return max(0.0, min(due) - now) if due else None

    def _attempt(self, call: Callable[[], _Result]) -> _Result | None:
        """Call a function of the group's store. If the store is unreachable, return None."""
        if not self.has_store:
            return None
        try:
            return call()
        except Exception as error:
            self._note_error(error)
            return None

    def _note_error(self, error: Exception) -> None:
        """Record that the store is unreachable. A lost connection does not come back."""
        is_lost = isinstance(error, RendezvousError) and not self._store.is_bounded
        if is_lost and self.has_store:
            self._unreachable = str(error)

    def _look(self) -> None:
        """Read all watched values that are due, and call the functions of their watches."""
        now = time.monotonic()
        with self._changed:
            due = [watch for watch in self._watches if watch.next_look <= now]
        for watch in due:
            watch.next_look = now + watch.every
            values = self._attempt(partial(self._store.announced, watch.name, watch.ranks))
            try:
                watch.on_look(values or {})
            except Exception as error:
                _log.error("watch-failed", f"{watch.name}: {error!r}", exc_info=error)
