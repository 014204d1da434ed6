"""A graph server's answers to requests of several users, without sockets, checked at each step.

Everything runs as in a server (frames, turns, directory, sessions), except sockets and processes.
Replies are collected, and time is moved by hand. Sessions wait for a partition that no server has,
so no sampler is started. These checks follow each step:

- Each sender has a reply, an error, or nothing where no reply is due yet, and no other's reply.
- State of a client or session has changed only by its own secret, its own connection, or time.
- Sums and bounds hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from khop import codec
from khop.channel.message import pack, unpack
from khop.distributed.remote.messages import (
    Addresses,
    Goodbye,
    Lookup,
    Ping,
    Publish,
    RegisterClient,
    RegisterServer,
    Statistics,
    WaitFor,
    incarnation_of,
    read_reply,
)
from khop.distributed.remote.server.control_handler import ControlHandler
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.server.directory import Directory
from khop.distributed.remote.server.published_values import PublishedValues, _size_of as size_of
from khop.distributed.remote.server.session_environment import SessionEnvironment
from khop.distributed.remote.server.session_table import SessionTable
from khop.distributed.remote.server.validation import SessionLimits, SessionValidator
from khop.distributed.remote.session_messages import (
    Acknowledge,
    Alive,
    Batch,
    Cancel,
    Close,
    Open,
    SessionSpec,
)
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.protocol import request_header
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.sampler.rows.collect import CollectSpec
from khop.sampler.spec import SamplingSpec
from khop.storage.folder import PartitionFolder
from support.fuzz.mutations import bytes_changed, json_changed

RANKS = 3
SECRETS = ["red", "green", "blue"]
QUIET = {"batch", "cancel", "ack"}

SERVER = Source((0, b"server"), "server", is_server=True, is_proven=True)
CLIENTS = [
    Source((0, f"{user}{i}".encode()), user, has_own_key=True) for user in "abc" for i in range(2)
]
SOURCES = [SERVER, *CLIENTS]


class ControlPlane:
    """A graph server without sockets, its users, and the state that both must have.

    Args:
        root: a folder of two partitions or more. The server has only the first.
        num_clients: see `Directory`.
    """

    def __init__(self, root: Path, num_clients: int = RANKS) -> None:
        self.now = 1000.0
        folder = PartitionFolder(root)
        self.num_clients, self.num_parts = num_clients, folder.num_parts
        self.directory = Directory(
            2, num_clients, folder.num_parts, "print", lease=30.0, clock=lambda: self.now
        )
        counters = ServerCounters(0, [0], "", lambda: self.sessions.states())  # noqa: PLW0108
        environment = SessionEnvironment(
            {}, [0], folder.num_parts, {}, None, counters.batch, counters.sampler_restarted
        )
        limits = SessionLimits(buffer_bytes=1 << 30, sessions=8)
        self.sessions = SessionTable(SessionValidator(folder.meta), environment, counters, limits)
        self.handler = ControlHandler(self.sessions, self.directory, counters, 0, self._send)
        self.replies: list[tuple[bytes, dict[str, Any]]] = []
        edges, nodes = folder.meta.edge_types, folder.meta.node_types
        sampling = SamplingSpec(((3, 2),) * len(edges), with_edge=True)
        collect = CollectSpec([[] for _ in nodes], [[] for _ in edges], [True] * len(edges))
        self.pipeline = PipelineSpec(sampling, collect)
        self.waiting: list[tuple[bytes, int]] = []
        self.numbers = 0

    def close(self) -> None:
        """End the server."""
        self.sessions.close()

    def _send(self, front: int, peer: bytes, frames: Any) -> None:
        header, _ = unpack([bytes(frame) for frame in frames])
        self.replies.append((peer, header))

    # What can happen ----------------------------------------------------------------------------

    def request(self, random: Random) -> Any:
        """Return a random valid request, and the arrays that it carries."""
        rank, secret = random.randrange(RANKS), random.choice(SECRETS)
        session = random.choice(["x", "y"])
        addresses = Addresses(f"tcp://h:{random.randrange(1, 4)}")
        spec = SessionSpec(
            session, secret, "client", self.pipeline, 1, 1 << 16, 2, 4, None, 1, 5.0, 1 << 16
        )
        value = [np.frombuffer(json.dumps([rank] * random.choice((1, 9))).encode(), np.uint8)]
        seeds = [np.zeros((1, random.choice((1, 4))), np.int64)]
        ids = random.sample(range(6), random.randrange(4))
        ranks = random.sample(range(RANKS), random.randrange(RANKS))
        count, parts = self.num_clients, self.num_parts
        made: list[tuple[Any, list[Any]]] = [
            (RegisterServer(random.randrange(2), secret, 2, count, [rank % parts], addresses, "h",
                              1, "print", {rank: incarnation_of(secret)}), []),
            (RegisterClient(rank, secret, 2, count, f"c{rank}", 7), []),
            (RegisterClient(rank, secret, 2, count, f"c{rank}", 7), []),
            (Goodbye(random.choice(("client", "server")), rank, secret), []),
            (Publish(rank, secret, random.choice("pq")), value),
            (WaitFor(rank, secret, random.choice("pq"), ranks, random.choice((0.0, 1.0, 9.0))),
             []),
            (Open(spec, ids, []), []),
            (Open(spec, ids, []), []),
            (Batch(session, random.randrange(6), 1, 7), seeds),
            (Cancel(session, ids), []),
            (Acknowledge(session, 1 << 12), []),
            (Alive(session), []),
            (Close(session), []),
            (Lookup(), []), (Statistics(), []), (Ping(), []),
        ]  # fmt: skip
        return random.choice(made)

    def say(self, source: Source, request: Any, arrays: list[Any]) -> None:
        """Send a request from `source`, and check the answer."""
        self.numbers += 1
        self.frames(source, pack(request_header(request, self.numbers), arrays), request)

    def say_nonsense(self, random: Random, source: Source) -> None:
        """Send a request with a random fault, or none, from `source`, and check the answer."""
        self.numbers += 1
        request, arrays = self.request(random)
        header: Any = request_header(request, self.numbers)
        for _ in range(random.choice((1, 1, 2, 4))):
            header = json_changed(random, header)
        frames = [bytes(f) for f in pack(header if isinstance(header, dict) else {}, arrays)]
        if random.random() < 0.3:
            place = random.randrange(len(frames))
            frames[place] = bytes_changed(random, frames[place], [b"[" * 900])
        self.frames(source, frames, None)

    def pass_time(self, seconds: float) -> None:
        """Move the time on by some seconds, and let the server process it."""
        self.now += seconds
        for session in self.sessions._sessions.values():
            session.lease.heard_at -= seconds
        self._checked(None, None, self.server_ticks)

    def server_ticks(self) -> None:
        """Do the work that a server's loop does several times per second."""
        self.directory.tick()
        self.sessions.tick()
        self.sessions.stream()

    def frames(self, source: Source, frames: list[Any], request: Any) -> None:
        """Send the frames of `request` to the server, and check the answer."""

        def answer() -> None:
            assert self.handler.put(source, frames, sum(map(len, frames)))
            self.handler.process_queued()

        self._checked(source, frames, answer)
        replies, self.replies = self.replies, []
        mine = [h for peer, h in replies if peer == source.connection[1]]
        if request is not None:
            self._check_replies(source, request, mine)
        for peer, header in replies:  # others that have waited
            if peer != source.connection[1]:
                assert "ranks" in header, header

    def _check_replies(self, source: Source, request: Any, mine: list[dict[str, Any]]) -> None:
        answers = [h for h in mine if h.get("id") == self.numbers]
        if isinstance(request, WaitFor):
            assert len(answers) <= 1
        elif request.op in QUIET:
            assert all("error" in h for h in answers), (request, mine)
        else:
            assert len(answers) == 1, (request, mine)
            if "error" not in answers[0]:
                read_reply(request, answers[0], "it")

    # What may change ----------------------------------------------------------------------------

    def _checked(self, source: Source | None, frames: list[Any] | None, do: Any) -> None:
        clients, sessions = self._clients(), self._sessions()
        do()
        said = b"" if not frames else b" ".join(map(bytes, frames))
        self._check_clients(clients, said, frames is None)
        self._check_sessions(sessions, source, said, frames is None)
        directory = self.directory
        peers = directory._clients.values()
        assert directory.values._nbytes == sum(peer.nbytes for peer in peers)
        for peer in peers:
            assert peer.nbytes == sum(size_of(*item) for item in peer.published.items())
        self._check_waiting(directory.values)
        assert not self.handler.has_requests
        assert len(self.sessions._sessions) <= 8
        assert set(self.sessions._opened.values()) <= set(self.sessions._sessions.values())
        json.dumps(codec.to_json(directory.lookup()))

    def _check_waiting(self, values: PublishedValues) -> None:
        """Check that each waiting request is counted, and that a value is missing for it."""
        clients = self.directory._clients
        for (name, rank), waiters in values._waiting.items():
            for waiter in waiters:
                assert waiter.name == name and waiter.ranks[waiter.num_ready] == rank
                missing = rank not in clients or name not in clients[rank].published
                assert (
                    missing
                    or clients[rank].lease.heard_at >= waiter.since
                    or (values._value(rank, waiter) is None)
                )
        counted = sum(map(len, values._waiting.values()))
        assert counted == values._num_waiting.total() < 2000

    def _clients(self) -> dict[int, Any]:
        return {
            rank: (peer.entry.incarnation, peer.gone, dict(peer.published), peer.lease.heard_at)
            for rank, peer in self.directory._clients.items()
        }

    def _check_clients(self, before: dict[int, Any], said: bytes, time_passed: bool) -> None:
        after = self._clients()
        for rank, (incarnation, gone, published, heard) in before.items():
            own = [s for s in SECRETS if incarnation_of(s) == incarnation]
            spoken = any(secret.encode() in said for secret in own)
            if rank not in after:
                assert time_passed and self.num_clients == 0
                continue
            now_incarnation, now_gone, now_published, _ = after[rank]
            if now_incarnation != incarnation:
                assert not time_passed
                assert gone or self.now - heard > 1.5
            elif not spoken:
                assert now_published == published
                assert now_gone == gone or (time_passed and now_gone)

    def _sessions(self) -> dict[Any, Any]:
        return {
            key: (session.opened_by, sorted(session._known()), session.spec)
            for key, session in self.sessions._sessions.items()
        }

    def _check_sessions(
        self, before: dict[Any, Any], source: Source | None, said: bytes, time_passed: bool
    ) -> None:
        after = self._sessions()
        for key, was in before.items():
            is_own = source is not None and was[0][0] == source.connection
            if after.get(key) != was:
                assert time_passed or is_own or key[1].encode() in said, (key, said)
