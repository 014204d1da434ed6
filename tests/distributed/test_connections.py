"""What a server's TCP connections may make it keep, and how many of them each key may have."""

import contextlib
import ctypes
import socket
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from khop.distributed.rpc import connections as module
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.identity import ADMITTED, REFUSED
from khop.distributed.rpc.keys import JobKeys
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.server_sockets import ServerSockets
from khop.distributed.rpc.tcp_sockets import bytes_received, end_connection, peer_of
from khop.errors import PartitionUnavailableError
from support.cluster.partition_server import PART, client_of, draws, make_part, serving

MIB = 1 << 20
# ZMTP 3.0 without keys: greeting and READY of a DEALER.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
UNFINISHED = b"\x03" + struct.pack(">Q", MIB) + bytes(MIB)
"""A frame of 1 MiB after which another one follows."""


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    return make_part(tmp_path_factory.mktemp("connections") / "parts")


@pytest.fixture
def keys():
    return JobKeys.new(["honest", "hostile"])


@pytest.fixture
def often(monkeypatch):
    """Connections are looked at all the time."""
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "_LOOK_SHARE", 1.0)


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def resident():
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def without_keys(server):
    """A connection that has shaken hands, and can send what it likes."""
    host, port = server.addresses["tcp"].removeprefix("tcp://").split(":")
    connection = socket.create_connection((host, int(port)), 20)
    connection.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
    return connection


@contextlib.contextmanager
def member_of(server, keys, pair):
    """Makes sockets that are connected with a key, and never again."""
    context = zmq.Context()

    def connect(greets=True):
        dealer = context.socket(zmq.DEALER)
        dealer.linger, dealer.reconnect_ivl = 0, -1
        dealer.curve_serverkey = keys.server.public.encode()
        dealer.curve_publickey = pair.public.encode()
        dealer.curve_secretkey = pair.secret.encode()
        dealer.connect(server.addresses["tcp"])
        if greets:
            dealer.send(b"")
        return dealer

    try:
        yield connect
    finally:
        context.destroy(0)


@contextlib.contextmanager
def client_with(server, keys, pair, **options):
    """A client of khop with a key."""
    endpoint = Endpoint(server.addresses["tcp"], keys.server.public)
    client = PartitionClient({PART: endpoint}, pair, **options)
    try:
        yield client
    finally:
        client.close()


def open_of(server, pair):
    """Number of connections that have a key, as far as they have brought a message."""
    return server.sockets.connections._by_key[pair.public]


def test_an_endless_message_ends_its_connection(part, often):
    """Parts of 1 MiB for ever: memory is bounded, and others are served."""
    with (
        serving(part, untaken_bytes=16 * MIB) as server,
        client_of(server) as client,
        without_keys(server) as endless,
    ):
        assert draws(client, part)
        before = most = resident()
        with pytest.raises(OSError, match=r"[Rr]eset|[Pp]ipe"):
            for _ in range(1024):
                endless.sendall(UNFINISHED)
                most = max(most, resident())
        assert most - before < 400 * MIB
        assert draws(client, part)
        wait_until(lambda: server.sockets.connections.num_connections == 1)
        wait_until(lambda: resident() - before < 64 * MIB)


def test_unfinished_messages_of_a_user_are_bounded_together(part, often):
    """Each within its bound: the largest ends, then the next."""
    with (
        serving(part, untaken_bytes=16 * MIB, waiting_bytes=20 * MIB) as server,
        contextlib.ExitStack() as stack,
    ):
        ends = [stack.enter_context(without_keys(server)) for _ in range(3)]
        wait_until(lambda: server.sockets.connections.num_connections == 3)
        for size, end in zip((12, 5, 2), ends, strict=True):
            for _ in range(size):
                end.sendall(UNFINISHED)
        assert server.sockets.connections.num_connections == 3
        with contextlib.suppress(OSError):
            for _ in range(3):
                ends[2].sendall(UNFINISHED)
        wait_until(lambda: server.sockets.connections.num_connections == 2)
        assert is_open(ends[1])
        assert is_open(ends[2])


