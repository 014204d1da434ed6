"""Requests to graph servers and their directory: what clients, servers and `khop top` ask with.

A `RemoteClient` has a thread of its own, which owns the sockets, tells the directory every second
who this process is, follows servers that move, and asks again what a lost connection has swallowed.
Requests are idempotent, so asking twice is harmless.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import zmq

from khop.channel.message import pack
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.link import Link
from khop.distributed.transport import Endpoint
from khop.distributed.wire import PROTOCOL, rebuild_error
from khop.errors import PartitionUnavailableError, RendezvousError
from khop.typing import Array

Reply = tuple[dict[str, Any], list[Array]]

_BEAT = 1.0
_CONTENDING_BEAT = 0.25
_TICK_MS = 250


@dataclass
class _Asked:
    """A request that has not been answered."""

    rank: int | None
    op: str
    header: dict[str, Any]
    arrays: Sequence[Array]
    deadline: float
    began: float
    future: Future[Reply] = field(default_factory=Future)


class RemoteClient:
    """Asks graph servers.

    Args:
        servers: where they are found.
        registration: what the directory shall know of this process, asked for every second; without
            rank nor role this process only looks (`khop top`).
        timeout: seconds that a request may take by default.
        on_table: called, in the client's thread, with what the directory answers to a registration.
        on_refused: called with the error if the directory refuses the registration.

    Attributes:
        incarnation: of this process, in the directory.
    """

    def __init__(
        self,
        servers: Servers,
        registration: Callable[[], Mapping[str, Any]] | Mapping[str, Any] | None = None,
        timeout: float = 60.0,
        on_table: Callable[[Mapping[str, Any]], None] | None = None,
        on_refused: Callable[[Exception], None] | None = None,
    ) -> None:
        self._servers = servers
        self._registration = registration
        self.timeout = timeout
        self._on_table = on_table
        self._on_refused = on_refused
        self.incarnation = uuid.uuid4().hex
        self._table: dict[str, Any] = {}
        self._known = threading.Condition()
        self._refused: Exception | None = None
        self._told: dict[str, Any] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._links: dict[int | None, Link] = {}
        self._asked: dict[int, _Asked] = {}
        self._submitted: deque[_Asked] = deque()
        self._ids = itertools.count(1)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._owner = os.getpid()
        self._beat_at = 0.0
        self._beating: Future[Reply] | None = None
        self._thread = threading.Thread(target=self._run, name="khop-remote", daemon=True)
        self._thread.start()

    # What other threads call --------------------------------------------------------------------

    def submit(
        self,
        rank: int | None,
        op: str,
        header: Mapping[str, Any] | None = None,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
    ) -> Future[Reply]:
        """Asks a server.

        Args:
            rank: which; None: the directory.
            op: name of the request.
            header: what it says.
            arrays: what it carries.
            timeout: seconds that it may take.

        Returns:
            Header and arrays of the reply, to come; or what the server has raised, or
            PartitionUnavailableError that names server, address and elapsed time.

        Raises:
            ProtocolError: it is larger than servers accept.
        """
        if self._closing:
            raise RuntimeError("the connection to the graph servers has been closed")
        now = time.monotonic()
        seconds = self.timeout if timeout is None else timeout
        asked = _Asked(rank, op, dict(header or {}), list(arrays), now + seconds, now)
        self._frames(2**53, asked)  # what cannot be sent fails here, not in the thread
        self._submitted.append(asked)
        os.eventfd_write(self._wake, 1)
        return asked.future

    def request(
        self,
        rank: int | None,
        op: str,
        header: Mapping[str, Any] | None = None,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Asks a server and waits for the answer; see `submit`."""
        return self.submit(rank, op, header, arrays, timeout).result()

    @property
    def table(self) -> Mapping[str, Any]:
        """What the directory has said last; empty before it has."""
        return self._table

    def wait_for_table(
        self, accept: Callable[[Mapping[str, Any]], bool], what: str, timeout: float | None = None
    ) -> Mapping[str, Any]:
        """Waits until the directory's table is as wanted.

        Args:
            accept: whether it is.
            what: what is waited for, for the error message.
            timeout: seconds.

        Raises:
            RendezvousError: the directory refuses this process, or time is over.
        """
        seconds = self.timeout if timeout is None else timeout
        with self._known:
            done = self._known.wait_for(
                lambda: self._refused is not None or (bool(self._table) and accept(self._table)),
                seconds,
            )
            if self._refused is not None:
                raise self._refused
            if done:
                return self._table
        master = self._links.get(None)
        state = "" if self._table or master is None else f"; the directory {master.state()}"
        raise RendezvousError(
            f"waited {seconds:.0f} s for {what} at the graph servers' directory, "
            f"tcp://{self._servers.master}{state}"
        )

    def wait_for_servers(self, timeout: float | None = None) -> Mapping[str, Any]:
        """Waits until all servers have registered, and checks that they serve all partitions.

        Raises:
            RendezvousError: they have not in time, or a partition is nobody's.
        """

        def complete(table: Mapping[str, Any]) -> bool:
            return bool(len(table["servers"]) >= table["num_servers"])

        table = self.wait_for_table(complete, "all graph servers to register", timeout)
        served = {part for entry in table["servers"].values() for part in entry["parts"]}
        missing = sorted(set(range(table["num_parts"])) - served)
        if missing:
            raise RendezvousError(
                f"the folder has {table['num_parts']} partitions, but the {table['num_servers']} "
                f"graph server(s) serve only {sorted(served)}: nobody serves {missing}. Start more "
                "servers, or have them serve several (--part, once for each)"
            )
        return table

    def tell(self, name: str, value: Any) -> None:
        """Publishes a value of this client; said again to a directory that was started again."""
        self._told[name] = value
        self.request(None, "tell", self._telling(name))

    def _telling(self, name: str) -> dict[str, Any]:
        return {**self._own_name(), "name": name, "value": self._told[name]}

    def hear(self, name: str, ranks: Sequence[int], wait: float) -> dict[int, Any]:
        """What clients have published, as soon as all have, or after `wait` seconds."""
        words = {**self._own_name(), "name": name, "ranks": list(ranks), "wait": wait}
        reply, _ = self.request(None, "hear", words, timeout=self.timeout + wait)
        return {int(rank): value for rank, value in reply["told"].items()}

    def _own_name(self) -> dict[str, Any]:
        return {"rank": self._identity()["rank"], "incarnation": self.incarnation}

    def close(self, goodbye: bool = True) -> None:
        """Says goodbye to the directory, if it can be reached within a second, and ends."""
        if self._closing or os.getpid() != self._owner:
            return
        identity = self._identity()
        if goodbye and identity.get("role") and self._refused is None:
            # Before the flag: nothing is registered after it.
            self._registration = None
            words = {name: identity[name] for name in ("role", "rank", "incarnation")}
            with contextlib.suppress(Exception):
                self.submit(None, "goodbye", words, timeout=1.0).result(1.5)
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    # The thread ---------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        given = self._registration() if callable(self._registration) else self._registration
        return {**(given or {}), "incarnation": self.incarnation}

    def _run(self) -> None:
        self._links[None] = self._new_link(self._servers.directory)
        try:
            while not self._closing:
                self._sleep()
                self._take_submitted()
                self._beat()
                for rank, link in list(self._links.items()):
                    if link.pump():
                        self._ask_again(rank)
                    for header, arrays, _ in link.receive():
                        self._answer(rank, header, arrays)
                self._expire()
        finally:
            self._end()

    def _new_link(self, endpoint: Endpoint | None) -> Link:
        return Link(self._context, self._servers.credentials, endpoint)

    def _sleep(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        for link in self._links.values():
            for socket in link.sockets():
                poller.register(socket, zmq.POLLIN)
        poller.poll(_TICK_MS)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _take_submitted(self) -> None:
        while self._submitted:
            asked = self._submitted.popleft()
            number = next(self._ids)
            self._asked[number] = asked
            self._ask(number, asked)

    def _ask(self, number: int, asked: _Asked) -> None:
        link = self._links.get(asked.rank)
        if link is None:
            link = self._links[asked.rank] = self._new_link(None)
            self._locate(asked.rank)
        link.send(self._frames(number, asked))

    def _frames(self, number: int, asked: _Asked) -> list[Any]:
        header = {**asked.header, "op": asked.op, "protocol": PROTOCOL, "id": number}
        return pack(header, asked.arrays)

    def _ask_again(self, rank: int | None) -> None:
        for number, asked in self._asked.items():
            if asked.rank == rank:
                self._links[rank].send(self._frames(number, asked))

    def _locate(self, rank: int | None) -> None:
        entry = self._table.get("servers", {}).get(str(rank))
        if entry is not None:
            self._links[rank].relocate(self._servers.endpoint(entry))

    def _answer(self, rank: int | None, header: dict[str, Any], arrays: list[Array]) -> None:
        asked = self._asked.pop(header.get("id", -1), None)
        if asked is None or not asked.future.set_running_or_notify_cancel():
            return
        if "error" in header:
            where = "the directory" if rank is None else f"graph server {rank}"
            error = rebuild_error(header["error"], f"{where} at {self._links[rank].address}")
            asked.future.set_exception(error)
        else:
            asked.future.set_result((header, arrays))

    def _expire(self) -> None:
        now = time.monotonic()
        for number, asked in list(self._asked.items()):
            if asked.future.cancelled():
                del self._asked[number]
            elif now > asked.deadline:
                del self._asked[number]
                if asked.future.set_running_or_notify_cancel():
                    asked.future.set_exception(self._unavailable(asked))

    def _unavailable(self, asked: _Asked) -> PartitionUnavailableError:
        link = self._links[asked.rank]
        who = "the graph servers' directory" if asked.rank is None else f"graph server {asked.rank}"
        seconds = time.monotonic() - asked.began
        return PartitionUnavailableError(
            f"{who} at {link.address} did not answer '{asked.op}' in {seconds:.1f} s: it "
            f"{link.state()}"
        )

    # Registering --------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Tells the directory that this process lives, and takes in what it says."""
        if self._beating is not None and self._beating.done():
            beating, self._beating = self._beating, None
            self._take_table(beating)
        now = time.monotonic()
        if self._beating is None and now >= self._beat_at and not self._closing:
            self._beat_at = now + _BEAT
            identity = self._identity()
            op = "register" if "role" in identity else "lookup"
            asked = _Asked(None, op, identity if op == "register" else {}, (), now + _BEAT * 5, now)
            number = next(self._ids)
            self._asked[number] = asked
            self._beating = asked.future
            self._ask(number, asked)

    def _take_table(self, beating: Future[Reply]) -> None:
        error = beating.exception()
        if isinstance(error, PartitionUnavailableError):
            return  # it may come back
        if error is not None:
            with self._known:
                self._refused = error if isinstance(error, Exception) else RuntimeError(str(error))
                self._known.notify_all()
            if self._on_refused is not None:
                self._on_refused(self._refused)
            return
        table, _ = beating.result()
        if table.get("contending"):  # another has this rank, and is perhaps dead
            self._beat_at = time.monotonic() + _CONTENDING_BEAT
            return
        is_new = table["directory"] != self._table.get("directory")
        with self._known:
            self._refused = None
            self._table = table
            self._known.notify_all()
        for rank in self._links:
            if rank is not None:
                self._locate(rank)
        if is_new:  # also when it was started again: it has forgotten what it was told
            for name in list(self._told):
                now = time.monotonic()
                again = _Asked(None, "tell", self._telling(name), (), now + self.timeout, now)
                self._submitted.append(again)
        if self._on_table is not None:
            self._on_table(table)

    def _end(self) -> None:
        for asked in [*self._asked.values(), *self._submitted]:
            if asked.future.set_running_or_notify_cancel():
                asked.future.set_exception(
                    RuntimeError("the connection to the graph servers has been closed")
                )
        for link in self._links.values():
            link.close()
        self._context.destroy(0)
