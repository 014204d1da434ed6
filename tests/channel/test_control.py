"""The control line: messages keep their bounds, carry descriptors, and end is noticed."""

import contextlib
import os
import resource
import select
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from khop.channel.arena import create_memory
from khop.channel.control import (
    MAX_LARGE_PAYLOAD,
    MAX_PAYLOAD,
    U64,
    ControlLine,
    Message,
    Op,
    socket_pair,
)
from khop.errors import ProtocolError


@contextlib.contextmanager
def lines():
    a, b = socket_pair()
    with a, b:
        yield ControlLine(a), ControlLine(b)


@given(st.lists(st.tuples(st.sampled_from(Op), st.binary(max_size=300)), max_size=10))
def test_messages_arrive_as_they_went(messages):
    """In order, whole, one by one, by `send` and by `post`; None when there are no more."""
    with lines() as (ours, theirs):
        for i, (op, payload) in enumerate(messages):
            ours.send(op, payload) if i % 2 else ours.post(op, payload)
        for op, payload in messages:
            assert theirs.receive() == Message(op, payload, [])
        assert theirs.receive() is None


def test_json_and_large_messages():
    with lines() as (ours, theirs):
        ours.send_json(Op.CONFIG, {"a": [1, None], "b": "ü"})
        assert theirs.receive().json() == {"a": [1, None], "b": "ü"}
        ours.send(Op.ERROR, b"x" * MAX_PAYLOAD)
        assert len(theirs.receive().payload) == MAX_PAYLOAD


def num_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("extra", [1, 5_000, 300_000, 4_000_000])
def test_payloads_larger_than_the_socket_holds(extra):
    """Whole, in turn, with the descriptors that come along; nothing stays open."""
    with lines() as (ours, theirs):
        before = num_descriptors()
        payload = os.urandom(1000) * ((MAX_PAYLOAD + extra) // 1000 + 1)
        read, write = os.pipe()
        ours.send(Op.CONFIG, payload, [write])
        ours.post(Op.ENDPOINT, payload)
        ours.post(Op.FREE, b"small")
        first, second, third = (theirs.receive() for _ in range(3))
        assert first[:2] == (Op.CONFIG, payload)
        assert os.fstat(first.descriptor()).st_ino == os.fstat(write).st_ino
        assert second == Message(Op.ENDPOINT, payload, [])
        assert third == Message(Op.FREE, b"small", [])
        first.close_descriptors()
        os.close(read)
        os.close(write)
        assert num_descriptors() == before


def test_large_payloads_wait_their_turn_and_end_with_the_line():
    """What finds no room is kept, in order, and given up when the line closes."""
    ours, theirs = map(ControlLine, socket_pair())
    before = num_descriptors()
    payload = bytes(2 * MAX_PAYLOAD)
    while not ours.has_unsent:
        ours.post(Op.ENDPOINT, payload)
    ours.post(Op.ENDPOINT, payload + b"last")
    got = []
    while not got or len(got[-1]) == len(payload):
        message = theirs.receive()
        got.append(message.payload if message is not None else b"")
        ours.flush()
    assert got[-1] == payload + b"last" and set(got[:-1]) == {payload}
    assert num_descriptors() == before
    while not ours.has_unsent:
        ours.post(Op.ENDPOINT, payload)
    ours.close()
    theirs.close()
    assert num_descriptors() == before - 2


def test_oversized_message_is_refused_by_its_sender():
    with lines() as (ours, theirs):
        ours.send(Op.CONFIG, bytes(MAX_LARGE_PAYLOAD))
        assert len(theirs.receive().payload) == MAX_LARGE_PAYLOAD
        for send in (ours.send, ours.post):
            with pytest.raises(ValueError, match=f"CONFIG.*{MAX_LARGE_PAYLOAD + 1} bytes.*most"):
                send(Op.CONFIG, bytes(MAX_LARGE_PAYLOAD + 1))
        with pytest.raises(ValueError, match="at most 8 descriptors"):
            ours.send(Op.CONFIG, b"", [0] * 9)
        assert theirs.receive() is None


def sent_raw(data, descriptors=()):
    """What a line receives of this; raises what receiving raises."""
    with lines() as (ours, theirs):
        socket.send_fds(ours._socket, [data], list(descriptors))
        message = theirs.receive()
        message.close_descriptors()
        return message


def large(nbytes):
    return bytes([Op.CONFIG | 0x80]) + U64.pack(nbytes)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (bytes([Op.CONFIG]) + bytes(MAX_PAYLOAD + 1), "more than 60000 bytes in one piece"),
        (bytes([Op.FREE]), "FREE comes with descriptors"),
        (large(10)[:-1], "does not say where"),
        (large(MAX_LARGE_PAYLOAD + 1), "too long: at most"),
        (large(10), "not in sealed memory of its length"),
        (bytes([99 | 0x80]), "unknown control message 227"),
    ],
)
def test_malformed_messages_leave_nothing_open(data, match):
    """Cut, forged or unknown: refused, and the descriptors that came along are closed."""
    before = num_descriptors()
    read, write = os.pipe()
    memory = create_memory(10)  # others may still write to it
    for descriptor in (read, memory):
        with pytest.raises(ProtocolError, match=match):
            sent_raw(data, [descriptor, write])
    for descriptor in (read, write, memory):
        os.close(descriptor)
    assert num_descriptors() == before


