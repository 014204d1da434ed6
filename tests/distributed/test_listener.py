"""A server takes so many connections and no more; those that it has are served meanwhile."""

import contextlib
import resource
import socket
import struct
import time
from pathlib import Path

import pytest
import zmq

from khop.channel.message import FRAME_BYTES
from khop.distributed.rpc.connections import Connections
from khop.distributed.rpc.keys import JobKeys
from khop.distributed.rpc.tcp_sockets import Listener, raise_descriptor_limit
from support.cluster.partition_server import client_of, draws, make_part, serving


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    return make_part(tmp_path_factory.mktemp("listener") / "parts")


def address_of(server):
    host, port = server.addresses["tcp"].removeprefix("tcp://").split(":")
    return host, int(port)


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def open_until_refused(server, stack, most):
    """Opens connections one after the other until the server takes no more; returns them."""
    opened = []
    while len(opened) < most:
        end = stack.enter_context(socket.socket())
        end.settimeout(0.5)
        try:
            end.connect(address_of(server))
            end.recv(1)  # it was accepted
        except TimeoutError:
            return opened
        opened.append(end)
    raise AssertionError(f"{most} connections were taken")


def test_strangers_have_so_many_connections(part):
    """Those who have shown a key are served, and others get in when strangers' time is over."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(part, handshakes=8, handshake_ms=2000))
        member = stack.enter_context(client_of(server))
        assert draws(member, part)
        opened = open_until_refused(server, stack, 100)
        assert len(opened) >= 8
        assert draws(member, part)
        wait_until(lambda: server.sockets.connections.num_connections < 8)
        another = stack.enter_context(client_of(server))
        assert draws(another, part)


def test_members_have_so_many_connections(part):
    """All together; who ends one makes room for another."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(part, connections=20, handshakes=10_000))
        member = stack.enter_context(client_of(server))
        assert draws(member, part)
        opened = open_until_refused(server, stack, 100)
        assert len(opened) >= 19
        assert draws(member, part)
        for end in opened:
            end.close()
        another = stack.enter_context(client_of(server))
        assert draws(another, part)


def test_connections_that_come_and_go_are_forgotten(part):
    """However they end: at once, after nonsense, half a greeting, or as a client's."""
    with serving(part, handshakes=30) as server:
        for said in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(100), b"\xff" + bytes(8) + b"\x7f\x03"):
            for _ in range(20):
                with socket.create_connection(address_of(server)) as end:
                    end.sendall(said)
        with client_of(server) as client:
            assert draws(client, part)
        wait_until(lambda: server.sockets.connections.num_connections == 0)


def test_some_descriptors_are_kept(part, monkeypatch):
    """256, or a quarter of few, and those of connections that wait; others have theirs."""
    with serving(part) as server:
        limiter: Connections = server.sockets.connections
        taken = len(list(Path("/proc/self/fd").iterdir()))
        for allowed, most in ((1 << 20, 4096), (4096, 4096 - 256 - 128 - taken), (64, 16)):
            monkeypatch.setattr(resource, "getrlimit", lambda _, n=allowed: (n, n))
            limiter._count_at = 0.0
            assert abs(limiter._most_connections() - most) < 20


def test_the_soft_limit_is_raised():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_address_that_is_taken(part):
    """A clear error, and the port is free again when its server has ended."""
    with serving(part) as server:
        host, port = address_of(server)
        with pytest.raises(zmq.ZMQError, match="in use"):
            Listener(host, port, 1)
    Listener(host, port, 1).close()


def test_a_handshake_has_small_commands(part):
    """A stranger makes a server keep no more than a frame: a longer command ends the connection."""
    keys = JobKeys.new().for_servers()
    with serving(part, curve=keys.curve(), handshake_ms=60_000) as server:
        for length, is_kept in ((FRAME_BYTES, True), (FRAME_BYTES + 4096, False)):
            with socket.create_connection(address_of(server)) as end:
                end.settimeout(1.0 if is_kept else 10.0)
                end.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(15) + bytes(32))
                end.sendall(b"\x06" + struct.pack(">Q", length) + bytes(100))
                received = b""
                try:
                    while data := end.recv(1000):
                        received += data
                    assert not is_kept, "closed"
                except TimeoutError:
                    assert is_kept, "a long command is read"
                assert len(received) <= 64
