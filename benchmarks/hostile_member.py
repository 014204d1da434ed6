"""Attacks of a hostile member of a job, for `members.py`, which describes them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from khop.channel.message import pack, unpack
from khop.codec import to_json
from khop.distributed.remote.messages import (
    Addresses,
    Goodbye,
    Publish,
    RegisterClient,
    RegisterServer,
    Statistics,
    ToOriginalIds,
    WaitFor,
)
from khop.distributed.remote.session_messages import Cancel, Close, Open, SessionSpec
from khop.distributed.rpc.keys import ClientKeys
from khop.distributed.rpc.protocol import PROTOCOL, Induce, Sample, request_header
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.sampler.methods import Labor
from khop.sampler.requests import HopRequest


def session_of(name: str, spec: PipelineSpec) -> SessionSpec:
    return SessionSpec(
        name, f"secret of {name}", "c", spec, 1, 64 << 20, 2, 64, None, 3, 60.0, 8 << 20
    )


class Member:
    """A connection with a client's key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: ClientKeys):
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndtimeo = self.socket.rcvtimeo = 2000
        self.socket.curve_serverkey = keys.server_key.encode()
        own = keys.credentials()
        self.socket.curve_publickey, self.socket.curve_secretkey = (
            own.public.encode(),
            own.secret.encode(),
        )
        self.socket.connect(address)

    def send(self, request: Any, arrays: Any = ()) -> None:
        """Send a request, or a header that is not a valid request."""
        header = request if isinstance(request, dict) else request_header(request, 1)
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(pack(header, list(arrays)))

    def ask(self, request: Any, arrays: Any = ()) -> tuple[dict[str, Any], list[Any]]:
        """Send a request and return the reply, or an empty reply after 2 s."""
        self.send(request, arrays)
        try:
            return unpack(self.socket.recv_multipart())
        except zmq.Again:
            return {}, []


def _text(content: str) -> Any:
    return np.frombuffer(content.encode(), np.uint8)


def nested(members: list[Member], spec: PipelineSpec) -> None:
    """Publish values nested 985 deep, and request them."""
    one = members[0]
    one.ask(RegisterClient(5, "h", 1, 0, "hostile", 1))
    one.ask(Publish(5, "h", "n"), [_text("[" * 985 + "]" * 985)])
    one.ask(WaitFor(5, "h", "n", [5, 6], 0.1))
    one.ask(
        {"op": "publish", "protocol": PROTOCOL, "id": 1, "v": json.loads("[" * 500 + "]" * 500)}
    )


def doubled(members: list[Member], spec: PipelineSpec) -> None:
    """Open a session that names an attribute twice."""
    session = to_json(session_of("hostile", spec))
    session["pipeline"]["collect"]["node_attrs"] = [["x", "x"]]
    header = {"op": "open", "protocol": PROTOCOL, "id": 1, "outstanding": [], "names": []}
    members[0].ask({**header, "spec": session})


def servers(members: list[Member], spec: PipelineSpec) -> None:
    """Register as server 0, say goodbye for all members, and register clients with long names."""
    one = members[0]
    addresses = Addresses("tcp://127.0.0.1:1")
    one.ask(RegisterServer(0, "h", 1, 0, [0], addresses, "h", 1, "f", {0: "a"}))
    for rank in range(3):
        one.ask(Goodbye("client", rank, "h"))
        one.ask(Goodbye("server", rank, "h"))
    for rank in range(100, 400):
        one.ask(RegisterClient(rank, "h", 1, 0, "\N{PILE OF POO}" * 64, 1))


def unread(members: list[Member], spec: PipelineSpec) -> None:
    """Request all published values, and read no reply."""
    one, other = members[:2]
    for rank in range(10, 50):
        one.ask(RegisterClient(rank, "h", 1, 0, "hostile", 1))
        one.ask(Publish(rank, "h", "big"), [_text('"' + "x" * 60_000 + '"')])
    request = WaitFor(10, "h", "big", list(range(10, 50)), 0.0)
    for _ in range(5000):
        other.send(request)


