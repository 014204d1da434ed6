"""Table of the current endpoints of a group's partition servers. Runs in trainers.

Updates come from this trainer's `ServerSupervisor` and `FailureDetector`, in their threads. Readers
apply them in their own: a client in this process when it has lost a server (`follow`), sampler
processes through their trainer, which polls an `EndpointWatcher`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from khop.distributed.job.context import WorkerContext
from khop.distributed.partitions.failure_detector import FailureDetector
from khop.distributed.partitions.server_process import PartitionServerProcess, announced_endpoint
from khop.distributed.partitions.supervisor import ServerSupervisor
from khop.distributed.rpc.endpoint import Endpoint, EndpointUpdate
from khop.distributed.rpc.partition_client import PartitionClient
from khop.errors import PartitionUnavailableError


class EndpointWatcher:
    """Endpoint updates for one reader's thread; made by `EndpointRegistry.subscribe`."""

    def __init__(self, endpoint_registry: EndpointRegistry) -> None:
        self._endpoint_registry = endpoint_registry
        self._updates = endpoint_registry.updates
        self._seen: dict[int, EndpointUpdate] = {}
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._event)

    def fileno(self) -> int:
        """Return an eventfd, readable when there are changes."""
        return self._event

    def notify(self) -> None:
        """Make the eventfd readable; from any thread."""
        os.eventfd_write(self._event, 1)

    def changes(self) -> dict[int, EndpointUpdate]:
        """Return the updates of servers since the last call, by key; not those of primaries."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return {}
        new = {
            key: update
            for key, update in list(self._updates.items())
            if self._seen.get(key) != update and key >= 0  # below: `service.primary_key`
        }
        self._seen.update(new)
        return new

    def latest(self, key: int) -> EndpointUpdate | None:
        """Return the last update of a server; None if it has its first endpoint."""
        return self._updates.get(key)

    def look_for(self, key: int) -> None:
        """Start a search for a lost server, as `EndpointRegistry.look_for`."""
        self._endpoint_registry.look_for(key)

    def check_servers(self) -> None:
        """Raise PartitionUnavailableError if one of this trainer's servers has been given up."""
        self._endpoint_registry.check_servers()


class EndpointRegistry:
    """Table of the servers of a group of trainers; restarts this trainer's own servers.

    Args:
        context: the trainer's group.
        name: name of the service, unique in the group.

    Attributes:
        updates: last update of every server that has moved or ended, by key.
        supervisor: supervisor of this trainer's servers.
    """

    def __init__(self, context: WorkerContext, name: str) -> None:
        self._context = context
        self._failure_detector = FailureDetector(context.rendezvous, name, self._on_update)
        self.supervisor = ServerSupervisor(self._own_moved, self._own_ended)
        self._served: dict[int, str] = {}
        self._known_as: dict[int, list[int]] = {}
        self._owners: dict[int, int] = {}
        self._is_near: dict[int, bool] = {}
        self.updates: dict[int, EndpointUpdate] = {}
        self._own_failure: str | None = None
        self._subscriptions: weakref.WeakSet[EndpointWatcher] = weakref.WeakSet()
        self._lock = threading.Lock()

    def keep(
        self, key: int, server: PartitionServerProcess, known_as: Sequence[int] | None = None
    ) -> None:
        """Keep a server of this trainer running.

        Args:
            key: key of the server.
            server: the server.
            known_as: keys under which trainers use it. If None, its own.
        """
        self._served[key] = server.what
        self._known_as[key] = [key] if known_as is None else list(known_as)
        self.supervisor.keep(key, server)
        if self._context.world_size > 1:
            self._failure_detector.start_heartbeat()

    def assign(self, key: int, rank: int, is_near: bool) -> None:
        """Record which trainer runs a server that this trainer uses.

        Args:
            key: key of the server.
            rank: rank of the trainer that runs it.
            is_near: it is on this machine.
        """
        self._owners[key] = rank
        self._is_near[key] = is_near
        if rank != self._context.rank:
            self._context.use_others()

    def look_for(self, key: int) -> None:
        """Start a search for a lost server; its result becomes an update. Returns at once."""
        rank = self._owners[key]
        if rank != self._context.rank:  # the supervisor reports this trainer's own servers
            self._failure_detector.look_for(key, rank)

    def follow(
        self, client: PartitionClient, key_of: Callable[[int], int] = lambda part: part
    ) -> None:
        """Register a client of this process: it gets updates of servers that it has lost.

        Args:
            client: the client.
            key_of: returns the key of the server that the client has under a number.
        """
        applied: dict[int, EndpointUpdate] = {}
        looked: dict[int, float] = {}

        def look(part: int, since: float) -> None:
            del since
            key = key_of(part)
            update = self.updates.get(key)
            if update is not None and applied.get(key) != update:
                applied[key] = update
                apply(client, part, update)
            elif time.monotonic() - looked.get(key, 0.0) > 1.0:
                looked[key] = time.monotonic()
                self.look_for(key)

        client.on_lost = look

    def subscribe(self) -> EndpointWatcher:
        """Return a new watcher of the updates."""
        subscription = EndpointWatcher(self)
        with self._lock:
            self._subscriptions.add(subscription)
        if self.updates:
            subscription.notify()
        return subscription

    def check_servers(self) -> None:
        """Raise PartitionUnavailableError if one of this trainer's servers has been given up."""
        if self._own_failure is not None:
            raise PartitionUnavailableError(
                f"{self._own_failure}: other trainers cannot go on without it"
            )

    def _on_update(self, key: int, update: Mapping[str, Any]) -> None:
        if "ended" in update:
            self._publish(key, str(update["ended"]))
        else:
            self._publish(key, announced_endpoint(update["moved"], self._is_near[key]))

    def _publish(self, key: int, update: EndpointUpdate) -> None:
        self.updates[key] = update
        self._notify()

    def _notify(self) -> None:
        with self._lock:
            for subscription in self._subscriptions:
                subscription.notify()

    def _own_moved(self, key: int, announcement: Mapping[str, Any]) -> None:
        for known in self._known_as[key]:
            self._failure_detector.publish(known, {"moved": announcement})
            if self._owners.get(known) == self._context.rank:
                self._publish(known, announced_endpoint(announcement, self._is_near[known]))

    def _own_ended(self, key: int, why: str) -> None:
        self._own_failure = f"the server of {self._served[key]} {why}"
        for known in self._known_as[key]:
            self._failure_detector.publish(known, {"ended": why})
            if self._owners.get(known) == self._context.rank:
                self.updates[known] = why
        self._notify()

    def close(self, why: str) -> None:
        """End this trainer's servers.

        Args:
            why: the reason, published to trainers that still use them, unless all have finished.
        """
        servers = [] if self._context.others_have_finished else list(self.supervisor.servers)
        keys = [known for key in servers for known in self._known_as[key]]
        self._failure_detector.close(dict.fromkeys(keys, why))
        self.supervisor.close()


def apply(client: PartitionClient, key: int, update: EndpointUpdate) -> None:
    """Apply an update of a server to a client."""
    if isinstance(update, Endpoint):
        client.relocate(key, update)
    else:
        client.give_up(key, update)
