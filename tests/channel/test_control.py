"""The control line: messages keep their bounds, carry descriptors, and end is noticed."""

import contextlib
import os
import select
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.channel.control import MAX_PAYLOAD, ControlLine, Message, Op, socket_pair
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
