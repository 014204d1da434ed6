"""Where servers are, as far as this trainer knows: the table that all its clients look into.

News come from this trainer's keeper and from its herald, in their threads. Those who ask servers
take them in their own: a client in this process looks when it has lost a server (`follow`), sampler
processes hear of it through their trainer, which polls a `Subscription`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from khop.distributed.context import WorkerContext
from khop.distributed.launch import LaunchedServer, endpoint_of
from khop.distributed.recovery.herald import Herald
from khop.distributed.recovery.keeper import ServerKeeper
from khop.distributed.transport import Endpoint, PartitionClient

News = Endpoint | str
"""Where a server is now, or why it has ended."""


class Subscription:
    """Tells one reader, in its own thread, what is new; made by `Whereabouts.subscribe`."""

    def __init__(self, news: Mapping[int, News]) -> None:
        self._news = news
        self._seen: dict[int, News] = {}
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._event)

    def fileno(self) -> int:
        """Readable when there are changes."""
        return self._event

    def notify(self) -> None:
        """Makes it readable; from any thread."""
        os.eventfd_write(self._event, 1)

    def changes(self) -> dict[int, News]:
        """What has become of servers since the last call, by key."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return {}
        new = {key: news for key, news in list(self._news.items()) if self._seen.get(key) != news}
        self._seen.update(new)
        return new


class Whereabouts:
    """The servers of a group of trainers, its own kept running.

    Args:
        context: the trainer's group.
        name: of the service; no two have the same.

    Attributes:
        news: what has become of servers that are not where they were at first, by key.
        keeper: keeps this trainer's servers.
    """

    def __init__(self, context: WorkerContext, name: str) -> None:
        self._context = context
        self._herald = Herald(context.rendezvous, name, self._take_in)
        self.keeper = ServerKeeper(self._own_moved, self._own_ended)
        self._served: dict[int, str] = {}
        self._keepers: dict[int, int] = {}
        self._is_near: dict[int, bool] = {}
        self.news: dict[int, News] = {}
        self._own_failure: str | None = None
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._lock = threading.Lock()

    def keep(self, key: int, server: LaunchedServer) -> None:
        """Keeps a server of this trainer running."""
        self._served[key] = server.what
        self.keeper.keep(key, server)
        if self._context.world_size > 1:
            self._herald.start_beating()

    def find(self, key: int, rank: int, is_near: bool) -> None:
        """Says whose server this trainer asks.

        Args:
            key: the server's.
            rank: the trainer that keeps it.
            is_near: it is on this machine.
        """
        self._keepers[key] = rank
        self._is_near[key] = is_near

    def look_for(self, key: int) -> None:
        """Looks for a server that is lost; what is found is news. Returns at once."""
        rank = self._keepers[key]
        if rank != self._context.rank:  # of its own the keeper knows first
            self._herald.look_for(key, rank)

    def follow(self, client: PartitionClient) -> None:
        """Lets a client of this process find servers that it has lost."""
        applied: dict[int, News] = {}
        looked: dict[int, float] = {}

        def look(key: int, since: float) -> None:
            del since
            news = self.news.get(key)
            if news is not None and applied.get(key) != news:
                applied[key] = news
                apply(client, key, news)
            elif time.monotonic() - looked.get(key, 0.0) > 1.0:
                looked[key] = time.monotonic()
                self.look_for(key)

        client.on_lost = look

    def subscribe(self) -> Subscription:
        """A reader's own view of the news."""
        subscription = Subscription(self.news)
        with self._lock:
            self._subscriptions.add(subscription)
        if self.news:
            subscription.notify()
        return subscription

    @property
    def own_failure(self) -> str | None:
        """Why a server of this trainer was given up; None: none was."""
        return self._own_failure

    def _take_in(self, key: int, news: Mapping[str, Any]) -> None:
        if "ended" in news:
            self._publish(key, str(news["ended"]))
        else:
            self._publish(key, endpoint_of(news["moved"], self._is_near[key]))

    def _publish(self, key: int, news: News) -> None:
        self.news[key] = news
        self._notify()

    def _notify(self) -> None:
        with self._lock:
            for subscription in self._subscriptions:
                subscription.notify()

    def _own_moved(self, key: int, announcement: Mapping[str, Any]) -> None:
        self._herald.tell(key, {"moved": announcement})
        if self._keepers.get(key) == self._context.rank:
            self._publish(key, endpoint_of(announcement, self._is_near[key]))

    def _own_ended(self, key: int, why: str) -> None:
        self._herald.tell(key, {"ended": why})
        self._own_failure = f"the server of {self._served[key]} {why}"
        if self._keepers.get(key) == self._context.rank:
            self.news[key] = why
        self._notify()

    def close(self, why: str) -> None:
        """Ends this trainer's servers.

        Args:
            why: the reason, for those who still ask them; nobody does if all have finished.
        """
        servers = [] if self._context.others_have_finished else list(self.keeper.servers)
        self._herald.close(dict.fromkeys(servers, why))
        self.keeper.close()


def apply(client: PartitionClient, key: int, news: News) -> None:
    """Lets a client act on news."""
    if isinstance(news, Endpoint):
        client.relocate(key, news)
    else:
        client.give_up(key, news)
