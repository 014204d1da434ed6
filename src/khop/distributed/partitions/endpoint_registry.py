"""Table of the current endpoints (addresses and keys) of the trainers' partition servers.

Runs in trainers. Updates come from this trainer's `ServerSupervisor` and `Membership`, in their
threads. A trainer publishes an update when one of its servers has moved or has ended for good.
Other trainers read updates only while requests wait for a lost server, every 0.25 s. Readers apply
updates in their own thread. A client in this process does so when it has lost a server (`follow`).
Sampler processes get updates from their trainer, which polls an `EndpointWatcher`. The key of a
server in the table is its partition. A primary, the server with a partition's state, has key
`service.primary_key`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from khop.distributed.job.context import WorkerContext
from khop.distributed.membership.member_store import Watch
from khop.distributed.partitions.server_process import (
    Announcement,
    PartitionServerProcess,
    announced_endpoint,
)
from khop.distributed.partitions.supervisor import ServerSupervisor
from khop.distributed.rpc.endpoint import Endpoint, EndpointUpdate
from khop.distributed.rpc.partition_client import PartitionClient
from khop.errors import PartitionUnavailableError

# Seconds between looks for updates of a lost server, and of a search after the last `look_for`.
_LOOK_SECONDS, _SEARCH_SECONDS = 0.25, 5.0


class EndpointWatcher:
    """Receiver of changed endpoints, for one thread. `EndpointRegistry.subscribe` makes it."""

    def __init__(self, endpoint_registry: EndpointRegistry) -> None:
        self._endpoint_registry = endpoint_registry
        self._updates = endpoint_registry.updates
        self._seen: dict[int, EndpointUpdate] = {}
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._event)

    def fileno(self) -> int:
        """Return a descriptor that `select` finds readable when there are changed endpoints."""
        return self._event

    def notify(self) -> None:
        """Make the descriptor readable. Any thread may call this."""
        os.eventfd_write(self._event, 1)

    def changes(self) -> dict[int, EndpointUpdate]:
        """Return servers' endpoints that have changed since the last call, by partition."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return {}
        new = {
            key: update
            for key, update in list(self._updates.items())
            if self._seen.get(key) != update and key >= 0  # negative: `service.primary_key`
        }
        self._seen.update(new)
        return new

    def latest(self, key: int) -> EndpointUpdate | None:
        """Return the last change of the endpoint of server `key`. None if it never changed."""
        return self._updates.get(key)

    def look_for(self, key: int) -> None:
        self._endpoint_registry.look_for(key)

    def check_servers(self) -> None:
        self._endpoint_registry.check_servers()


