"""The receiver: a client's process that requests batches from graph servers.

To its trainer it looks like a sampler process, with a control line and an arena. It requests each
batch from a server and writes it into the arena as it arrives. A request has all that the batch
depends on. So if a server is lost, its batches are requested from another one that can make them.
If there is none, they are requested from the same server when it has registered again. The process
has one thread. `docs/protocol.md` describes its configuration.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import zmq

from khop import codec, log
from khop.channel.arena import ArenaWriter
from khop.channel.control import U64, ControlLine, Message, Op
from khop.channel.message import pack
from khop.channel.shared import read_shared
from khop.distributed.processes.child import start_up
from khop.distributed.remote.addresses import relocate
from khop.distributed.remote.client.batch_checks import BatchChecks, BatchSchema
from khop.distributed.remote.client.reassembly import BatchReassembler, Layouts
from khop.distributed.remote.client.server_session import (
    CLOSED,
    OPEN,
    OPENING,
    PendingBatch,
    ServerSession,
)
from khop.distributed.remote.messages import LEAST_CHUNK, Lookup, read_json, read_table
from khop.distributed.remote.session_messages import (
    Alive,
    Cancel,
    Chunk,
    Close,
    ErrorText,
    Failed,
    Held,
    LayoutEvent,
    Progress,
    SessionSpec,
    session_fields,
)
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.protocol import describe_error, request_header
from khop.distributed.sampling.control_messages import BatchKey, Epoch, SampleRequest, read_epoch
from khop.distributed.sampling.worker import described_error
from khop.errors import ProtocolError
from khop.sampler.methods.modules import import_methods
from khop.typing import Array

_CREDITS = 8 << 20
_BEAT = 1.0
_TICK_MS = 250
_log = log.get(__name__)


class Receiver:
    """Event loop of a receiver, the client's process that gets batches from graph servers.

    Args:
        line: control line to the trainer.
        config: configuration from the trainer.
        arena: descriptor of the arena's memory, which stays open.
        arrays: sampling weights of negative endpoints, by name.
    """

    def __init__(
        self, line: ControlLine, config: Mapping[str, Any], arena: int, arrays: Mapping[str, Array]
    ) -> None:
        self._line = line
        self._arena = ArenaWriter(arena)
        self._arrays = dict(arrays)
        self._timeout: float = config["timeout"]
        self._depth: int = config["depth"]
        self._batch_limit: int = config["batch_limit"]
        name = "a receiver's configuration"
        spec = codec.from_json(SessionSpec, session_fields(config, _CREDITS), name)
        schema = codec.from_json(BatchSchema, config["schema"], name)
        self._checks = BatchChecks(schema, spec.pipeline)
        self._layouts = Layouts(line, self._checks.check_layout)
        credentials = config["credentials"]
        key_pair = None if credentials is None else KeyPair(**credentials)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._master = Endpoint(**config["master"])
        self._directory = Connection(self._context, key_pair, self._master)
        self._sessions = [
            ServerSession(spec, rank, Connection(self._context, key_pair))
            for rank in config["servers"]
        ]
        self._epochs: dict[int, Epoch] = {}
        self._requested: deque[BatchKey] = deque()
        # Batches that the trainer will request, and that no server draws yet, in order.
        self._ahead: dict[BatchKey, None] = {}
        # Ids begin at a random number, as servers may still have batches of an earlier receiver.
        self._last_id = int.from_bytes(os.urandom(5), "little") << 22
        self._beat_at = 0.0

    def run(self) -> None:
        """Receive batches until the trainer closes the line.

        Raises:
            EOFError: the trainer closed the line.
        """
        while True:
            while (message := self._line.receive()) is not None:
                self._on_trainer_message(message)
            self._send_heartbeats()
            self._read_directory()
            for session in self._sessions:
                self._read_messages(session)
            self._reassign()
            self._assign_requested()
            self._send_ahead()
            self._expire()
            poller = zmq.Poller()
            poller.register(self._line.fileno(), zmq.POLLIN)
            for connection in (self._directory, *(s.connection for s in self._sessions)):
                for socket in connection.sockets:
                    poller.register(socket, zmq.POLLIN)
            poller.poll(_TICK_MS)

    # The trainer --------------------------------------------------------------------------------

    def _on_trainer_message(self, message: Message) -> None:
        if message.op is Op.SAMPLE:
            request = SampleRequest.decode(message.payload)
            for offset in request.freed:
                self._arena.free(offset)
            self._requested.extend(request.requested)
            self._ahead.update(dict.fromkeys(request.ahead))
            for key in request.requested:
                self._ahead.pop(key, None)
        elif message.op is Op.FREE:
            self._arena.free(U64.unpack(message.payload)[0])
        elif message.op is Op.OPEN_EPOCH:
            epoch_id, epoch = read_epoch(message)
            self._epochs[epoch_id] = epoch
        elif message.op is Op.CLOSE_EPOCH:
            self._close_epoch(U64.unpack(message.payload)[0])

    def _close_epoch(self, epoch: int) -> None:
        self._epochs.pop(epoch, None)
        self._requested = deque(key for key in self._requested if key[0] != epoch)
        self._ahead = {key: None for key in self._ahead if key[0] != epoch}
        for session in self._sessions:
            session.cancel_epoch(epoch)

    def _fail(self, pending: PendingBatch, error: Mapping[str, str]) -> None:
        pending.drop_incoming()
        self._line.send_json(Op.ERROR, {"epoch": pending.epoch, "batch": pending.batch, **error})

    def _cancel(self, session: ServerSession, pending: PendingBatch, error: Exception) -> None:
        """Cancel a batch at the session's server, and report `error` to the trainer instead."""
        del session.pending[pending.id]
        session.send(Cancel(session.name, [pending.id]))
        self._fail(pending, describe_error(error))

    # The directory ------------------------------------------------------------------------------

    def _look_up(self) -> None:
        self._directory.send(pack(request_header(Lookup(), 0), []))

    def _read_directory(self) -> None:
        """Read the directory's replies. Connect lost servers at their new addresses."""
        directory = self._directory
        try:
            if directory.pump():
                self._look_up()
            for header, arrays, _ in directory.receive():
                if "error" not in header:
                    servers = read_table(arrays, f"the directory at {directory.address}").servers
                    for session in self._sessions:
                        if not session.connection.is_up:
                            entry = servers.get(session.rank)
                            relocate(session.connection, entry, self._master.server_key)
        except Exception as error:
            directory.refuse(f"cannot be used: {error}")
            _log.warning("directory-refused", f"the directory: {error!r}")

    # Requests to servers ------------------------------------------------------------------------

    def _assign_requested(self) -> None:
        """Request from servers the batches that the trainer waits for, up to `depth` at once."""
        while self._requested and sum(len(s.pending) for s in self._sessions) < self._depth:
            key = epoch, batch = self._requested.popleft()
            server = self._epochs[epoch].plan.list_of(batch)
            drawn_by = next((s for s in self._sessions if key in s.ahead), None)
            batch_id = self._new_id() if drawn_by is None else drawn_by.ahead.pop(key)
            pending = PendingBatch(batch_id, epoch, batch, server, time.monotonic())
            self._assign(pending, drawn_by)

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _send_ahead(self) -> None:
        """Have servers draw the batches that the trainer will request, as many as they allow."""
        while self._ahead and not self._requested:
            key = epoch, batch = next(iter(self._ahead))
            server = self._epochs[epoch].plan.list_of(batch)
            sessions = self._usable() if server is None else [self._sessions[server]]
            sessions = [s for s in sessions if s.state == OPEN and len(s.ahead) < s.lookahead]
            if not sessions:
                return
            session = min(sessions, key=lambda s: len(s.pending) + len(s.ahead))
            del self._ahead[key]
            session.ahead[key] = self._new_id()
            session.request_batch(self._epochs[epoch], batch, session.ahead[key], ahead=True)

    def _usable(self) -> list[ServerSession]:
        return [s for s in self._sessions if s.state == OPEN and s.refused is None]

    def _assign(self, pending: PendingBatch, drawn_by: ServerSession | None = None) -> None:
        """Send a request to the server that has drawn its batch, or to the least busy one.

        If only one server can make the batch, it gets the request.
        """
        if pending.server is not None:
            session = self._sessions[pending.server]
        elif drawn_by is not None:
            session = drawn_by
        else:
            usable = self._usable() or [s for s in self._sessions if not s.is_lost]
            session = min(usable or self._sessions, key=lambda s: len(s.pending))
        if not session.pending and session.fault is None:
            session.progress = time.monotonic()
        if session.refused is not None:
            self._fail(pending, session.refused)
            return
        session.pending[pending.id] = pending
        if session.state == OPEN:
            session.request_batch(self._epochs[pending.epoch], pending.batch, pending.id)

    def _send_heartbeats(self) -> None:
        """Send heartbeats every second. Request the servers' addresses if one is unreachable."""
        now = time.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + _BEAT
        for session in self._sessions:
            if session.state == OPEN:
                session.send(Alive(session.name))
        if any(not session.connection.is_up for session in self._sessions):
            self._look_up()

    # Messages of servers ------------------------------------------------------------------------

    def _read_messages(self, session: ServerSession) -> None:
        """Process the messages of a server. An invalid one ends the connection to this server."""
        try:
            session.connect(self._arrays)
            for header, arrays, _ in session.connection.receive():
                self._on_message(session, header, arrays)
        except ConnectionError:
            raise  # the trainer has ended
        except Exception as error:
            if not isinstance(error, ProtocolError):
                _log.error("receiver-fault", f"{session.where}: {error!r}", exc_info=error)
            session.note_fault(error)
        session.acknowledge(_CREDITS // 4)
        if not session.connection.is_up and session.state != CLOSED:
            session.end()
            session.log_event("server-lost", session.connection.state())

    def _on_message(
        self, session: ServerSession, header: Mapping[str, Any], arrays: list[Array]
    ) -> None:
        message = session.read(header, arrays)
        if isinstance(message, Chunk):
            self._on_chunk(session, message, arrays[0])
        elif isinstance(message, LayoutEvent):
            session.add_layout(message.layout, self._layouts.add(read_json(arrays, "it")))
        elif isinstance(message, Failed):
            failed = session.pending.pop(message.batch_id, None)
            if failed is not None:
                self._fail(failed, session.describe(message.error))
        elif isinstance(message, ErrorText):
            self._on_error(session, message, header.get("id"))
        elif isinstance(message, Held):
            self._on_opened(session, message)
        elif isinstance(message, Progress):
            session.waiting_for = message.waiting_for

    def _on_chunk(self, session: ServerSession, chunk: Chunk, raw: Array) -> None:
        layout = session.layouts.get(chunk.layout)
        if session.state != OPEN or layout is None:
            raise ProtocolError(f"a chunk of layout {chunk.layout}, which it has not described")
        session.unacked_bytes += max(len(raw), LEAST_CHUNK)
        pending = session.pending.get(chunk.batch_id)
        if pending is None:  # of an epoch that was closed
            return
        if pending.incoming is None:
            if chunk.nbytes > self._batch_limit:  # before memory is taken for it
                error = session.too_large(pending, chunk.nbytes, self._batch_limit)
                self._cancel(session, pending, error)
                return
            pending.incoming = BatchReassembler(self._arena, chunk.nbytes)
        if pending.incoming.nbytes != chunk.nbytes:
            raise ProtocolError(f"{chunk.nbytes} bytes for a batch of {pending.incoming.nbytes}")
        is_complete = pending.incoming.write(chunk.offset, raw)
        session.arrived(pending)
        if is_complete:
            plan = self._epochs[pending.epoch].plan
            (first, last), (_, index) = plan.bounds(pending.batch), plan.key_of(pending.batch, 0)
            self._checks.check_batch(layout, pending.incoming.raw, index, last - first)
            to_trainer = self._line, pending.epoch, pending.batch, layout, chunk.extras
            pending.incoming.announce(*to_trainer)
            session.completed(pending)

    def _on_opened(self, session: ServerSession, reply: Held) -> None:
        session.opened(reply)
        cache_bytes = sum(s.cache_bytes for s in self._sessions)
        self._line.send_json(Op.READY, {"cache_bytes": cache_bytes})
        session.log_event("session-open", f"has the session, and {len(reply.held)} of its batches")
        held = set(reply.held)
        for pending in session.pending.values():
            if pending.id not in held:
                session.request_batch(self._epochs[pending.epoch], pending.batch, pending.id)

    def _on_error(self, session: ServerSession, error: ErrorText, request_id: int | None) -> None:
        if request_id == session.opening and session.state == OPENING:
            session.refused = session.describe(error)
            refused, session.pending = session.pending, {}
            for pending in refused.values():
                self._fail(pending, session.refused)
        elif session.state == OPEN:  # else the reply to a request for the session before
            session.note_error(error)

    # Failures -----------------------------------------------------------------------------------

    def _reassign(self) -> None:
        """Assign batches of lost servers to other servers, if these can make the batches."""
        for session in self._sessions if self._usable() else ():
            if session.is_lost or (session.fault is not None and session.state == CLOSED):
                movable = [p for p in session.pending.values() if p.server is None]
                if movable:
                    text = f"cannot be used: others make {len(movable)}"
                    session.log_event("batches-moved", text)
                for pending in movable:
                    del session.pending[pending.id]
                    self._assign(pending)

    def _expire(self) -> None:
        """Report an error for batches whose server has made no progress for too long."""
        now, directory = time.monotonic(), self._directory
        state = f"the directory at {directory.address} {directory.state()}"
        outage = None if directory.is_up else state
        for session in self._sessions:
            for pending in list(session.pending.values()):
                if now - max(pending.requested_at, session.progress) > self._timeout:
                    error = session.unavailable(pending, self._timeout, outage)
                    self._cancel(session, pending, error)

    def close(self) -> None:
        """Request the end of all sessions without waiting for replies, and close connections."""
        for session in self._sessions:
            if session.state != CLOSED:
                session.send(Close(session.name))
                session.connection.finish()
        for connection in (self._directory, *(s.connection for s in self._sessions)):
            connection.close()
        self._context.term()


def main() -> None:
    """Run a receiver process, which `start_up` connects to its parent, a trainer."""
    line, message = start_up()
    receiver: Receiver | None = None
    try:
        config, memory = message.json(), message.descriptors
        import_methods(config["methods"])
        arrays: dict[str, Array] = {}
        if config["has_arrays"]:
            shared = memory.pop()
            arrays = read_shared(shared)
            os.close(shared)
        receiver = Receiver(line, config, memory[0], arrays)
        message.close_descriptors()
        line.send_json(Op.READY, {})
        receiver.run()
    except (EOFError, ConnectionError):
        pass  # the trainer has closed the line
    except Exception as error:
        with contextlib.suppress(ConnectionError):
            line.send_json(Op.ERROR, {"epoch": None, "batch": None, **described_error(error)})
        sys.exit(1)
    finally:
        if receiver is not None:
            receiver.close()
