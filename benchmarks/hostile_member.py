"""What a hostile member of a job does, for `members.py`, which names it all."""

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
        """Sends a request, or a header that is none."""
        header = request if isinstance(request, dict) else request_header(request, 1)
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(pack(header, list(arrays)))

    def ask(self, request: Any, arrays: Any = ()) -> tuple[dict[str, Any], list[Any]]:
        """The reply; empty if none comes."""
        self.send(request, arrays)
        try:
            return unpack(self.socket.recv_multipart())
        except zmq.Again:
            return {}, []


def _text(content: str) -> Any:
    return np.frombuffer(content.encode(), np.uint8)


def nested(members: list[Member], spec: PipelineSpec) -> None:
    """See the module; so are the others."""
    one = members[0]
    one.ask(RegisterClient(5, "h", 1, 0, "hostile", 1))
    one.ask(Publish(5, "h", "n"), [_text("[" * 985 + "]" * 985)])
    one.ask(WaitFor(5, "h", "n", [5, 6], 0.1))
    one.ask(
        {"op": "publish", "protocol": PROTOCOL, "id": 1, "v": json.loads("[" * 500 + "]" * 500)}
    )


def doubled(members: list[Member], spec: PipelineSpec) -> None:
    """Names an attribute twice."""
    session = to_json(session_of("hostile", spec))
    session["pipeline"]["collect"]["node_attrs"] = [["x", "x"]]
    header = {"op": "open", "protocol": PROTOCOL, "id": 1, "outstanding": [], "names": []}
    members[0].ask({**header, "spec": session})


def servers(members: list[Member], spec: PipelineSpec) -> None:
    """Acts for others."""
    one = members[0]
    addresses = Addresses("tcp://127.0.0.1:1")
    one.ask(RegisterServer(0, "h", 1, 0, [0], addresses, "h", 1, "f", {0: "a"}))
    for rank in range(3):
        one.ask(Goodbye("client", rank, "h"))
        one.ask(Goodbye("server", rank, "h"))
    for rank in range(100, 400):
        one.ask(RegisterClient(rank, "h", 1, 0, "\N{PILE OF POO}" * 64, 1))


def unread(members: list[Member], spec: PipelineSpec) -> None:
    """Asks without reading."""
    one, other = members[:2]
    for rank in range(10, 50):
        one.ask(RegisterClient(rank, "h", 1, 0, "hostile", 1))
        one.ask(Publish(rank, "h", "big"), [_text('"' + "x" * 60_000 + '"')])
    ask = WaitFor(10, "h", "big", list(range(10, 50)), 0.0)
    for _ in range(5000):
        other.send(ask)


def crowd(members: list[Member], spec: PipelineSpec) -> None:
    """Many connections, each with work waiting."""
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
    """Takes what is others'."""
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
    """A partition of one part has the nodes' own ids: node 0 is the hub."""
    hop = HopRequest(1, False, False, 7, method=Labor([1]).spec())
    for member in members:
        for _ in range(20):
            _send_of_part(member, Sample(0, [], hop), [np.zeros(2000, np.int64)])
    _drain(members)


def excluded(members: list[Member], spec: PipelineSpec) -> None:
    """As `labor`."""
    pairs = [np.zeros(100_000, np.int64), np.arange(100_000)]
    request = Sample(0, ["excluded"], HopRequest(1, False, False, 7))
    for member in members:
        for _ in range(4):
            _send_of_part(member, request, [np.zeros(400, np.int64), *pairs])
    _drain(members)


def induced(members: list[Member], spec: PipelineSpec) -> None:
    """As `labor`."""
    for member in members:
        for _ in range(20):
            arrays = [np.zeros(4000, np.int64), np.zeros(0, np.int64)]
            _send_of_part(member, Induce(0, [], False), arrays)
    _drain(members)


def opens(members: list[Member], spec: PipelineSpec) -> None:
    """Asks for more than there is, so that it costs no sampler."""
    session = to_json(session_of("hostile", spec))
    session["pipeline"]["sampling"]["fanouts"] = [list(range(1000))] * len(spec.sampling.fanouts)
    session["buffer_bytes"] = 1 << 50
    header = {"op": "open", "protocol": PROTOCOL, "id": 1, "outstanding": [], "names": []}
    for member in members:
        for _ in range(64):
            member.send({**header, "spec": session, "outstanding": list(range(60_000))})
    _drain(members)


def waits(members: list[Member], spec: PipelineSpec) -> None:
    """With as many clients as one may register."""
    one = members[0]
    for rank in range(500, 700):
        one.send(RegisterClient(rank, "h", 1, 0, "hostile", 1))
    for number in range(500):
        one.send(WaitFor(500, "h", f"n{number % 8}", list(range(2048)), 10.0))
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
    """Does it again and again."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    count = 40 if name == "crowd" else 2
    members = [Member(context, address, keys) for _ in range(count)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ATTACKS[name](members, spec)
    context.destroy(0)
