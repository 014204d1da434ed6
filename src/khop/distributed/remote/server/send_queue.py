"""Queue of the batches that a session sends to its client, with a bound of the bytes in flight.

Run by graph servers.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from khop.channel.layout import Layout
from khop.distributed.remote.messages import CHUNK_BYTES, LEAST_CHUNK, json_array
from khop.distributed.remote.session_messages import (
    Chunk,
    ErrorText,
    Failed,
    LayoutEvent,
    event_header,
)
from khop.typing import Array, Int64Array

Send: TypeAlias = Callable[[Mapping[str, Any], Sequence[Array]], None]


@dataclass
class BatchRequest:
    """A client's request for a batch, which a session keeps until the batch is made.

    Attributes:
        id: id of the batch, chosen by the client.
        batch, run_key, columns: index, key of random numbers and seeds, see `Pipeline.make`.
        requested_at: time of the request (`time.monotonic`).
    """

    id: int
    batch: int
    run_key: int
    columns: Int64Array
    requested_at: float


@dataclass
class EncodedBatch:
    """A batch that a sampler has made and that is not sent in full.

    Attributes:
        raw: the batch, [nbytes] uint8. Its slot in the arena is freed when nothing refers to `raw`.
        layout: the session's number of its layout.
        extras: JSON of the batch's extras.
        sent: number of bytes that were sent.
    """

    request: BatchRequest
    raw: Array
    layout: int
    extras: str | None
    sent: int = 0


class SendQueue:
    """Queue of a session's batches to send to its client, in the order in which they were made.

    Args:
        session: name of the session.
        credits: maximum bytes that are sent and not acknowledged.
        on_sent: called with a batch when it has been sent in full.

    Attributes:
        ready: {id: batch} to send, in order.
    """

    def __init__(
        self, session: str, credits: int, send: Send, on_sent: Callable[[EncodedBatch], None]
    ) -> None:
        self._session = session
        self._most = self._credits = credits
        self._send = send
        self._on_sent = on_sent
        self.ready: OrderedDict[int, EncodedBatch] = OrderedDict()
        self._layouts: dict[str, int] = {}
        self._numbers: WeakKeyDictionary[Layout, int] = WeakKeyDictionary()
        self._announced: set[int] = set()

    @property
    def nbytes(self) -> int:
        return sum(len(ready.raw) for ready in list(self.ready.values()))

    @property
    def num_chunks(self) -> int:
        unsent = [len(ready.raw) - ready.sent for ready in list(self.ready.values())]
        return sum(-(-nbytes // CHUNK_BYTES) for nbytes in unsent)

    @property
    def can_send(self) -> bool:
        return bool(self.ready) and self._credits > 0

    def layout_number(self, layout: Layout) -> int:
        """Return the session's number of a layout (list of a batch's arrays). New ones get one.

        Samplers can number layouts differently, so layouts are compared by content.
        """
        known = self._numbers.get(layout)
        if known is None:
            text = json.dumps({**layout.to_json(), "id": 0})
            known = self._numbers[layout] = self._layouts.setdefault(text, len(self._layouts))
        return known

    def reset(self, send: Send) -> None:
        """Send each unfinished batch from its start again, by `send`, over a new connection."""
        self._send = send
        self._credits = self._most
        self._announced.clear()
        for ready in self.ready.values():
            ready.sent = 0

    def acknowledge(self, nbytes: int) -> None:
        self._credits = min(self._credits + nbytes, self._most)

    def send_chunk(self) -> None:
        """Send a batch's next chunk without a copy: ZeroMQ keeps its memory until it is sent."""
        ready = next(iter(self.ready.values()))
        if ready.layout not in self._announced:
            self._announce(ready.layout)
        begin, nbytes = ready.sent, len(ready.raw)
        end = min(begin + CHUNK_BYTES, nbytes)
        is_last = end == nbytes
        extras = ready.extras if is_last else None
        chunk = Chunk(self._session, ready.request.id, begin, nbytes, ready.layout, extras)
        self._send(event_header(chunk), [ready.raw[begin:end]])
        self._credits -= max(end - begin, LEAST_CHUNK)
        ready.sent = end
        if is_last:
            del self.ready[ready.request.id]
            self._on_sent(ready)

    def _announce(self, layout: int) -> None:
        """Send the client the layout of this number, before the first batch that has it."""
        text = next(t for t, known in self._layouts.items() if known == layout)
        content = {**json.loads(text), "id": layout}
        self._send(event_header(LayoutEvent(self._session, layout)), [json_array(content)])
        self._announced.add(layout)

    def send_error(self, batch_id: int, error: Mapping[str, str]) -> None:
        described = ErrorText(error["type"], error["message"], error.get("traceback", ""))
        self._send(event_header(Failed(self._session, batch_id, described)), [])
