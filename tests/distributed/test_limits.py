"""What a peer can make a server do is bounded, before memory is taken for it."""

from __future__ import annotations

import contextlib
import json
import socket as sockets
import struct
import threading
import time

import numpy as np
import pytest
import zmq

from khop import _native
from khop.channel.message import FRAME_BYTES, MESSAGE_BYTES, pack, unpack
from khop.distributed.rpc.frame_handler import refusal
from khop.distributed.rpc.limits import RateLimiter, SendBacklog
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import PROTOCOL
from khop.errors import ProtocolError
from khop.sampler.requests import HopRequest, RowSet
from support.cluster.partition_server import (
    CITES,
    PART,
    client_of,
    draws,
    make_part,
    own_rows,
    serving,
)


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    return make_part(tmp_path_factory.mktemp("limits") / "parts")


def ask(handler, op, *arrays, **fields):
    """Error or None, and arrays."""
    header = {"protocol": PROTOCOL, "id": 3, "part": PART, "op": op}
    if op != "fetch":
        header |= {"relation": CITES, "rows": []}
    reply, answer = unpack(handler(pack({**header, **fields}, arrays)))
    return reply.get("error"), answer


def hop(fanout, **fields):
    """The field of a request that says how is drawn."""
    draw = {"replace": False, "with_edge": True, "key": 1, "weighted": False, "last": False}
    return {"hop": {**draw, "fanout": fanout, **fields}}


@pytest.mark.parametrize("fanout", [2**26, 2**31, 2**40, 2**62])
def test_huge_fanouts_are_refused_before_memory_is_taken(part, fanout):
    """With replacement each row would give as many."""
    handler, rows = RequestHandler(part), np.repeat(own_rows(part), 100)
    error, _ = ask(handler, "sample", rows, **hop(fanout, replace=True))
    assert error["type"] == "ProtocolError"
    assert f"neighbours of {len(rows)} rows would make a reply of" in error["message"]
    assert "smaller fan-out" in error["message"]


@pytest.mark.parametrize("fanout", [3, 2**62, -1])
def test_huge_fanout_costs_only_the_degrees_of_its_rows(part, fanout):
    """Without replacement a fan-out of 2^62 is no more than the rows' neighbours."""
    error, (counts, *_) = ask(RequestHandler(part), "sample", own_rows(part), **hop(fanout))
    assert error is None and counts.sum() > 0


@pytest.mark.parametrize("fanout,replace", [(-1, False), (3, False), (3, True), (2**62, False)])
def test_the_bound_is_exact(part, fanout, replace):
    """A reply that just fits is given, one more byte is refused."""
    rows = own_rows(part)
    header = hop(fanout, replace=replace)
    _, answer = ask(RequestHandler(part), "sample", rows, **header)
    nbytes = answer[0].nbytes + 16 * len(answer[1])  # neighbours may have 8 bytes
    error, _ = ask(RequestHandler(part, nbytes), "sample", rows, **header)
    assert error is None
    error, _ = ask(RequestHandler(part, nbytes - 1), "sample", rows, **header)
    assert error["type"] == "ProtocolError"