class EndpointRegistry:
    """Table of the endpoints of the trainers' partition servers.

    It also restarts this trainer's own servers. Names of published values begin with `name`.

    Attributes:
        updates: last endpoint of every server that has moved or ended, by key.
        supervisor: supervisor of this trainer's servers.
    """

    def __init__(self, context: WorkerContext, name: str) -> None:
        self._context = context
        self._name = f"{name}/endpoints"
        self._own_updates: dict[str, Mapping[str, object]] = {}
        self._searches: dict[int, Watch] = {}
        self.supervisor = ServerSupervisor(self._own_moved, self._own_ended)
        self._served: dict[int, str] = {}
        self._known_as: dict[int, list[int]] = {}
        self._owners: dict[int, int] = {}
        self._is_near: dict[int, bool] = {}
        self.updates: dict[int, EndpointUpdate] = {}
        self._own_failure: str | None = None
        self._subscriptions: weakref.WeakSet[EndpointWatcher] = weakref.WeakSet()
        self._lock = threading.Lock()

    def keep(self, key: int, server: PartitionServerProcess, *further_keys: int) -> None:
        """Keep a server of this trainer running. It is in the table under all these keys."""
        self._served[key] = server.content
        self._known_as[key] = [key, *further_keys]
        self.supervisor.keep(key, server)
        self._context.members.hold()

    def assign(self, key: int, rank: int, is_near: bool) -> None:
        """Record the rank of the trainer that runs server `key`. `is_near`: on this machine."""
        self._owners[key] = rank
        self._is_near[key] = is_near
        if rank != self._context.rank:
            self._context.use_others()

    def look_for(self, key: int) -> None:
        """Start a search for the new endpoint of the lost server `key`. Returns at once."""
        rank, now = self._owners[key], time.monotonic()
        if rank == self._context.rank:  # the supervisor reports this trainer's own servers
            return
        search = self._searches.get(key)
        if search is not None and (search.until or 0.0) > now:
            search.until = now + _SEARCH_SECONDS
            return
        self._searches[key] = self._context.members.watch(
            self._name, [rank], partial(self._on_look, key), _LOOK_SECONDS, _SEARCH_SECONDS
        )

    def follow(
        self, client: PartitionClient, key_of: Callable[[int], int] = lambda part: part
    ) -> None:
        """Register a client of this process, which then learns new endpoints of lost servers.

        `key_of` converts the number of a server in the client to its key in the table.
        """
        applied: dict[int, EndpointUpdate] = {}
        looked: dict[int, float] = {}

        def look(part: int, since: float) -> None:
            del since
            key = key_of(part)
            update = self.updates.get(key)
            if update is not None and applied.get(key) != update:
                applied[key] = update
                if isinstance(update, Endpoint):
                    client.relocate(part, update)
                else:
                    client.give_up(part, update)
            elif time.monotonic() - looked.get(key, 0.0) > 1.0:
                looked[key] = time.monotonic()
                self.look_for(key)

        client.on_lost = look

    def subscribe(self) -> EndpointWatcher:
        subscription = EndpointWatcher(self)
        with self._lock:
            self._subscriptions.add(subscription)
        if self.updates:
            subscription.notify()
        return subscription

    def check_servers(self) -> None:
        """Raise PartitionUnavailableError if one of this trainer's servers cannot be restarted."""
        if self._own_failure is not None:
            raise PartitionUnavailableError(
                f"{self._own_failure}: other trainers cannot go on without it"
            )

    def _on_look(self, key: int, announced: Mapping[int, Any]) -> None:
        """Record a lost server's new endpoint from `announced` values, or its trainer's failure."""
        rank, members, before = self._owners[key], self._context.members, self.updates.get(key)
        failure = members.look([rank]).get(rank)
        update, after = announced.get(rank, {}).get(str(key)), before
        if update is not None:
            is_near = self._is_near[key]
            moved = update.get("moved")
            after = announced_endpoint(moved, is_near) if moved else str(update["ended"])
        elif failure is not None and not isinstance(before, str):
            gone = "" if members.has_store else ", and the job's store has gone"
            why = f"trainer {rank}, which keeps it, {failure}{gone}: it has ended"
            after = f"cannot be reached; {why}"
        if after is not None and after != before:
            self._update({key: after})

    def _update(self, updates: Mapping[int, EndpointUpdate]) -> None:
        self.updates.update(updates)
        with self._lock:
            for subscription in self._subscriptions:
                subscription.notify()

    def _own_moved(self, key: int, announcement: Announcement) -> None:
        self._post({known: {"moved": announcement} for known in self._known_as[key]})
        used = self._used_here(key)
        self._update({k: announced_endpoint(announcement, self._is_near[k]) for k in used})

    def _own_ended(self, key: int, why: str) -> None:
        self._post({known: {"ended": why} for known in self._known_as[key]})
        self._own_failure = f"the server of {self._served[key]} {why}"
        self._update(dict.fromkeys(self._used_here(key), why))

    def _used_here(self, key: int) -> list[int]:
        """Return the keys in the table under which this trainer uses its own server `key`."""
        return [k for k in self._known_as[key] if self._owners.get(k) == self._context.rank]

    def _post(self, updates: Mapping[int, Mapping[str, object]]) -> None:
        if updates and self._context.members.others:
            self._own_updates |= {str(key): update for key, update in updates.items()}
            self._context.members.announce(self._name, dict(self._own_updates), wait=False)

    def close(self, why: str) -> None:
        """End this trainer's servers.

        The reason, `why`, is published to trainers that still use them, unless all have finished.
        """
        servers = [] if self._context.others_have_finished else list(self.supervisor.servers)
        self._post({known: {"ended": why} for key in servers for known in self._known_as[key]})
        for search in list(self._searches.values()):
            self._context.members.unwatch(search)
        self.supervisor.close()
