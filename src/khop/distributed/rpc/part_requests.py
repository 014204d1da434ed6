"""Base of the clients of other partitions: the requests that they send. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from khop.data.tickets import Ticket
from khop.distributed.rpc.pending import Request
from khop.distributed.rpc.protocol import (
    Degrees,
    Fetch,
    HasEdges,
    Induce,
    RequestFields,
    Sample,
    pack_rows,
)
from khop.sampler.requests import HopRequest, RowSet
from khop.trace.requests import RequestLog
from khop.typing import Array, Int64Array


class PartRequests(ABC):
    """Client of other partitions (`khop.sampler.requests.RemoteParts`), for one thread.

    Attributes:
        bytes_received: bytes of all replies.
        poller: waits for replies (`khop.data.waiter.Poller`). `pump` takes them.
        log: log of requests. None unless a recording is under way.
    """

    bytes_received: int
    poller: Any
    log: RequestLog | None

    @abstractmethod
    def _send(self, part: int, message: RequestFields, arrays: list[Array]) -> Request:
        """Send a request with its arrays to the owner of a partition."""

    @abstractmethod
    def pump(self) -> None:
        """Process the replies that are here."""

    @abstractmethod
    def wait(self, tickets: Sequence[Ticket]) -> None:
        """Wait until all tickets are done: requests to partitions, and reads of stores."""

    @abstractmethod
    def start_again(self) -> None:
        """Drop the requests in flight, after an exception has interrupted another method."""

    @abstractmethod
    def close(self) -> None:
        """End all connections, and drop requests in flight."""

    def sample(self, part: int, relation: int, rows: RowSet, request: HopRequest) -> Request:
        names, arrays = pack_rows(rows)
        return self._send(part, Sample(relation, names, request), arrays)

    def induce(
        self, part: int, relation: int, rows: RowSet, keys: Int64Array, with_edge: bool
    ) -> Request:
        names, arrays = pack_rows(rows)
        return self._send(part, Induce(relation, names, with_edge), [*arrays, keys])

    def has_edges(
        self, part: int, relation: int, rows: Int64Array, neighbors: Int64Array
    ) -> Request:
        names, arrays = pack_rows(RowSet(rows))
        return self._send(part, HasEdges(relation, names), [*arrays, neighbors])

    def degrees(self, part: int, relation: int, rows: Int64Array) -> Request:
        return self._send(part, Degrees(relation), [rows])

    def fetch(
        self,
        part: int,
        element: str,
        index: int,
        ids: Int64Array,
        names: Sequence[str],
    ) -> Request:
        return self._send(part, Fetch(element, index, list(names)), [ids])  # type: ignore[arg-type]