def test_a_fetch_is_counted_before_it_is_gathered(part):
    """The rows of a fetch are known from the request."""
    place = part.relations[CITES][1]
    ids = np.full(10**6, own_rows(part)[0])
    attrs = part.meta.node_types[place].attrs
    names = [*attrs, "id"] * (4000 // (len(attrs) + 1))
    handler = RequestHandler(part)
    error, _ = ask(handler, "fetch", ids, element="node", index=place, names=names)
    assert error["type"] == "ProtocolError" and "would make a reply" in error["message"]
    error, _ = ask(handler, "fetch", ids[:0], element="node", index=place, names=["id"] * 5000)
    assert error["type"] == "ProtocolError" and "at most 4096" in error["message"]


@pytest.mark.parametrize("with_edge", [False, True])
def test_induced_edges_piece_by_piece(part, with_edge):
    """Where all neighbours would not fit, but those that are members do: the same answer."""
    rows = own_rows(part)
    members = rows[::4].copy()
    _, whole = ask(RequestHandler(part), "induce", rows, members, with_edge=with_edge)
    nbytes = sum(array.nbytes for array in whole)
    degrees = _native.degrees(part.csrs[CITES], rows)
    assert degrees.sum() * (16 if with_edge else 8) > nbytes, "the test shows nothing"
    error, found = ask(RequestHandler(part, nbytes), "induce", rows, members, with_edge=with_edge)
    assert error is None
    for ours, theirs in zip(found, whole, strict=True):
        assert np.array_equal(ours, theirs) and ours.dtype == theirs.dtype
    error, _ = ask(RequestHandler(part, nbytes - 1), "induce", rows, members, with_edge=with_edge)
    assert error["type"] == "ProtocolError"


def test_rows_that_are_not_there_are_named_still(part):
    """Bounds are worked out of the rows that exist; kernels refuse the others."""
    for bad in (-1, -(2**63), 2**63 - 1, int(own_rows(part)[-1]) + 1):
        error, _ = ask(RequestHandler(part), "sample", np.array([bad]), **hop(-1))
        assert error["type"] == "IndexError"
        error, _ = ask(
            RequestHandler(part, 10), "induce", np.array([bad]), own_rows(part), with_edge=True
        )
        assert error["type"] in ("IndexError", "ProtocolError")


def test_too_many_frames_and_too_long_headers(part):
    handler = RequestHandler(part)
    few = pack({"id": 3}, [np.zeros(1)])
    described = {**json.loads(few[0]), "arrays": [["float64", [1]]] * 5000}
    many = [json.dumps(described).encode(), *few[1:] * 5000]
    long = [b'{"id": 3, "op": "' + b"x" * (1 << 20) + b'", "arrays": []}']
    for frames in (many, long):
        reply, _ = unpack(handler(frames))
        assert reply["error"]["type"] == "ProtocolError"
    op = "x" * 900_000
    reply = handler(pack({"id": 3, "protocol": PROTOCOL, "part": PART, "op": op}, []))
    assert len(reply[0]) < 1000, "what is wrong is sent back in full"


@pytest.mark.parametrize("number", [None, -1, 1.5, "3", [3], {"a": 1}, True])
def test_numbers_of_requests_are_numbers(part, number):
    """They come back as they are and must mean something to the asker."""
    reply, _ = unpack(RequestHandler(part)(pack({"id": number, "protocol": PROTOCOL}, [])))
    assert reply["id"] is None and reply["error"]["type"] == "ProtocolError"


def test_refusals_name_their_request():
    why = ProtocolError("no")
    assert unpack(refusal(pack({"id": 7}, []), why))[0]["id"] == 7
    for frames in ([], [b"{"], [b"[" * 9000], [b"[]"], [b'{"id": []}'], [b"{}"], [b"x" * 20_000]):
        reply, _ = unpack(refusal(frames, why))
        assert reply == {"id": None, "error": {"type": "ProtocolError", "message": "no"}}


def test_buckets_fill_again():
    """`burst` at once, then `rate` a second; each peer has its own."""
    now = [0.0]
    rates = RateLimiter(10.0, 5.0, lambda: now[0])
    assert [rates.admit(b"a") for _ in range(7)] == [True] * 5 + [False] * 2
    assert rates.admit(b"b")
    now[0] = 0.25
    assert [rates.admit(b"a") for _ in range(4)] == [True, True, False, False]
    now[0] = 100.0
    assert sum(rates.admit(b"a") for _ in range(50)) == 5
    for i in range(10_000):
        rates.admit(struct.pack("<I", i))
    assert len(rates._buckets) <= 4096


# Over sockets -----------------------------------------------------------------------------------


@contextlib.contextmanager
def raw_peer(server):
    """A DEALER without manners."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.sndhwm = 0
        dealer.connect(server.addresses["tcp"])
        yield dealer


def question(part, number=1, **fields):
    header = {"protocol": PROTOCOL, "part": PART, "relation": CITES, "rows": [], "op": "sample"}
    return pack({**header, **hop(2), "id": number, **fields}, [own_rows(part)])


def test_a_frame_that_is_too_long_ends_its_connection(part):
    """ZeroMQ refuses it when it hears of its length; others are served as ever."""
    with serving(part) as server, client_of(server) as client:
        with raw_peer(server) as dealer:
            monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            dealer.send_multipart([b"{}", bytes(FRAME_BYTES + 4096)])
            assert monitor.poll(5000), "the connection was kept"
            assert not dealer.poll(100)
            dealer.disable_monitor()
        assert draws(client, part)


def test_replies_of_many_frames(part):
    """Rows come as they are stored, however many frames they take."""
    place = part.relations[CITES][1]
    ids = np.resize(own_rows(part), 300_000)
    with serving(part) as server, client_of(server) as client:
        ticket = client.fetch(PART, "node", place, ids, ["id", "id"])
        client.wait([ticket])
        expected = part.feature("node", place, "id").gather(ids - own_rows(part)[0])
        expected = expected.astype(np.int64)
        assert expected.nbytes > 2 * FRAME_BYTES
        arrays = ticket.result()
        assert max(rows.nbytes for rows in arrays) == FRAME_BYTES
        np.testing.assert_array_equal(np.concatenate(arrays), np.tile(expected, 2))


def test_a_request_above_the_limit_is_refused_by_its_sender(part):
    """At once, with size and limit; the connection serves on."""
    ids = np.broadcast_to(np.zeros(1, np.int64), MESSAGE_BYTES // 8 + 1)
    with serving(part) as server, client_of(server) as client:
        with pytest.raises(ProtocolError, match=rf"{MESSAGE_BYTES + 8} bytes is more than"):
            client.fetch(PART, "node", 0, ids, ["id"])
        with pytest.raises(ProtocolError, match=r"header of .* is longer than"):
            client.fetch(PART, "node", 0, ids[:1], ["id"] * 300_000)
        assert draws(client, part)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_flood_is_refused_and_others_are_answered(part, num_threads):
    """Requests above the rate get errors with their numbers; a patient peer gets answers."""
    with (
        serving(part, num_threads, rate=50.0, burst=100.0) as server,
        client_of(server) as client,
        raw_peer(server) as dealer,
    ):
        for number in range(1000):
            dealer.send_multipart(question(part, number))
        assert draws(client, part)
        answered, refused = set(), set()
        while len(answered) + len(refused) < 1000:
            assert dealer.poll(10_000)
            reply, _ = unpack(dealer.recv_multipart())
            (refused if "error" in reply else answered).add(reply["id"])
            if "error" in reply:
                assert "more than 50 answers a second" in reply["error"]["message"]
        assert len(answered) >= 100 and len(refused) > 500
        assert draws(client, part)


class GatedHandler(RequestHandler):
    """Notes the fan-outs that it is asked for, and waits at the first large one."""

    def __init__(self, part):
        super().__init__(part)
        self.asked, self.is_busy, self.gate = [], threading.Event(), threading.Event()

    def steps(self, frames, *source):
        fanout = unpack(frames)[0]["hop"]["fanout"]
        self.asked.append(fanout)
        if fanout > 100:
            self.is_busy.set()
            self.gate.wait(20)
        return super().steps(frames, *source)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_peers_get_their_turns(part, num_threads):
    """A request of another peer need not wait for a thousand of one that came before."""
    handler = GatedHandler(part)
    with (
        serving(part, num_threads, handler=handler) as server,
        client_of(server) as client,
        raw_peer(server) as dealer,
    ):
        assert draws(client, part)
        rows = np.repeat(own_rows(part), 20)
        header = {"protocol": PROTOCOL, "part": PART, "relation": CITES, "rows": [], "id": 1}
        slow = pack({**header, **hop(200, replace=True), "op": "sample"}, [rows])
        for _ in range(300):
            dealer.send_multipart(slow)
        assert handler.is_busy.wait(10)
        request = HopRequest(3, False, False, 1)
        ticket = client.sample(PART, CITES, RowSet(own_rows(part)), request)
        handler.gate.set()
        client.wait([ticket])
        assert len(ticket.result()) == 2
    assert handler.asked.index(3, 1) < 200  # of 300 earlier ones


@pytest.mark.parametrize("repeats,count,bound", [(100, 100, 8 << 20), (1, 4000, 2 << 20)])
def test_a_peer_that_does_not_read_is_refused(part, repeats, count, bound):
    """Beyond a bound of bytes that wait for it, in large or small frames; others are served."""
    rows = np.repeat(own_rows(part)[:40], repeats)
    with (
        serving(part, unread_bytes=bound, rate=1e9, burst=1e9) as server,
        client_of(server) as client,
    ):
        host, port = server.addresses["tcp"].removeprefix("tcp://").split(":")
        with sockets.create_connection((host, int(port))) as raw:
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1 << 16)
            greet(raw)
            header = {"protocol": PROTOCOL, "part": PART, "relation": CITES, "rows": [], "id": 1}
            big = pack({**header, **hop(100, replace=True), "op": "sample"}, [rows])
            for _ in range(count):
                send_message(raw, big)
            deadline = time.monotonic() + 20
            while not any(w.nbytes > bound for w in list(server.sockets.backlog._peers.values())):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.5)
            waiting = sum(w.nbytes for w in list(server.sockets.backlog._peers.values()))
            reply = sum(map(len, RequestHandler(part)(big)))
            refusals = 512 * count
            assert waiting <= bound + 2 * max(reply, SendBacklog.STEP) + refusals
            assert draws(client, part)


def greet(raw):
    """ZMTP 3.0, mechanism NULL."""
    raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31))
    received = b""
    while len(received) < 64:
        received += raw.recv(64 - len(received))
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    raw.sendall(b"\x04" + bytes([len(ready)]) + ready)


def send_message(raw, frames):
    for i, frame in enumerate(frames):
        data = bytes(frame)
        more = 1 if i + 1 < len(frames) else 0
        raw.sendall(struct.pack(">BQ", 2 | more, len(data)) + data)


def test_a_connection_that_says_nothing_is_closed(part):
    """Within the time that a handshake may take."""
    with serving(part, handshake_ms=300) as server:
        host, port = server.addresses["tcp"].removeprefix("tcp://").split(":")
        with sockets.create_connection((host, int(port))) as raw:
            raw.settimeout(10)
            began = time.monotonic()
            while raw.recv(1000):  # its greeting, and then its end
                pass
            assert time.monotonic() - began < 5
