"""The receiver: a client's process that requests batches from graph servers.

For its trainer it is a sampler process: same control line, same arena. It requests each batch from
a server, with all that the batch depends on, and writes it into the arena as it arrives. If a
server is lost, its batches are requested from another one where any may make them, else from the
same one when it has registered again. Single-threaded; sleeps until a message arrives, at most
0.25 s. Configuration: see `khop.distributed.remote`.
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
from khop.channel.shared import read_shared
from khop.distributed.processes.child import start_up
from khop.distributed.remote.client.batch_checks import BatchChecks, BatchSchema
from khop.distributed.remote.client.reassembly import BatchReassembler, Layouts
from khop.distributed.remote.client.server_locator import ServerLocator
from khop.distributed.remote.client.server_session import (
    CLOSED,
    OPEN,
    OPENING,
    PendingBatch,
    ServerSession,
)
from khop.distributed.remote.encoding import read_text
from khop.distributed.remote.message_fields import LEAST_CHUNK
from khop.distributed.remote.session_messages import (
    Alive,
    Batch,
    Cancel,
    Chunk,
    Close,
    ErrorText,
    Failed,
    Held,
    LayoutEvent,
    Progress,
    SessionSpec,
)
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.protocol import describe_error
from khop.distributed.sampling.control_messages import Epoch, decode_sample_request, read_epoch
from khop.distributed.sampling.worker import described_error
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.sampler.methods.modules import import_methods
from khop.typing import Array

_CREDITS = 8 << 20
_BEAT = 1.0
_TICK_MS = 250
_MAX_FAULT = 1000
_log = log.get(__name__)


class Receiver:
    """Event loop of a receiver.

    Args:
        line: the control line.
        config: configuration from the trainer; see `khop.distributed.remote`.
        arena: descriptor of the arena's memory; left open.
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
        loader = {k: v for k, v in config["session"].items() if k != "loader"}
        session = {
            **loader,
            "session": f"{config['session']['loader']}/{config['number']}",
            "depth": self._depth,
            "timeout": self._timeout,
            "credits": _CREDITS,
        }
        self._spec = codec.from_json(SessionSpec, session, "a receiver's configuration")
        schema = codec.from_json(BatchSchema, config["schema"], "a receiver's configuration")
        self._checks = BatchChecks(schema, self._spec.pipeline)
        self._layouts = Layouts(line, self._checks.check_layout)
        credentials = config["credentials"]
        key_pair = None if credentials is None else KeyPair(**credentials)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        directory = Endpoint(**config["master"])
        self._locator = ServerLocator(
            Connection(self._context, key_pair, directory), directory.server_key
        )
        self._remotes = [
            ServerSession(self._spec, rank, Connection(self._context, key_pair))
            for rank in config["servers"]
        ]
        self._epochs: dict[int, Epoch] = {}
        self._requested: deque[tuple[int, int]] = deque()
        # Not used by an earlier receiver: a server may still have batches for it.
        self._ids = int.from_bytes(os.urandom(5), "little") << 22
        self._beat_at = 0.0

    def run(self) -> None:
        """Receive batches until the trainer closes the line.

        Raises:
            EOFError: the trainer closed it.
        """
        while True:
            while (message := self._line.receive()) is not None:
                self._handle(message)
            self._send_heartbeats()
            self._locator.relocate(self._remotes)
            for remote in self._remotes:
                self._read_messages(remote)
            self._reassign()
            self._assign_pending()
            self._expire()
            self._sleep()

    def _sleep(self) -> None:
        poller = zmq.Poller()
        poller.register(self._line.fileno(), zmq.POLLIN)
        sockets = [socket for remote in self._remotes for socket in remote.link.sockets]
        for socket in (*self._locator.sockets(), *sockets):
            poller.register(socket, zmq.POLLIN)
        poller.poll(_TICK_MS)

    # The trainer --------------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        if message.op is Op.SAMPLE:
            freed, requested = decode_sample_request(message.payload)
            for offset in freed:
                self._arena.free(offset)
            self._requested.extend(requested)
        elif message.op is Op.FREE:
            self._arena.free(U64.unpack(message.payload)[0])
        elif message.op is Op.OPEN_EPOCH:
            self._open_epoch(message)
        elif message.op is Op.CLOSE_EPOCH:
            self._close_epoch(U64.unpack(message.payload)[0])

    def _open_epoch(self, message: Message) -> None:
        epoch_id, epoch = read_epoch(message)
        self._epochs[epoch_id] = epoch

    def _close_epoch(self, epoch: int) -> None:
        self._epochs.pop(epoch, None)
        self._requested = deque(a for a in self._requested if a[0] != epoch)
        for remote in self._remotes:
            unwanted = [w for w in remote.pending.values() if w.epoch == epoch]
            for pending in unwanted:
                pending.drop_incoming()
                del remote.pending[pending.id]
            if unwanted:
                remote.send(Cancel(remote.name, [w.id for w in unwanted]))

    def _fail(self, pending: PendingBatch, error: Mapping[str, str]) -> None:
        pending.drop_incoming()
        self._line.send_json(Op.ERROR, {"epoch": pending.epoch, "batch": pending.batch, **error})

    # Requests to servers ------------------------------------------------------------------------

    def _assign_pending(self) -> None:
        """Request the trainer's batches from servers, at most `depth` in flight."""
        while self._requested and sum(len(r.pending) for r in self._remotes) < self._depth:
            epoch, batch = self._requested.popleft()
            self._ids += 1
            place = self._epochs[epoch].plan.list_of(batch)
            pending = PendingBatch(self._ids, epoch, batch, place, time.monotonic())
            self._assign(pending)

    def _assign(self, pending: PendingBatch) -> None:
        """Assign a batch to the server of its list of seeds, or to the least busy available one."""
        if pending.server is not None:
            remote = self._remotes[pending.server]
        else:
            able = [r for r in self._remotes if r.state == OPEN and r.refused is None]
            able = able or [r for r in self._remotes if not r.is_lost] or self._remotes
            remote = min(able, key=lambda r: len(r.pending))
        if not remote.pending and remote.fault is None:
            remote.progress = time.monotonic()
        remote.pending[pending.id] = pending
        if remote.refused is not None:
            del remote.pending[pending.id]
            self._fail(pending, remote.refused)
        elif remote.state == OPEN:
            self._request_batch(remote, pending)

    def _request_batch(self, remote: ServerSession, pending: PendingBatch) -> None:
        epoch = self._epochs[pending.epoch]
        run_key, index = epoch.key_of(pending.batch)
        columns = epoch.seeds_of(pending.batch)
        remote.send(Batch(remote.name, pending.id, index, run_key), [columns])

    def _send_heartbeats(self) -> None:
        """Send heartbeats every second; look up the servers if one is unreachable."""
        now = time.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + _BEAT
        for remote in self._remotes:
            if remote.state == OPEN:
                remote.send(Alive(remote.name))
        if any(not remote.link.is_up for remote in self._remotes):
            self._locator.look_up()

    # Messages of servers ------------------------------------------------------------------------

    def _read_messages(self, remote: ServerSession) -> None:
        """Process a server's messages. An invalid one ends its connection, and nothing else."""
        try:
            if remote.link.pump():
                remote.connected()
            if remote.may_open:
                remote.open(self._arrays)
            for header, arrays, _ in remote.link.receive():
                self._on_message(remote, header, arrays)
        except ConnectionError:
            raise  # the trainer has ended
        except Exception as error:
            if not isinstance(error, ProtocolError):
                _log.error("receiver-fault", f"{remote.where}: {error!r}", exc_info=error)
            # Later messages cannot be trusted either, so the connection is made again.
            remote.note_fault(str(error)[:_MAX_FAULT] or repr(error))
        remote.acknowledge(_CREDITS // 4)
        if not remote.link.is_up and remote.state != CLOSED:
            remote.end()
            remote.say("server-lost", remote.link.state())

    def _on_message(
        self, remote: ServerSession, header: Mapping[str, Any], arrays: list[Array]
    ) -> None:
        """Process a message of a server; raise ProtocolError if it is invalid."""
        message = remote.read(header, arrays)
        if isinstance(message, Chunk):
            self._take_chunk(remote, message, arrays[0])
        elif isinstance(message, LayoutEvent):
            layout = self._layouts.learn(read_text(arrays, "it"))
            remote.learn(message.number, layout)
        elif isinstance(message, Failed):
            self._take_failure(remote, message)
        elif isinstance(message, ErrorText):
            self._take_error(remote, message, header.get("id"))
        elif isinstance(message, Held):
            self._opened(remote, message)
        elif isinstance(message, Progress):
            remote.waiting_for = message.waiting_for

    def _take_chunk(self, remote: ServerSession, chunk: Chunk, raw: Array) -> None:
        layout = remote.layouts.get(chunk.layout)
        if remote.state != OPEN or layout is None:
            raise ProtocolError(f"a chunk of layout {chunk.layout}, which it has not described")
        remote.unacked_bytes += max(len(raw), LEAST_CHUNK)
        pending = remote.pending.get(chunk.batch_id)
        if pending is None:  # of an epoch that was closed
            return
        if pending.incoming is None:
            if chunk.nbytes > self._batch_limit:
                self._refuse_batch(remote, pending, chunk.nbytes)
                return
            pending.incoming = BatchReassembler(self._arena, chunk.nbytes)
        if pending.incoming.nbytes != chunk.nbytes:
            raise ProtocolError(f"{chunk.nbytes} bytes for a batch of {pending.incoming.nbytes}")
        is_whole = pending.incoming.write(chunk.offset, raw)
        remote.arrived(pending)
        if is_whole:
            plan = self._epochs[pending.epoch].plan
            (first, last), (_, index) = plan.bounds(pending.batch), plan.key_of(pending.batch, 0)
            self._checks.check_batch(layout, pending.incoming.raw, index, last - first)
            to_trainer = self._line, pending.epoch, pending.batch, layout, chunk.extras
            pending.incoming.announce(*to_trainer)
            remote.completed(pending)

    def _refuse_batch(self, remote: ServerSession, pending: PendingBatch, nbytes: int) -> None:
        """Fail a batch that is too large, before memory is taken for it."""
        del remote.pending[pending.id]
        remote.send(Cancel(remote.name, [pending.id]))
        error = ProtocolError(
            f"{remote.where} says that batch {pending.batch} has {nbytes} bytes, more than the "
            f"{self._batch_limit} that this loader takes: if that can be, pass a larger "
            "batch_limit in worker_options, or a smaller batch_size or fan-out"
        )
        self._fail(pending, describe_error(error))

    def _take_failure(self, remote: ServerSession, failed: Failed) -> None:
        pending = remote.pending.pop(failed.batch_id, None)
        if pending is not None:
            self._fail(pending, remote.describe(failed.error))

    def _opened(self, remote: ServerSession, reply: Held) -> None:
        remote.opened()
        remote.say("session-open", f"has the session, and {len(reply.held)} of its batches")
        at_hand = set(reply.held)
        for pending in remote.pending.values():
            if pending.id not in at_hand:
                self._request_batch(remote, pending)

    def _take_error(self, remote: ServerSession, error: ErrorText, number: int | None) -> None:
        if number == remote.opening and remote.state == OPENING:
            remote.refused = remote.describe(error)
            refused, remote.pending = remote.pending, {}
            for pending in refused.values():
                self._fail(pending, remote.refused)
        elif remote.state != OPEN:  # the reply to a request for the session before
            return
        elif error.type == "LookupError":  # it has ended the session, or was restarted
            remote.end()
        else:
            remote.complaint = f"{error.type}: {error.message[:_MAX_FAULT]}"

    # Failures -----------------------------------------------------------------------------------

    def _reassign(self) -> None:
        """Assign batches of lost servers to others that may make them."""
        able = [r for r in self._remotes if r.state == OPEN and r.refused is None]
        for remote in self._remotes if able else ():
            if remote.is_lost or (remote.fault is not None and remote.state == CLOSED):
                movable = [w for w in remote.pending.values() if w.server is None]
                if movable:
                    remote.say("batches-moved", f"cannot be used: others make {len(movable)}")
                for pending in movable:
                    del remote.pending[pending.id]
                    self._assign(pending)

    def _expire(self) -> None:
        """Fail batches whose server has made no progress for too long."""
        now = time.monotonic()
        for remote in self._remotes:
            for pending in list(remote.pending.values()):
                if now - max(pending.requested_at, remote.progress) > self._timeout:
                    del remote.pending[pending.id]
                    remote.send(Cancel(remote.name, [pending.id]))
                    self._fail(pending, describe_error(self._unavailable(remote, pending)))

    def _unavailable(self, remote: ServerSession, pending: PendingBatch) -> Exception:
        """Return the error of a batch that timed out."""
        waited = f"{time.monotonic() - pending.requested_at:.1f} s (timeout is {self._timeout:g} s)"
        if remote.fault is not None:
            return ProtocolError(
                f"{remote.where} has not made batch {pending.batch} in {waited}: what it sent "
                f"could not be taken in, {remote.num_faults} times without a batch between; the "
                f"last time: {remote.fault}. Its khop is another, is damaged, or is not khop"
            )
        state = remote.link.state()
        outage = self._locator.outage() if remote.link.endpoint is None else None
        if outage is not None:
            state += f"; {outage}"
        elif remote.waiting_for:
            state += f", and says that {remote.waiting_for[:_MAX_FAULT]}"
        elif remote.complaint:
            state += f", and has refused a request: {remote.complaint}"
        return PartitionUnavailableError(
            f"{remote.where} has not made batch {pending.batch} in {waited}: it {state}"
        )

    def close(self) -> None:
        """Close the sessions of servers that can be reached at once, and all connections."""
        for remote in self._remotes:
            if remote.state != CLOSED:
                remote.send(Close(remote.name))
                remote.link.finish()
        self._locator.close()
        for remote in self._remotes:
            remote.link.close()
        self._context.term()


def main() -> None:
    """Run a receiver for the trainer at the other end of the control line."""
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
        for descriptor in memory:
            os.close(descriptor)
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