def is_open(connection):
    connection.setblocking(False)
    try:
        while data := connection.recv(1 << 16):
            assert data
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@pytest.mark.parametrize("has_keys", [False, True])
def test_messages_that_are_taken_are_counted_to_the_byte(part, keys, has_keys):
    """So a connection of days is not ended for what the server took long ago."""
    pair = keys.clients["honest"]
    curve = keys.for_servers().curve() if has_keys else None
    with serving(part, curve=curve) as server:
        connections = server.sockets.connections
        with (
            client_with(server, keys, pair) if has_keys else client_of(server) as client,
        ):
            for _ in range(300):
                assert draws(client, part)
            ((descriptor, connection),) = connections._open.items()
            received = bytes_received(descriptor)
            assert received > 20_000
            assert 0 <= received - connection.taken < module._HANDSHAKE_BYTES


def test_a_member_leaves_connections_to_others(part, keys):
    """It gets 64, however many it asks for; another client and a server get in."""
    honest, hostile = keys.clients["honest"], keys.clients["hostile"]
    with (
        serving(part, curve=keys.for_servers().curve(), connections=96) as server,
        member_of(server, keys, hostile) as connect,
    ):
        held = [connect() for _ in range(64)]
        wait_until(lambda: open_of(server, hostile) == 64)
        held += [connect() for _ in range(8)]
        for pair in (honest, keys.server):
            with client_with(server, keys, pair) as client:
                assert draws(client, part)
        assert open_of(server, hostile) == 64
        held.pop(0).close(0)
        wait_until(lambda: open_of(server, hostile) == 63)
        held.append(connect())
        wait_until(lambda: open_of(server, hostile) == 64)


def test_handshakes_of_a_key_are_few(part, keys):
    """64 that bring no message in 30 s; of others 256 at once, and two a second."""
    key, now = keys.clients["hostile"].public, [1e6]
    with serving(part, curve=keys.for_servers().curve()) as server:
        connections = server.sockets.connections
        connections._clock = lambda: now[0]
        for limiter in (connections._rate_of_key, connections._rate_of_all):
            limiter._clock = connections._clock

        def admitted(brings_message):
            count = 0
            while connections.admit(key) == ADMITTED:
                count += 1
                if brings_message:
                    connections._handshakes.clear()
            return count

        assert admitted(False) == 64
        now[0] += 60
        assert admitted(True) == 256
        now[0] += 10
        assert admitted(True) == 20
        assert connections.admit(keys.server.public) == ADMITTED
        assert connections.admit("x" * 40) == REFUSED


def test_names_that_zeromq_gives_cannot_be_foreseen(part):
    """It counts up from a number that follows from time and process; here from a random one."""
    libc = ctypes.CDLL(None)
    drawn = set()
    for _ in range(2):
        libc.srand(7)
        with serving(part):
            drawn.add(libc.rand())
    assert len(drawn) == 2


def test_all_clients_leave_connections_to_servers(part, keys):
    """An eighth: two keys with 14 each of 32."""
    with (
        serving(part, curve=keys.for_servers().curve(), connections=32) as server,
        member_of(server, keys, keys.clients["hostile"]) as connect,
    ):
        held = [connect() for _ in range(40)]
        wait_until(lambda: open_of(server, keys.clients["hostile"]) == 28)
        with client_with(server, keys, keys.server) as client:
            assert draws(client, part)
        assert len(held) == 40


def test_a_connection_that_brings_no_message_ends(part, keys, often):
    """A client of khop greets, and stays however long it asks nothing."""
    honest = keys.clients["honest"]
    with (
        serving(part, curve=keys.for_servers().curve()) as server,
        client_with(server, keys, honest) as client,
        member_of(server, keys, keys.clients["hostile"]) as connect,
    ):
        connections = server.sockets.connections
        assert client is not None  # it has connected, and does nothing from here on
        wait_until(lambda: open_of(server, honest) == 1)
        silent = connect(greets=False)
        wait_until(lambda: connections.num_connections == 2)
        connections._limits = replace(connections._limits, silent_seconds=0.0)  # time is over
        wait_until(lambda: connections.num_connections == 1)
        assert open_of(server, honest) == 1
        assert draws(client, part)
        assert not silent.poll(0)