def test_large_message_without_its_memory():
    with pytest.raises(ProtocolError, match="does not say where"):
        sent_raw(large(10))


def test_more_descriptors_than_fit_or_than_may_be_open():
    """What the kernel drops is told; the rest is closed."""
    before = num_descriptors()
    with pytest.raises(ProtocolError, match="descriptors of a control message are lost"):
        sent_raw(bytes([Op.CONFIG]), [0] * 20)
    assert num_descriptors() == before
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with lines() as (ours, theirs):
        ours.send(Op.CONFIG, b"{}", [0, 0, 0, 0])
        last = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        filler = [os.dup(0) for _ in range(last + 1 - num_descriptors() + 8)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(filler) + 3, limits[1]))
        try:
            with pytest.raises(ProtocolError, match="may not open more files"):
                theirs.receive()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for descriptor in filler:
                os.close(descriptor)
    assert num_descriptors() == before


@pytest.mark.parametrize("payload", [b"", b"{", b"[1]", b"3", b"\xff"])
def test_payloads_that_are_no_json_objects(payload):
    with pytest.raises(ProtocolError, match="JSON"):
        Message(Op.CONFIG, payload, []).json()


def test_descriptors():
    """A file passed on is the same file under another number."""
    with lines() as (ours, theirs):
        read, write = os.pipe()
        ours.send(Op.CONFIG, b"", [write])
        os.close(write)
        (got,) = theirs.receive().descriptors
        os.write(got, b"hello")
        os.close(got)
        assert os.read(read, 10) == b"hello"
        os.close(read)


def test_unknown_messages():
    """Refused; a descriptor that came along is closed, not kept."""
    with lines() as (ours, theirs):
        read, write = os.pipe()
        for op in (0, 99, 255):
            ours.send(op, b"", [write])
            with pytest.raises(ProtocolError, match=f"unknown control message {op}"):
                theirs.receive()
        os.close(write)
        os.set_blocking(read, False)
        assert os.read(read, 1) == b""  # nobody else holds the other end
        os.close(read)


def test_end():
    """What was sent before the end is received; then EOF, again and again; sending says so too."""
    with lines() as (ours, theirs):
        ours.send(Op.READY, b"last")
        ours.close()
        assert theirs.receive().payload == b"last"
        for _ in range(2):
            with pytest.raises(EOFError, match="closed"):
                theirs.receive()
        theirs.post(Op.FREE, b"")  # never raises
        with pytest.raises(ConnectionError):
            theirs.send(Op.FREE, b"")


def test_waits_for_a_slow_receiver():
    """More than the socket holds: `send` waits, `post` keeps it for later, nothing is lost."""
    with lines() as (ours, theirs):
        payloads = [bytes([i]) * 5000 for i in range(200)]

        def send():
            for i, payload in enumerate(payloads):
                (ours.send if i % 2 else ours.post)(Op.BATCH, payload)
            ours.send(Op.READY)

        thread = threading.Thread(target=send)
        thread.start()
        got, poller = [], select.poll()
        poller.register(theirs.fileno(), select.POLLIN)
        while True:
            assert poller.poll(20_000)
            message = theirs.receive()
            if message is not None and message.op == Op.READY:
                break
            if message is not None:
                got.append(message.payload)
        thread.join()
        assert sorted(got) == sorted(payloads)


def test_posts_beyond_the_sockets_room_arrive_in_order():
    """What finds no room waits its turn, also behind it a `post` that would fit."""
    ours, theirs = map(ControlLine, socket_pair())
    for number in range(3000):
        ours.post(Op.FREE, number.to_bytes(8, "little"))
    assert ours.has_unsent
    heard = []
    while len(heard) < 3000:
        while (message := theirs.receive()) is not None:
            heard.append(int.from_bytes(message.payload, "little"))
        ours.flush()
    assert heard == list(range(3000))
    assert not ours.has_unsent
