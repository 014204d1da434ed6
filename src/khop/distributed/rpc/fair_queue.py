"""Queue of pending work that users share by processor time. Imports no torch.

Servers have such queues for their threads and for their loop. The processor time that each
user has used is measured (`charge`), not estimated. The next turn goes to the waiting user with the
least time, and among this user's connections to the one with the least time. So a user with
expensive requests waits while others are served, however many requests or connections it has.

Time is virtual: a user who returns after a pause counts as having used as much as the user served
last. So a pause earns no credit, and time used while no other user waited is no debt. This is
start-time fair queueing (Goyal, Vin & Cheng, IEEE/ACM Transactions on Networking 5(5), 1997).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)

# Users without pending work whose time is remembered.
_MAX_IDLE = 4096


class _Shares(Generic[_K]):
    """Order of the users (or of a user's connections) that wait, by processor time used so far."""

    def __init__(self) -> None:
        self._used: dict[_K, float] = {}
        self._waiting: list[tuple[float, int, _K]] = []
        self._arrivals = itertools.count()
        self._now = 0.0

    def enter(self, key: _K) -> None:
        """Add a user or connection (`key`) that has pending work and does not wait yet."""
        used = self._used.pop(key, 0.0)
        self._used[key] = used = max(used, self._now)
        heapq.heappush(self._waiting, (used, next(self._arrivals), key))
        if len(self._used) > _MAX_IDLE + 2 * len(self._waiting):
            self._forget()

    def _forget(self) -> None:
        """Drop used times without effect by now, and of users charged long ago."""
        waiting = {key for _, _, key in self._waiting}
        idle = [k for k, used in self._used.items() if k not in waiting and used > self._now]
        kept = waiting.union(idle[-_MAX_IDLE // 2 :])  # in the order of their last charge
        self._used = {key: used for key, used in self._used.items() if key in kept}

    def next(self) -> _K | None:
        """Remove and return the user or connection with the least used time, the first if equal."""
        while self._waiting:
            since, arrival, key = self._waiting[0]
            used = self._used[key]
            if used > since:  # it was charged while it waited
                heapq.heapreplace(self._waiting, (used, arrival, key))
                continue
            heapq.heappop(self._waiting)
            self._now = max(self._now, used)
            return key
        return None

    def charge(self, key: _K, seconds: float) -> None:
        self._used[key] = self._used.pop(key, self._now) + seconds


@dataclass
class _User(Generic[_T]):
    """Pending work of one user: a queue for each of the user's connections."""

    connections: _Shares[Hashable] = field(default_factory=_Shares)
    queues: dict[Hashable, deque[tuple[_T, int]]] = field(default_factory=dict)
    count: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Turn(Generic[_T]):
    """Entry taken from a queue: pending work, with its user, its connection and its bytes."""

    user: str
    connection: Hashable
    entry: _T
    nbytes: int


class FairQueue(Generic[_T]):
    """Queues of pending work by user. The user with the least processor time used is next.

    For one thread at a time. A user may have `most` entries of `most_bytes` in all, or one entry.

    Example:
        >>> queue = FairQueue[int](100, 100)
        >>> [queue.put(user, n) for n, user in enumerate("aaab")]
        [True, True, True, True]
        >>> first = queue.take()
        >>> queue.charge(first, 0.5)
        >>> first.entry, [queue.take().entry for _ in range(3)]
        (0, [3, 1, 2])
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._shares: _Shares[str] = _Shares()
        self._users: dict[str, _User[_T]] = {}

    def __bool__(self) -> bool:
        return bool(self._users)

    def put(
        self,
        user: str,
        entry: _T,
        nbytes: int = 0,
        connection: Hashable = None,
        is_bounded: bool = True,
    ) -> bool:
        """Append an entry (pending work) to the queue of its user's connection.

        Returns False if `is_bounded` and the user has too many entries or bytes.
        """
        own = self._users.get(user) if is_bounded else None
        if own is not None and (own.count >= self._most or own.nbytes + nbytes > self._most_bytes):
            return False
        self._insert(user, connection, (entry, nbytes), is_first=False)
        return True

    def put_back(self, turn: Turn[_T]) -> None:
        """Put unfinished work back, before the later entries of its connection."""
        self._insert(turn.user, turn.connection, (turn.entry, turn.nbytes), is_first=True)

    def _insert(
        self, user: str, connection: Hashable, entry: tuple[_T, int], is_first: bool
    ) -> None:
        own = self._users.get(user)
        if own is None:
            own = self._users[user] = _User()
            self._shares.enter(user)
        queue = own.queues.get(connection)
        if queue is None:
            queue = own.queues[connection] = deque()
            own.connections.enter(connection)
        (queue.appendleft if is_first else queue.append)(entry)
        own.count += 1
        own.nbytes += entry[1]

    def first_of(self, user: str) -> list[_T]:
        """Return the oldest pending entry of each connection of a user."""
        own = self._users.get(user)
        return [] if own is None else [queue[0][0] for queue in own.queues.values()]

    def take(self) -> Turn[_T] | None:
        """Remove and return the entry to work on next. None if there is none."""
        user = self._shares.next()
        if user is None:
            return None
        own = self._users[user]
        connection = own.connections.next()
        queue = own.queues[connection]
        entry, nbytes = queue.popleft()
        own.count -= 1
        own.nbytes -= nbytes
        if queue:
            own.connections.enter(connection)
        else:
            del own.queues[connection]
        if own.queues:
            self._shares.enter(user)
        else:
            del self._users[user]
        return Turn(user, connection, entry, nbytes)

    def charge(self, turn: Turn[_T], seconds: float) -> None:
        """Add used processor time (seconds) to the sums of an entry's user and connection."""
        self._shares.charge(turn.user, seconds)
        own = self._users.get(turn.user)
        if own is not None:
            own.connections.charge(turn.connection, seconds)

    def clear(self) -> None:
        while self.take() is not None:
            pass