def test_greetings_without_an_end_hold_nothing(part, keys):
    """A loop is given back after 64 of them, and they hide no silent connection of their key."""
    hostile = keys.clients["hostile"]
    with (
        serving(part, curve=keys.for_servers().curve()) as server,
        client_with(server, keys, keys.clients["honest"]) as client,
        member_of(server, keys, hostile) as connect,
    ):
        silent = [connect(greets=False) for _ in range(3)]
        connections = server.sockets.connections
        wait_until(lambda: len(connections._handshakes.get(hostile.public, ())) == 3)
        greeting = connect()
        for _ in range(5000):
            greeting.send(b"")
        wait_until(lambda: open_of(server, hostile) == 1)
        assert draws(client, part)
        assert len(connections._handshakes[hostile.public]) == 3
        assert not any(end.poll(0) for end in silent)


@pytest.mark.parametrize("count", [63, 64, 1000])
def test_a_loop_skips_so_many_greetings(count):
    sockets = ServerSockets(None, "127.0.0.1", None)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(sockets.addresses["tcp"])
        for _ in range(count):
            dealer.send(b"")
        dealer.send(b"x")
        calls, message = 0, None
        while message is None:
            sockets.fronts[0].poll(10_000)
            message = sockets.receive(0)
            calls += 1
        assert message[1].bytes == b"x"
        assert calls >= count // 64 + 1
    sockets.close()


def test_peers_that_name_themselves_are_disconnected(part, often):
    """ZeroMQ ends a process when it gives a name that a peer has taken: nobody may take one."""
    with serving(part) as server, client_of(server) as client, zmq.Context() as context:
        for name in (b"x", b"\0abc", b"\x01abcd", b"\0" * 200):
            dealer = context.socket(zmq.DEALER)
            dealer.linger, dealer.reconnect_ivl, dealer.routing_id = 0, -1, name
            dealer.connect(server.addresses["tcp"])
            dealer.send(b"{}")
            wait_until(lambda: server.sockets.connections.num_connections >= 1)
            wait_until(lambda: draws(client, part))
            wait_until(lambda: server.sockets.connections.num_connections == 1)
            assert not dealer.poll(0)  # no answer
            dealer.close()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_revoked_key_is_disconnected(part, keys, often, monkeypatch, is_late):
    """At once, and it gets no other connection; others' go on.

    Nor does who hears of it late, when ZeroMQ has tried by itself, wait for ever.
    """
    answers, admit = [], module.Connections.admit
    monkeypatch.setattr(
        module.Connections, "admit", lambda *args: answers.append(admit(*args)) or answers[-1]
    )
    honest, hostile = keys.clients["honest"], keys.clients["hostile"]
    with (
        serving(part, curve=keys.for_servers().curve()) as server,
        client_with(server, keys, honest) as client,
        client_with(server, keys, hostile, timeout=20.0) as revoked,
    ):
        assert draws(client, part)
        assert draws(revoked, part)
        server.sockets.admit([honest.public])
        wait_until(lambda: open_of(server, hostile) == 0)
        if is_late:
            wait_until(lambda: REFUSED in answers)
            time.sleep(0.1)  # until the answer is there
        with pytest.raises(PartitionUnavailableError, match="refused this process's key"):
            while True:
                draws(revoked, part)
        assert draws(client, part)
        assert open_of(server, honest) == 1


def test_a_descriptor_that_is_another_connection_is_left_alone():
    """ZeroMQ may have closed it, and something else may have its number."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one, other = (socket.create_connection(listener.getsockname()) for _ in range(2))
        ours, theirs = listener.accept()[0], listener.accept()[0]
        with one, other, ours, theirs:
            one.sendall(b"12345")
            assert ours.recv(5) == b"12345"
            assert bytes_received(ours.fileno()) == 5
            assert not end_connection(theirs.fileno(), peer_of(ours.fileno()))
            other.sendall(b"6")
            assert theirs.recv(1) == b"6"
            assert end_connection(ours.fileno(), peer_of(ours.fileno()))
            assert one.recv(1) == b""
    assert bytes_received(10**6) is None
    assert not end_connection(10**6, ("127.0.0.1", 1))
    assert not end_connection(0, None)