def crowd(members: list[Member], spec: PipelineSpec) -> None:
    """Send many requests over many connections at once."""
    ids = np.zeros(1 << 17, np.int64)
    for member in members:
        for _ in range(8):
            member.send(ToOriginalIds(0), [ids])
            member.send(Statistics())
    for member in members:
        for _ in range(16):
            with contextlib.suppress(zmq.Again):
                member.socket.recv_multipart()


def sessions(members: list[Member], spec: PipelineSpec) -> None:
    """Open, cancel and close the sessions of other clients."""
    one = members[0]
    _, arrays = one.ask(Statistics())
    names = [s["session"] for s in json.loads(arrays[0].tobytes())["sessions"]] if arrays else []
    for name in [*names, "mine"]:
        one.ask(Open(session_of(name, spec), [], []))
        one.send(Cancel(name, list(range(64))))
        one.ask(Close(name))


def _send_of_part(member: Member, request: Any, arrays: Any) -> None:
    with contextlib.suppress(zmq.Again):
        member.socket.send_multipart(pack(request_header(request, 1, part=0), list(arrays)))


def _drain(members: list[Member]) -> None:
    time.sleep(0.05)
    for member in members:
        while member.socket.poll(0):
            member.socket.recv_multipart()


def labor(members: list[Member], spec: PipelineSpec) -> None:
    """Draw from the hub by LABOR. With one part, ids do not change, and the hub is node 0."""
    hop = HopRequest(1, False, False, 7, method=Labor([1]).spec())
    for member in members:
        for _ in range(20):
            _send_of_part(member, Sample(0, [], hop), [np.zeros(2000, np.int64)])
    _drain(members)


def excluded(members: list[Member], spec: PipelineSpec) -> None:
    """Draw from the hub around 100,000 excluded edges."""
    pairs = [np.zeros(100_000, np.int64), np.arange(100_000)]
    request = Sample(0, ["excluded"], HopRequest(1, False, False, 7))
    for member in members:
        for _ in range(4):
            _send_of_part(member, request, [np.zeros(400, np.int64), *pairs])
    _drain(members)


def induced(members: list[Member], spec: PipelineSpec) -> None:
    """Search the hub's row for edges among no nodes."""
    for member in members:
        for _ in range(20):
            arrays = [np.zeros(4000, np.int64), np.zeros(0, np.int64)]
            _send_of_part(member, Induce(0, [], False), arrays)
    _drain(members)


def opens(members: list[Member], spec: PipelineSpec) -> None:
    """Open sessions that exceed the limits, so that the server starts no sampler."""
    session = to_json(session_of("hostile", spec))
    session["pipeline"]["sampling"]["fanouts"] = [list(range(1000))] * len(spec.sampling.fanouts)
    session["buffer_bytes"] = 1 << 50
    header = {"op": "open", "protocol": PROTOCOL, "id": 1, "outstanding": [], "names": []}
    for member in members:
        for _ in range(64):
            member.send({**header, "spec": session, "outstanding": list(range(60_000))})
    _drain(members)


def waits(members: list[Member], spec: PipelineSpec) -> None:
    """Wait for values of many clients, with the largest number of registered clients."""
    one = members[0]
    for rank in range(500, 700):
        one.send(RegisterClient(rank, "h", 1, 0, "hostile", 1))
    for index in range(500):
        one.send(WaitFor(500, "h", f"n{index % 8}", list(range(2048)), 10.0))
    for _ in range(200):
        one.send(Publish(500, "h", "m"), [_text("1")])
    _drain(members)


ATTACKS: dict[str, Callable[[list[Member], PipelineSpec], None]] = {
    f.__name__: f
    for f in (
        *(nested, doubled, servers, unread, crowd, sessions),
        *(labor, excluded, induced, opens, waits),
    )
}


def attack(name: str, address: str, keys: ClientKeys, spec: PipelineSpec, seconds: float) -> None:
    """Repeat an attack for some seconds."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    count = 40 if name == "crowd" else 2
    members = [Member(context, address, keys) for _ in range(count)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ATTACKS[name](members, spec)
    context.destroy(0)
