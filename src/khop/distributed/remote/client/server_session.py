"""State of a receiver's session on one graph server, and its requests in flight."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from khop import codec, log
from khop.channel.control import MAX_PAYLOAD
from khop.channel.layout import Layout
from khop.channel.message import pack
from khop.distributed.remote.client.reassembly import BatchReassembler
from khop.distributed.remote.messages import CHUNK_BYTES, GraphServerRequest, read_reply
from khop.distributed.remote.session_messages import (
    Acknowledge,
    Alive,
    Batch,
    Cancel,
    Chunk,
    ErrorText,
    Event,
    Failed,
    Held,
    Open,
    Progress,
    SessionSpec,
    read_event,
)
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.protocol import request_header
from khop.distributed.sampling.control_messages import BatchKey, Epoch
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.typing import Array

CLOSED, OPENING, OPEN = range(3)
"""States of a session."""

SessionMessage: TypeAlias = Event | Held | Progress | ErrorText

# Seconds after which a lost server's batches are assigned to others that can make them.
_GRACE = 1.0
# New bytes that count as progress: these, or a sixteenth of the batch if that is more. So a batch
# takes 16 times the timeout at most.
_STEP_BYTES, _STEPS = 1 << 20, 16
_MAX_LAYOUTS = 1024
# Seconds until the next connection: after the first fault, doubled with each, at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0
# Minimum seconds between requests to open a session over one connection.
_OPEN_AGAIN = 1.0
# Characters: JSON takes up to six bytes for one, and a control message holds two such texts.
_MAX_ERROR = MAX_PAYLOAD // 16
_MAX_FAULT = 1000
_log = log.get(__name__)


@dataclass
class PendingBatch:
    """A batch that a receiver has requested and not received in full.

    Attributes:
        server: index of the only server that can make it. If None, any.
        requested_at: time of the request (`time.monotonic`).
        incoming: memory of the batch. None before its first bytes arrive.
        most_arrived: maximum number of bytes that have arrived, over all connections.
    """

    id: int
    epoch: int
    batch: int
    server: int | None
    requested_at: float
    incoming: BatchReassembler | None = None
    most_arrived: int = 0

    def drop_incoming(self) -> None:
        if self.incoming is not None:
            self.incoming.abandon()
            self.incoming = None


class ServerSession:
    """A receiver's connection to one server, and the state of its loader's session there.

    `spec` describes the session, the loader's state on the server of this `rank`.

    Attributes:
        pending: {id: batch} in flight, in order of the requests.
        progress: time of the last progress, or of the first fault after it (`time.monotonic`).
        fault: description of the last invalid message. A completed batch sets it to None.
        num_faults: number of invalid messages since the last completed batch.
        waiting_for: the server's reason for making no batches now. None if there is no reason.
        complaint: error of the last request that the server refused.
        layouts: {the server's number of a layout: layout}.
        refused: error with which the server refused to open the session, if it did.
        unacked_bytes: bytes that have arrived and are not acknowledged.
        opening: id of the last request to open the session. Other requests have id 0.
        lookahead, cache_bytes: see `Held`.
        ahead: {(epoch, batch): id} of batches that the server draws ahead, not requested yet.
    """

    def __init__(self, spec: SessionSpec, rank: int, connection: Connection) -> None:
        self._spec = spec
        self.rank = rank
        self.connection = connection
        self.name = spec.session
        self.state = CLOSED
        self.pending: dict[int, PendingBatch] = {}
        self.progress = time.monotonic()
        self.fault: str | None = None
        self.num_faults = 0
        self.waiting_for: str | None = None
        self.complaint: str | None = None
        self.layouts: dict[int, Layout] = {}
        self.refused: dict[str, str] | None = None
        self.unacked_bytes = 0
        self._new_bytes = 0
        self.opening = 0
        self.lookahead = self.cache_bytes = 0
        self.ahead: dict[BatchKey, int] = {}
        self._open_at = 0.0
        # Only the first opening is progress: a server that restarts repeatedly makes no progress.
        self._opening_counts = True

    @property
    def is_lost(self) -> bool:
        """True if the server has been unreachable for longer than `_GRACE` seconds."""
        since = self.connection.lost_since
        return since is not None and time.monotonic() - since > _GRACE

    @property
    def where(self) -> str:
        return f"graph server {self.rank} at {self.connection.address}"

    def send(
        self, request: GraphServerRequest, arrays: Sequence[Array] = (), request_id: int = 0
    ) -> None:
        """Send a request with arrays. Dropped if the server is lost. The reply has `request_id`."""
        self.connection.send(pack(request_header(request, request_id), arrays))

    def request_batch(self, epoch: Epoch, batch: int, batch_id: int, ahead: bool = False) -> None:
        """Request batch number `batch` of an epoch. The server knows it by `batch_id`."""
        run_key, index = epoch.key_of(batch)
        columns = epoch.seeds_of(batch)
        self.send(Batch(self.name, batch_id, index, run_key, ahead), [columns])

    def cancel_epoch(self, epoch: int) -> None:
        """Cancel all batches of an epoch that the trainer has closed."""
        unwanted = [p for p in self.pending.values() if p.epoch == epoch]
        for pending in unwanted:
            pending.drop_incoming()
            del self.pending[pending.id]
        ids = [p.id for p in unwanted]
        ids += [self.ahead.pop(key) for key in [*self.ahead] if key[0] == epoch]
        if ids:
            self.send(Cancel(self.name, ids))

    def connect(self, arrays: Mapping[str, Array]) -> None:
        """Process the connection's events. Open the session, with its arrays, if it is closed."""
        if self.connection.pump():
            self.end()
            self._open_at = 0.0
        now = time.monotonic()
        if not self.connection.is_up or self.state != CLOSED or now < self._open_at:
            return
        self.end()
        self.state = OPENING
        self._open_at = now + _OPEN_AGAIN
        self.layouts.clear()
        self.opening += 1
        request = Open(self._spec, list(self.pending), list(arrays))  # type: ignore[arg-type]
        self.send(request, list(arrays.values()), self.opening)

    def read(self, header: Mapping[str, Any], arrays: Sequence[Array]) -> SessionMessage | None:
        """Read a message of the server, with the checks that need no other state.

        Returns:
            An event of the session, the reply to `Open` or `Alive`, or `ErrorText`. The array of a
            chunk is a vector of bytes. None for the reply to an outdated `Open`.

        Raises:
            ProtocolError: the message is invalid.
        """
        if "event" in header:
            return self._read_event(header, arrays)
        # The server did not read the id of a request that it refused without one.
        request_id = 0 if header.get("id") is None and "error" in header else header.get("id")
        if type(request_id) is not int or not 0 <= request_id <= self.opening:
            raise ProtocolError(f"a reply to a request {str(request_id)[:40]!a} that was not sent")
        if arrays:
            raise ProtocolError(f"{len(arrays)} arrays with a reply that has none")
        if 0 < request_id < self.opening:
            return None
        if "error" in header:
            return codec.from_json(ErrorText, header["error"], "it sent an error")
        if request_id > 0 and self.state != OPENING:
            raise ProtocolError("a second reply to the session's opening")
        reply = read_reply(Alive if request_id == 0 else Open, header, "it")
        assert isinstance(reply, Held | Progress)
        return reply

    def _read_event(self, header: Mapping[str, Any], arrays: Sequence[Array]) -> Event:
        event = read_event(header, "it")
        if event.session != self.name:
            raise ProtocolError(f"an event of another session, {event.session[:40]!a}")
        if isinstance(event, Failed):
            if arrays:
                raise ProtocolError(f"{len(arrays)} arrays with a failure, which has none")
        elif len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 1:
            raise ProtocolError(f"an event '{event.event}' without one vector of bytes")
        elif isinstance(event, Chunk) and not 0 < len(arrays[0]) <= CHUNK_BYTES:
            raise ProtocolError(f"a chunk of {len(arrays[0])} bytes, not 1 to {CHUNK_BYTES}")
        return event

    def add_layout(self, server_number: int, layout: Layout) -> None:
        """Register a layout (list of arrays) under the server's number.

        Raises:
            ProtocolError: the number is in use.
        """
        if self.layouts.setdefault(server_number, layout) is not layout:
            raise ProtocolError(f"layout {server_number} becomes another")
        if len(self.layouts) > _MAX_LAYOUTS:
            raise ProtocolError(f"more than {_MAX_LAYOUTS} layouts of one session")

    def opened(self, reply: Held) -> None:
        """Take over the reply to the request that opened the session."""
        self.state = OPEN
        self.refused = None
        self.lookahead, self.cache_bytes = reply.lookahead, reply.cache_bytes
        if reply.reduced is not None:
            text = f"{self.where}: {reply.reduced}"
            _log.warning("cache-reduced", text, server=self.rank, session=self.name)
        if self._opening_counts:
            self._opening_counts = False
            self._note_progress()

    def arrived(self, pending: PendingBatch) -> None:
        """Record that bytes of a batch (`pending`) have arrived.

        After enough bytes they count as progress. Bytes that are sent again do not count.
        """
        assert pending.incoming is not None
        if pending.incoming.arrived <= pending.most_arrived:
            return
        self._new_bytes += pending.incoming.arrived - pending.most_arrived
        pending.most_arrived = pending.incoming.arrived
        if self._new_bytes >= max(_STEP_BYTES, pending.incoming.nbytes // _STEPS):
            self._opening_counts = True
            self._note_progress()

    def completed(self, pending: PendingBatch) -> None:
        """Remove a batch, `pending`, that has arrived in full and is valid."""
        del self.pending[pending.id]
        self.fault, self.num_faults = None, 0
        self._opening_counts = True
        self._note_progress()

    def _note_progress(self) -> None:
        self._new_bytes = 0
        if self.fault is None:
            self.progress = time.monotonic()

    def note_fault(self, error: Exception) -> None:
        """End the connection after an invalid message (`error`): later ones cannot be trusted.

        The next connection is made after a pause, which doubles with each fault.
        """
        if self.fault is None:
            self.progress = time.monotonic()
        pause = min(_FIRST_PAUSE * 2.0 ** min(self.num_faults, 16), _LONGEST_PAUSE)
        self.fault = str(error)[:_MAX_FAULT] or repr(error)
        self.num_faults += 1
        self.connection.refuse(f"sent an invalid message: {self.fault}", pause)

    def note_error(self, error: ErrorText) -> None:
        """Record that the server has refused a request for the open session."""
        if error.type == "LookupError":  # it has ended the session, or was restarted
            self.end()
        else:
            self.complaint = f"{error.type}: {error.message[:_MAX_FAULT]}"

    def end(self) -> None:
        """Close the session, since it or its connection is lost. Drop bytes that have arrived."""
        self.state = CLOSED
        self.unacked_bytes = 0
        self.ahead.clear()
        for pending in self.pending.values():
            pending.drop_incoming()

    def acknowledge(self, least: int) -> None:
        """Acknowledge arrived bytes if they are `least` or more, or if no batch is in flight."""
        if self.unacked_bytes >= least or (self.unacked_bytes and not self.pending):
            self.send(Acknowledge(self.name, self.unacked_bytes))
            self.unacked_bytes = 0

    # Reports ------------------------------------------------------------------------------------

    def describe(self, error: ErrorText) -> dict[str, str]:
        """Return an error of the server in the form that the trainer reads."""
        return {
            "type": error.type,
            "message": f"{error.message[:_MAX_ERROR]}\n\nRaised on {self.where}.",
            "traceback": error.traceback[-_MAX_ERROR:],
        }

    def log_event(self, event: str, text: str) -> None:
        """Log `text` about a change of the server, as the event of this name.

        A lost server with batches in flight is a warning.
        """
        log_it = _log.warning if self.pending and self.state == CLOSED else _log.info
        text = f"{self.where} {text}"
        log_it(event, text, server=self.rank, session=self.name, pending=len(self.pending))

    def too_large(self, pending: PendingBatch, nbytes: int, limit: int) -> ProtocolError:
        """Return the error to report for a batch of more than `limit` bytes."""
        return ProtocolError(
            f"{self.where} announces {nbytes} bytes for batch {pending.batch}, more than this "
            f"loader's limit of {limit}: if a batch can be so large, pass a larger batch_limit in "
            "worker_options, or a smaller batch_size or fan-out"
        )

    def unavailable(self, pending: PendingBatch, timeout: float, outage: str | None) -> Exception:
        """Return the error to report for `pending`, a batch that timed out.

        `outage` is the directory's error, if any.
        """
        waited = f"{time.monotonic() - pending.requested_at:.1f} s (timeout is {timeout:g} s)"
        missing = f"{self.where} has not made batch {pending.batch} in {waited}"
        if self.fault is not None:
            return ProtocolError(
                f"{missing}: it sent {self.num_faults} invalid messages without a batch between. "
                f"The last fault: {self.fault}. Its khop is another, is damaged, or is not khop"
            )
        state = self.connection.state()
        if self.connection.endpoint is None and outage is not None:
            state += f"; {outage}"
        elif self.waiting_for:
            state += f", and reports that {self.waiting_for[:_MAX_FAULT]}"
        elif self.complaint:
            state += f", and has refused a request: {self.complaint}"
        return PartitionUnavailableError(f"{missing}: it {state}")
