"""A connection that is made again, with a clock of the test and servers that come and go."""

import time

import pytest
import zmq

from khop.channel.message import pack
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint


class Clock:
    """Time that passes when the test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def context():
    """Sockets of one test."""
    with zmq.Context() as made:
        yield made
        made.destroy(0)


def server_at(context, address):
    """A server's socket."""
    server = context.socket(zmq.ROUTER)
    server.bind(address)
    return server


def pump(connection, is_done):
    """Pumps a connection until something holds."""
    end = time.monotonic() + 20
    while not is_done():
        assert time.monotonic() < end
        connection.pump()
        time.sleep(0.005)


def test_messages_sent_while_down_are_dropped(context, tmp_path):
    """A server that starts later gets only what was sent when the connection was up."""
    address = f"ipc://{tmp_path / 's'}"
    connection = Connection(context, endpoint=Endpoint(address))
    connection.send([b"too early"])
    server = server_at(context, address)
    pump(connection, lambda: connection.is_up)
    connection.send([b"in time"])
    assert server.poll(20_000)
    assert server.recv_multipart()[1:] == [b"in time"]
    connection.close()


def test_pauses_double_until_a_message_arrives(context, tmp_path):
    """0.05 s at first, 2 s at most; a connection that brought a message begins anew."""
    clock = Clock()
    connection = Connection(context, clock=clock)
    pauses = []
    for _ in range(8):
        connection.refuse("useless")
        pauses.append(round(connection._connect_at - clock.now, 3))
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    address = f"ipc://{tmp_path / 's'}"
    server = server_at(context, address)
    connection.relocate(Endpoint(address))
    pump(connection, lambda: connection.is_up)
    connection.send([b"hello"])
    assert server.poll(20_000)
    clock.now += 0.1
    server.send_multipart([server.recv_multipart()[0], *pack({"id": 1}, [])])
    pump(connection, lambda: list(connection.receive()))
    connection.refuse("useless")
    assert connection._connect_at - clock.now == pytest.approx(0.05)
    connection.close()


def test_a_lost_connection_is_made_again_after_its_pause(context, tmp_path):
    """What arrived before it was lost can still be read; no socket is open in the pause."""
    clock = Clock()
    address = f"ipc://{tmp_path / 's'}"
    server = server_at(context, address)
    connection = Connection(context, endpoint=Endpoint(address), clock=clock)
    pump(connection, lambda: connection.is_up)
    connection.send([b"hello"])
    assert server.poll(20_000)
    server.send_multipart([server.recv_multipart()[0], *pack({"goodbye": "the end"}, [])])
    assert connection.sockets[0].poll(20_000)
    server.close(0)
    pump(connection, lambda: not connection.is_up)
    assert [header for header, _, _ in connection.receive()] == [{"goodbye": "the end"}]
    assert connection.sockets == []
    clock.now += 3.0
    assert connection.state() == "has been unreachable for 3.0 s"
    connection.give_up("has ended")
    server = server_at(context, address)
    pump(connection, lambda: connection.is_up)
    assert connection.final is None
    assert connection.has_returned
    connection.close()
