"""Client of the graph servers' directory, which also sends requests to the servers.

Clients, graph servers and `khop top` use it. It registers this process with the directory every
second, and connects to servers at the addresses in the directory's replies. Its base in
`server_client` has the connections and their thread. Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.messages import (
    Goodbye,
    Lookup,
    Publish,
    Published,
    RegisterClient,
    RegisterServer,
    Table,
    WaitFor,
    json_array,
    new_secret,
    read_table,
    text_bytes,
)
from khop.distributed.remote.server_client import PendingRequest, Reply, ServerClient
from khop.errors import PartitionUnavailableError, ProtocolError, RendezvousError
from khop.typing import Array

_BEAT = 1.0
_CONTENDING_BEAT = 0.25


class DirectoryClient(ServerClient):
    """Connections of a process to all graph servers and to their directory.

    Args:
        servers: address of the servers, and keys.
        registration: called every second with this process's secret. Returns the registration to
            send. If None, this process does not register, and only requests the table (`khop top`).
        timeout: seconds in which a request needs a reply, unless the request has its own timeout.
        on_table: called in this object's thread with each table of the directory.
        on_refused: called with the error if the directory refuses the registration.

    Attributes:
        secret: secret with which this process authenticates to the directory.
    """

    def __init__(
        self,
        servers: Servers,
        registration: Callable[[str], RegisterServer | RegisterClient] | None = None,
        timeout: float = 60.0,
        on_table: Callable[[Table], None] | None = None,
        on_refused: Callable[[Exception], None] | None = None,
    ) -> None:
        super().__init__(servers, timeout)
        self._registration = registration
        self._on_table = on_table
        self._on_refused = on_refused
        self.secret = new_secret()
        self._known = threading.Condition()
        self._refused: Exception | None = None
        self._published: dict[str, Array] = {}
        self._beat_at = 0.0
        self._beating: Future[Reply] | None = None
        self._thread.start()

    @property
    def table(self) -> Table | None:
        """Last table of servers and clients from the directory. None before the first reply."""
        return self._table

    def wait_for_table(
        self, accept: Callable[[Table], bool], condition: str, timeout: float | None = None
    ) -> Table:
        """Wait until the directory sends a table that `accept` returns True for. Return it.

        `timeout` is in seconds. If None, it is the object's.

        Raises:
            RendezvousError: the directory refuses this process, or `condition` is not met in time.
        """
        seconds = self.timeout if timeout is None else timeout

        def accepted() -> Table | None:
            return self._table if self._table is not None and accept(self._table) else None

        with self._known:
            self._known.wait_for(
                lambda: self._refused or self._ended or accepted() is not None, seconds
            )
            if self._refused is not None:
                raise self._refused
            table = accepted()
            if table is not None:
                return table
            if self._ended is not None:
                raise self._why_ended()
        master, state = self._connections.get(None), ""
        if self._table is None and master is not None:
            state = f"; the directory {master.state()}"
        raise RendezvousError(
            f"waited {seconds:.0f} s for {condition} at the graph servers' directory, "
            f"tcp://{self.master}{state}"
        )

    def wait_for_servers(self, timeout: float | None = None) -> Table:
        """Wait until all servers have registered, and check that they serve all partitions.

        Raises:
            RendezvousError: a server has not registered in time, or a partition is not served.
        """
        table = self.wait_for_table(
            lambda table: len(table.servers) >= table.num_servers,
            "all graph servers to register",
            timeout,
        )
        served = {part for entry in table.servers.values() for part in entry.parts}
        missing = sorted(set(range(table.num_parts)) - served)
        if missing:
            raise RendezvousError(
                f"the folder has {table.num_parts} partitions, but the {table.num_servers} "
                f"graph server(s) serve only {sorted(served)}: no server has {missing}. Start more "
                "servers, or have them serve several (--part, once for each)"
            )
        return table

    def publish(self, name: str, value: object, lost: float | None = None) -> None:
        """Publish a value of this client under a name. A restarted directory gets it again.

        `lost`: see `request`.
        """
        self._published[name] = json_array(value)
        self.request(None, self._publication(name), [self._published[name]], lost=lost)

    def forget(self, name: str) -> None:
        """Forget a value of this client, so that a restarted directory does not get it again."""
        self._published.pop(name, None)

    def look_up(self, lost: float | None = None) -> Table:
        """Request and return the directory's table, with all clients. `lost`: see `request`.

        Raises:
            ProtocolError: the reply is malformed.
        """
        return read_table(self.request(None, Lookup(), lost=lost).arrays, self.name_of(None))

    def _publication(self, name: str) -> Publish:
        own = self._identity()
        assert own is not None, "a process without registration publishes"
        return Publish(own.rank, self.secret, name)

    def wait_for(
        self, name: str, ranks: Sequence[int], wait: float, lost: float | None = None
    ) -> dict[int, Any]:
        """Return the values of this name of clients, by rank.

        Waits until all are published, at most `wait` seconds. A reply has at most 1 MiB of values,
        so request the missing ones again. `lost`: see `request`.

        Raises:
            ProtocolError: the reply is malformed.
        """
        own = self._identity()
        rank = 0 if own is None else own.rank
        request = WaitFor(rank, self.secret, name, list(ranks), wait)
        reply = self.request(None, request, timeout=self.timeout + wait, lost=lost)
        text, published = text_bytes(reply.arrays), reply.fields
        assert isinstance(published, Published)
        values, begin = {}, 0
        try:
            for rank, end in zip(published.ranks, published.ends, strict=True):
                if rank not in request.ranks or not begin <= end <= len(text):
                    raise ValueError(f"a value of client {rank} from {begin} to {end}")
                values[rank] = json.loads(text[begin:end])
                begin = end
        except (ValueError, RecursionError) as error:
            where = self.name_of(None)
            raise ProtocolError(f"{where} sent malformed values of clients: {error}") from None
        return values

    def close(self, goodbye: bool = True) -> None:
        """End the thread. If `goodbye`, unregister before, and wait for this about a second."""
        if self._closing or os.getpid() != self._owner:
            return
        own = self._identity()
        if goodbye and own is not None and self._refused is None and self._ended is None:
            # Before `_closing` is set. From here on, the thread does not register this process.
            self._registration = None
            parting = Goodbye(own.role, own.rank, self.secret)
            with contextlib.suppress(Exception):
                self.submit(None, parting, timeout=1.0).result(1.5)
        self._stop()

    # The thread ---------------------------------------------------------------------------------

    def _identity(self) -> RegisterServer | RegisterClient | None:
        return None if self._registration is None else self._registration(self.secret)

    def _beat(self) -> None:
        if self._beating is not None and self._beating.done():
            beating, self._beating = self._beating, None
            self._on_beat_reply(beating)
        now = time.monotonic()
        if self._beating is None and now >= self._beat_at and not self._closing:
            self._register()

    def _register(self) -> None:
        """Send this process's registration, or if it has none, a request for the table."""
        self._beat_at = time.monotonic() + _BEAT
        pending = PendingRequest(None, self._identity() or Lookup(), (), _BEAT * 5)
        self._beating = pending.future
        self._send(pending)

    def _on_beat_reply(self, beating: Future[Reply]) -> None:
        error = beating.exception()
        if isinstance(error, PartitionUnavailableError):
            return  # perhaps it comes back
        if error is not None:
            with self._known:
                self._refused = error if isinstance(error, Exception) else RuntimeError(str(error))
                self._known.notify_all()
            if self._on_refused is not None:
                self._on_refused(self._refused)
            return
        try:
            table = read_table(beating.result().arrays, self.name_of(None))
        except ProtocolError as malformed:
            self._connections[None].refuse(str(malformed))
            return
        if table.contending:  # another process, perhaps dead, has this rank
            self._beat_at = time.monotonic() + _CONTENDING_BEAT
            return
        is_new = self._table is None or table.directory != self._table.directory
        with self._known:
            self._refused = None
            self._table = table
            self._known.notify_all()
        for rank in self._connections:
            self._relocate(rank)
        if is_new and self._registration is not None:  # it has lost the published values
            for name, value in list(self._published.items()):
                self._send(PendingRequest(None, self._publication(name), [value], self.timeout))
        if self._on_table is not None:
            self._on_table(table)

    def _on_directory_back(self) -> None:
        if self._beating is None and self._registration is not None:
            self._register()

    def _on_end(self) -> None:
        with self._known:
            self._known.notify_all()
        if self._on_refused is not None and not self._closing:
            self._on_refused(self._why_ended())  # a server that needs the directory ends, too
