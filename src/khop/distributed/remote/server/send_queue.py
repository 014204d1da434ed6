"""Queue of a session's batches to its client, with a bound of the bytes in flight.

Run by graph servers.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from khop.channel.layout import Layout
from khop.distributed.remote.encoding import event_header, text_array
from khop.distributed.remote.message_fields import CHUNK_BYTES, LEAST_CHUNK
from khop.distributed.remote.session_messages import Chunk, ErrorText, Failed, LayoutEvent
from khop.typing import Array, Int64Array

Send = Callable[[Mapping[str, Any], Sequence[Array]], None]


@dataclass
class BatchRequest:
    """A client's request for a batch.

    Attributes:
        id: id of the batch, chosen by the client.
        batch, run_key, columns: all that the batch depends on; see `Pipeline.make`.
        requested_at: when it was requested (`time.monotonic`).
    """

    id: int
    batch: int
    run_key: int
    columns: Int64Array
    requested_at: float

    @property
    def nbytes(self) -> int:
        """Bytes of its columns."""
        return int(self.columns.nbytes)


@dataclass
class EncodedBatch:
    """A batch that was made and is not sent in full.

    Attributes:
        request: its request.
        raw: [nbytes] uint8; its slot is freed when nothing uses it any more.
        layout: the session's number of its layout.
        extras: JSON of the batch's extras.
        sent: bytes that were sent.
    """

    request: BatchRequest
    raw: Array
    layout: int
    extras: str | None
    sent: int = 0


class SendQueue:
    """Queue of batches to send, in the order in which they were made.

    Args:
        session: name of the session.
        credits: bytes that may be in flight without an acknowledgement.
        send: sends an event to the client.
        on_sent: called with a batch when all of it was sent.
    """

    def __init__(
        self, session: str, credits: int, send: Send, on_sent: Callable[[EncodedBatch], None]
    ) -> None:
        self._session = session
        self._most = self._credits = credits
        self._send = send
        self._on_sent = on_sent
        self._ready: OrderedDict[int, EncodedBatch] = OrderedDict()
        self._layouts: dict[str, int] = {}
        self._numbers: WeakKeyDictionary[Layout, int] = WeakKeyDictionary()
        self._announced: set[int] = set()

    @property
    def ids(self) -> list[int]:
        """Ids of the queued batches."""
        return list(self._ready)

    @property
    def nbytes(self) -> int:
        """Bytes of the queued batches."""
        return sum(len(ready.raw) for ready in list(self._ready.values()))

    @property
    def num_chunks(self) -> int:
        """Number of chunks to send."""
        unsent = [len(ready.raw) - ready.sent for ready in list(self._ready.values())]
        return sum(-(-nbytes // CHUNK_BYTES) for nbytes in unsent)

    @property
    def can_send(self) -> bool:
        """True if a chunk may be sent now."""
        return bool(self._ready) and self._credits > 0

    def number_of(self, layout: Layout) -> int:
        """Return the session's number of a layout.

        Samplers may number layouts differently, so they are compared by content.
        """
        known = self._numbers.get(layout)
        if known is None:
            text = json.dumps({**layout.to_json(), "id": 0})
            known = self._numbers[layout] = self._layouts.setdefault(text, len(self._layouts))
        return known

    def put(self, ready: EncodedBatch) -> None:
        """Queue a batch."""
        self._ready[ready.request.id] = ready

    def drop(self, number: int) -> bool:
        """Remove a batch; return whether it was queued."""
        return self._ready.pop(number, None) is not None

    def clear(self) -> None:
        """Remove all batches."""
        self._ready.clear()

    def reset(self, send: Send, credits: int) -> None:
        """Send from the start again, over the client's new connection."""
        self._send = send
        self._most = self._credits = credits
        self._announced.clear()
        for ready in self._ready.values():
            ready.sent = 0

    def acknowledge(self, nbytes: int) -> None:
        """Add bytes that the client has acknowledged to the credits."""
        self._credits = min(self._credits + nbytes, self._most)

    def send_chunk(self) -> None:
        """Send the next chunk without a copy: ZeroMQ keeps the batch's memory until it is sent."""
        ready = next(iter(self._ready.values()))
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
            del self._ready[ready.request.id]
            self._on_sent(ready)

    def _announce(self, number: int) -> None:
        """Send a layout before the first batch that has it."""
        if number in self._announced:
            return
        text = next(t for t, known in self._layouts.items() if known == number)
        layout = {**json.loads(text), "id": number}
        self._send(event_header(LayoutEvent(self._session, number)), [text_array(layout)])
        self._announced.add(number)

    def send_error(self, number: int, error: Mapping[str, str]) -> None:
        """Send the error of a batch that cannot be made."""
        described = ErrorText(error["type"], error["message"], error.get("traceback", ""))
        self._send(event_header(Failed(self._session, number, described)), [])
