"""The receiver: a process of a client that asks graph servers for batches, as a sampler makes them.

To its trainer it is a sampler process: same control line, same ring. What it is asked for it asks
of a server, with all that the batch depends on, and writes it into the ring as it arrives. Batches
of a server that is lost are asked of another if they may be made by any, else of the same one when
the directory knows it again. Single-threaded; sleeps until somebody speaks, or a second is over.
Configuration: see `khop.distributed.remote`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import zmq

from khop import codec
from khop.channel.control import ONE, ControlLine, Message, Op
from khop.channel.message import pack
from khop.channel.ring import RingWriter
from khop.channel.shared import read_shared
from khop.distributed.asked import OpenedEpoch, read_asked, read_epoch
from khop.distributed.child import start_up
from khop.distributed.remote.addresses import endpoint_of
from khop.distributed.remote.incoming import Incoming, Layouts
from khop.distributed.remote.link import Link
from khop.distributed.remote.messages import (
    Alive,
    Batch,
    Cancel,
    Close,
    Lookup,
    SessionSpec,
    read_table,
)
from khop.distributed.remote.remote_session import CLOSED, OPEN, OPENING, RemoteSession, Wanted
from khop.distributed.transport import Credentials, Endpoint
from khop.distributed.wire import describe_error, request_header
from khop.distributed.worker import described_error
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.typing import Array

_CREDITS = 8 << 20
_BEAT = 1.0
_TICK_MS = 250


class Receiver:
    """Runs the receiver's loop.

    Args:
        line: the control line.
        config: from the trainer; see `khop.distributed.remote`.
        ring: descriptor of the ring's memory; left open.
        arrays: weights of negatives, by name.
    """

    def __init__(
        self, line: ControlLine, config: Mapping[str, Any], ring: int, arrays: Mapping[str, Array]
    ) -> None:
        self._line = line
        self._ring = RingWriter(ring)
        self._layouts = Layouts(line)
        self._arrays = dict(arrays)
        self._timeout: float = config["timeout"]
        self._depth: int = config["depth"]
        loader = {k: v for k, v in config["session"].items() if k != "loader"}
        session = {
            **loader,
            "session": f"{config['session']['loader']}/{config['number']}",
            "depth": self._depth,
            "timeout": self._timeout,
            "credits": _CREDITS,
        }
        self._spec = codec.from_json(SessionSpec, session, "a receiver's configuration")
        credentials = config["credentials"]
        given = None if credentials is None else Credentials(**credentials)
        self._server_key = config["master"]["server_key"]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._directory = Link(self._context, given, Endpoint(**config["master"]))
        self._remotes = [
            RemoteSession(self._spec, rank, Link(self._context, given))
            for rank in config["servers"]
        ]
        self._epochs: dict[int, OpenedEpoch] = {}
        self._asked: deque[tuple[int, int]] = deque()
        # Of no receiver before: a server may still have batches for one.
        self._ids = int.from_bytes(os.urandom(5), "little") << 22
        self._beat_at = 0.0

    def run(self) -> None:
        """Brings batches until the trainer closes the line.

        Raises:
            EOFError: the trainer closed it.
        """
        while True:
            while (message := self._line.receive()) is not None:
                self._obey(message)
            self._beat()
            self._listen_to_directory()
            for remote in self._remotes:
                self._listen(remote)
            self._move_lost()
            self._ask()
            self._expire()
            self._sleep()

    def _sleep(self) -> None:
        poller = zmq.Poller()
        poller.register(self._line.fileno(), zmq.POLLIN)
        for link in (self._directory, *(remote.link for remote in self._remotes)):
            for socket in link.sockets():
                poller.register(socket, zmq.POLLIN)
        poller.poll(_TICK_MS)

    # The trainer --------------------------------------------------------------------------------

    def _obey(self, message: Message) -> None:
        if message.op is Op.SAMPLE:
            freed, asked = read_asked(message.payload)
            for offset in freed:
                self._ring.free(offset)
            self._asked.extend(asked)
        elif message.op is Op.FREE:
            self._ring.free(ONE.unpack(message.payload)[0])
        elif message.op is Op.OPEN_EPOCH:
            self._open_epoch(message)
        elif message.op is Op.CLOSE_EPOCH:
            self._close_epoch(ONE.unpack(message.payload)[0])

    def _open_epoch(self, message: Message) -> None:
        opened = read_epoch(message)
        self._epochs[opened.number] = opened

    def _close_epoch(self, epoch: int) -> None:
        self._epochs.pop(epoch, None)
        self._asked = deque(a for a in self._asked if a[0] != epoch)
        for remote in self._remotes:
            unwanted = [w for w in remote.wanted.values() if w.epoch == epoch]
            for wanted in unwanted:
                wanted.drop_incoming()
                del remote.wanted[wanted.id]
            if unwanted:
                remote.send(Cancel(remote.name, [w.id for w in unwanted]))

    def _fail(self, wanted: Wanted, error: Mapping[str, Any]) -> None:
        wanted.drop_incoming()
        self._line.send_json(Op.ERROR, {"epoch": wanted.epoch, "batch": wanted.batch, **error})

    # Asking servers -----------------------------------------------------------------------------

    def _ask(self) -> None:
        """Asks for what the trainer wants, as much at a time as was agreed."""
        while self._asked and sum(len(r.wanted) for r in self._remotes) < self._depth:
            epoch, batch = self._asked.popleft()
            self._ids += 1
            place = self._epochs[epoch].plan.list_of(batch)
            wanted = Wanted(self._ids, epoch, batch, place, time.monotonic())
            self._assign(wanted)

    def _assign(self, wanted: Wanted) -> None:
        """Gives a batch to the server that shall make it, or to the least busy that can."""
        if wanted.server is not None:
            remote = self._remotes[wanted.server]
        else:
            able = [r for r in self._remotes if r.state == OPEN and r.refused is None]
            able = able or [r for r in self._remotes if not r.is_lost] or self._remotes
            remote = min(able, key=lambda r: len(r.wanted))
        if not remote.wanted:
            remote.progress = time.monotonic()
        remote.wanted[wanted.id] = wanted
        if remote.refused is not None:
            del remote.wanted[wanted.id]
            self._fail(wanted, remote.refused)
        elif remote.state == OPEN:
            self._order(remote, wanted)

    def _order(self, remote: RemoteSession, wanted: Wanted) -> None:
        epoch = self._epochs[wanted.epoch]
        first, last = epoch.plan.bounds(wanted.batch)
        columns = np.ascontiguousarray(epoch.columns[:, first:last])
        remote.send(Batch(remote.name, wanted.id, wanted.batch, epoch.run_key), [columns])

    def _beat(self) -> None:
        """Every second: tells servers that the client lives, asks where lost ones are."""
        now = time.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + _BEAT
        for remote in self._remotes:
            if remote.state == OPEN:
                remote.send(Alive(remote.name))
        if any(not remote.link.is_up for remote in self._remotes):
            self._look_up()

    def _look_up(self) -> None:
        self._directory.send(pack(request_header(Lookup(), 0), []))

    def _listen_to_directory(self) -> None:
        if self._directory.pump():
            self._look_up()
        for header, arrays, _ in self._directory.receive():
            if "error" in header:
                continue
            table = read_table(arrays, "the directory")
            for remote in self._remotes:
                entry = table.servers.get(remote.rank)
                if entry is not None and not remote.link.is_up:
                    remote.link.relocate(endpoint_of(entry, self._server_key))

    # Hearing servers ----------------------------------------------------------------------------

    def _listen(self, remote: RemoteSession) -> None:
        if remote.link.pump():
            remote.open(self._arrays)
        try:
            for header, arrays, _ in remote.link.receive():
                self._take_in(remote, header, arrays)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            # What follows cannot be trusted either: begins anew.
            remote.link.refuse(f"it sent what is none of its business: {error!r}")
        remote.acknowledge(_CREDITS // 4)
        if not remote.link.is_up and remote.state != CLOSED:
            remote.end()
            remote.say("server-lost", remote.link.state())

    def _take_in(
        self, remote: RemoteSession, header: Mapping[str, Any], arrays: list[Array]
    ) -> None:
        event = header.get("event")
        if event == "chunk":
            self._take_chunk(remote, header, arrays)
        elif event == "layout":
            content = json.loads(bytes(arrays[0].data))
            remote.layouts[int(header["number"])] = self._layouts.learn(content)
        elif event == "failed":
            wanted = remote.wanted.pop(header["batch_id"], None)
            if wanted is not None:
                where = f"\n\nRaised on graph server {remote.rank} at {remote.link.address}."
                self._fail(wanted, _described(header["error"], where))
        elif "error" in header:
            self._take_error(remote, header)
        elif "held" in header and header.get("id") == remote.opening:
            self._opened(remote, header["held"])
        elif "made" in header:
            if header["made"] != remote.made:
                remote.made, remote.progress = header["made"], time.monotonic()
            remote.waiting_for = header.get("waiting_for")

    def _take_chunk(
        self, remote: RemoteSession, header: Mapping[str, Any], arrays: list[Array]
    ) -> None:
        raw = arrays[0]
        remote.progress = time.monotonic()
        remote.to_acknowledge += max(len(raw), 4096)
        wanted = remote.wanted.get(header["batch_id"])
        if wanted is None:  # of an epoch that was closed
            return
        layout = remote.layouts[header["layout"]]
        if wanted.incoming is None:
            wanted.incoming = Incoming(self._ring, header["nbytes"])
        if wanted.incoming.write(header["offset"], raw):
            del remote.wanted[wanted.id]
            extras = header["extras"]
            wanted.incoming.announce(self._line, wanted.epoch, wanted.batch, layout, extras)

    def _opened(self, remote: RemoteSession, held: list[int]) -> None:
        remote.state = OPEN
        remote.refused = None
        remote.say("session-open", f"has the session, and {len(held)} of its batches")
        remote.progress = time.monotonic()
        at_hand = set(held)
        for wanted in remote.wanted.values():
            if wanted.id not in at_hand:
                self._order(remote, wanted)

    def _take_error(self, remote: RemoteSession, header: Mapping[str, Any]) -> None:
        error = header["error"]
        if remote.state == OPENING:
            if header.get("id") != remote.opening:  # to what was asked of the session before
                return
            where = f"\n\nRaised on graph server {remote.rank} at {remote.link.address}."
            remote.refused = _described(error, where)
            refused, remote.wanted = remote.wanted, {}
            for wanted in refused.values():
                self._fail(wanted, remote.refused)
        elif error.get("type") == "LookupError":  # it has ended the session, or begun anew
            remote.open(self._arrays)

    # What goes wrong ----------------------------------------------------------------------------

    def _move_lost(self) -> None:
        """Gives batches of lost servers to others that may make them."""
        able = [r for r in self._remotes if r.state == OPEN]
        for remote in self._remotes if able else ():
            if remote.is_lost:
                movable = [w for w in remote.wanted.values() if w.server is None]
                if movable:
                    remote.say("batches-moved", f"is lost: others make {len(movable)}")
                for wanted in movable:
                    del remote.wanted[wanted.id]
                    self._assign(wanted)

    def _expire(self) -> None:
        """Fails batches whose server has not got on for too long."""
        now = time.monotonic()
        for remote in self._remotes:
            for wanted in list(remote.wanted.values()):
                if now - max(wanted.asked, remote.progress) > self._timeout:
                    del remote.wanted[wanted.id]
                    remote.send(Cancel(remote.name, [wanted.id]))
                    self._fail(wanted, describe_error(self._unavailable(remote, wanted)))

    def _unavailable(self, remote: RemoteSession, wanted: Wanted) -> PartitionUnavailableError:
        state = remote.link.state()
        if remote.link.endpoint is None and not self._directory.is_up:
            state += f"; the directory at {self._directory.address} {self._directory.state()}"
        elif remote.waiting_for:
            state += f", and says that {remote.waiting_for}"
        return PartitionUnavailableError(
            f"graph server {remote.rank} at {remote.link.address} has not made batch "
            f"{wanted.batch} in {time.monotonic() - wanted.asked:.1f} s: it {state}"
        )

    def close(self) -> None:
        """Tells servers that the sessions are over, as far as they can be reached at once."""
        for remote in self._remotes:
            if remote.state != CLOSED:
                remote.send(Close(remote.name))
                remote.link.finish()
        self._directory.close()
        for remote in self._remotes:
            remote.link.close()
        self._context.term()


def _described(error: Mapping[str, Any], where: str) -> dict[str, str]:
    """An error of a server, as the trainer rebuilds it."""
    return {
        "type": str(error.get("type"))[:256],
        "message": str(error.get("message"))[:8000] + where,
        "traceback": str(error.get("traceback") or "")[-8000:],
    }


def main() -> None:
    """Runs a receiver for the trainer at the other end of the control line."""
    line, message = start_up()
    receiver: Receiver | None = None
    try:
        config, memory = message.json(), message.descriptors
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
