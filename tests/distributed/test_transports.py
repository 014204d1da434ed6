"""Transports of users: whose address is used, and what connections over one bear."""

import os
import select
import socket
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import zmq

from khop.channel.message import pack, unpack
from khop.distributed.partitions.server_process import announced_endpoint
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.server_sockets import ChannelFront, ServerSockets
from khop.distributed.rpc.transport import TRANSPORTS, Transport, own_transport, transport_of
from khop.errors import PluginError
from support.formats import fenced

PAGE = Path(__file__).parents[2] / "docs" / "extending" / "transports.md"
ANNOUNCED = {"ipc": "ipc:///near", "tcp": "tcp://10.0.0.1:7", "key": "k"}


@pytest.fixture
def transport(tmp_path, monkeypatch):
    """The transport of the page, named as a user names it."""
    (tmp_path / "shared_files.py").write_text(fenced.blocks(PAGE)[0].source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(TRANSPORTS, "_named", {})
    monkeypatch.setenv("KHOP_TRANSPORT", "shared_files:SharedFiles")
    yield own_transport()
    sys.modules.pop("shared_files", None)


def wait(*sources):
    assert select.select(sources, [], [], 5)[0]


def next_message(front):
    """The next message at a server; also takes up who connects."""
    while (message := front.receive()) is None:
        wait(front)
    return message


class Far(Transport):
    """A transport that other machines reach."""

    scheme = "far"
    reaches_other_machines = True

    def listen(self, path, host):
        return None

    def connect(self, address):
        raise ConnectionRefusedError(address)


class Reserved(Far):
    scheme = "tcp"


def test_whose_address_is_used(transport, monkeypatch):
    """That of the transport which this process has named, if it reaches the server; else ZeroMQ."""
    own = {**ANNOUNCED, "own": "memfd:///near/own"}
    assert announced_endpoint(own, True) == Endpoint("memfd:///near/own")
    assert announced_endpoint(own, False) == Endpoint("tcp://10.0.0.1:7", "k")
    monkeypatch.setenv("KHOP_TRANSPORT", f"{__name__}:Far")
    assert announced_endpoint(own, True) == Endpoint("ipc:///near")
    far = {**ANNOUNCED, "own": "far://host"}
    assert announced_endpoint(far, True) == announced_endpoint(far, False) == Endpoint("far://host")


HOSTILE = ["shared_files:SharedFiles", "shared_files:SharedFiles://x", "memfd:///x", "far", 7, None]


@pytest.mark.parametrize("own", HOSTILE)
def test_an_announcement_imports_nothing(tmp_path, monkeypatch, own):
    """Without the variable, whatever others announce: a module whose import leaves a mark."""
    monkeypatch.delenv("KHOP_TRANSPORT", raising=False)
    monkeypatch.setattr(TRANSPORTS, "_named", {})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shared_files.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w')\n{fenced.blocks(PAGE)[0].source}"
    )
    for is_near, expected in ((True, "ipc:///near"), (False, "tcp://10.0.0.1:7")):
        assert announced_endpoint({**ANNOUNCED, "own": own}, is_near).address == expected
    assert transport_of(own) is None
    if isinstance(own, str):
        with pytest.raises(zmq.ZMQError):  # as any address that is none
            Connection(zmq.Context.instance(), endpoint=Endpoint(own))
    assert not (tmp_path / "imported").exists()
    monkeypatch.setenv("KHOP_TRANSPORT", "shared_files:SharedFiles")
    assert own_transport().scheme == "memfd" and (tmp_path / "imported").exists()
    del sys.modules["shared_files"]


def test_names_that_are_no_transports(monkeypatch):
    for name, error, message in (
        (f"{__name__}:Reserved", TypeError, "scheme must be a word .* none of tcp, ipc, inproc"),
        ("gone", ValueError, "no transport 'gone'"),
        ("khop_gone:X", PluginError, "khop.transports: cannot import 'khop_gone:X'"),
        ("json:loads", TypeError, r"must be a subclass of khop\.distributed\.Transport"),
    ):
        monkeypatch.setenv("KHOP_TRANSPORT", name)
        with pytest.raises(error, match=message):
            own_transport()
    monkeypatch.setenv("KHOP_TRANSPORT", "")
    assert own_transport() is None


def test_messages_both_ways(transport, tmp_path):
    """Through a server's sockets and a client's connection; a client that returns is another."""
    sockets = ServerSockets(str(tmp_path / "server"), None, None, transport=transport)
    try:
        assert sockets.addresses["own"] == f"memfd://{tmp_path}/own"
        connection = Connection(zmq.Context.instance(), endpoint=Endpoint(sockets.addresses["own"]))
        assert connection.pump() and connection.is_up and not connection.pump()
        values = np.arange(500_000)
        connection.send(pack({"id": 1}, [values, np.empty(0)]))
        front = sockets.fronts[1]
        assert sockets.receive(1) is None  # it has connected
        wait(front)
        name, *frames = sockets.receive(1)
        header, arrays = unpack([frame.buffer for frame in frames])
        assert header["id"] == 1 and np.array_equal(arrays[0], values) and len(arrays[1]) == 0
        sockets.send(1, name.bytes, frames)
        wait(*connection.sockets)
        ((header, arrays, nbytes),) = connection.receive()
        assert np.array_equal(arrays[0], values) and nbytes > values.nbytes
        connection.close()
        assert front.receive() is None
        sockets.send(1, name.bytes, frames)  # dropped
        connection.relocate(Endpoint(sockets.addresses["own"]))
        connection.pump()
        connection.send(pack({"id": 2}, []))
        assert next_message(front)[0] != name.bytes
    finally:
        sockets.close()
    wait(*connection.sockets)
    assert list(connection.receive()) == [] and not connection.is_up
    connection.close()
    assert connection.sockets == []


def test_a_server_that_is_gone_and_back(transport, tmp_path):
    """Nothing is delivered late; the connection is tried again, after pauses, without errors."""
    now = [0.0]
    address = f"memfd://{tmp_path}/own"
    connection = Connection(zmq.Context.instance(), None, Endpoint(address), lambda: now[0])
    assert not connection.pump() and "cannot be reached" in connection.state()
    connection.send(pack({"id": 1}, []))
    front = ChannelFront(transport.listen(f"{tmp_path}/own", None), 9)
    now[0] = 0.01
    assert not connection.pump()  # too early
    now[0] = 1.0
    assert connection.pump() and connection.is_up
    connection.send(pack({"id": 2}, []))
    assert next_message(front)[1:] == [bytes(frame) for frame in pack({"id": 2}, [])]
    assert front.receive() is None
    front.close()
    connection.send(pack({"id": 3}, []))  # fails; `pump` ends the connection, not `send`
    assert connection.sockets
    assert not connection.pump() and not connection.is_up
    connection.close()


def hostile_messages(path):
    """Functions that send what no message is, each over a socket of its own."""

    def end():
        own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.connect(path)
        return own

    def with_file(sizes, content):
        own, file = end(), os.memfd_create("message")
        os.write(file, content)
        socket.send_fds(own, [struct.pack(f"{len(sizes)}Q", *sizes)], [file])
        os.close(file)
        return own

    yield lambda: end().close()
    yield lambda: end().send(b"no descriptor")
    yield lambda: with_file([1 << 62], b"")
    yield lambda: with_file([5], b"1234")
    yield lambda: with_file([1 << 63, 1 << 63], b"")
    yield lambda: with_file([], b"1234")


def test_what_a_peer_does_wrong_ends_its_connection_alone(transport, tmp_path):
    path = f"{tmp_path}/own"
    front = ChannelFront(transport.listen(path, None), 4)
    good = transport.connect(f"memfd://{path}")
    kept = []
    for send in hostile_messages(path):
        kept.append(send())
        good.send([b"a", b"bc"])
        assert next_message(front)[1:] == [b"a", b"bc"]
    while front.receive() is not None or len(front._channels) > 1:
        wait(front)
    others = [transport.connect(f"memfd://{path}") for _ in range(6)]
    for _ in range(8):
        assert front.receive() is None
    assert len(front._channels) == 4
    good.send([b"still"])
    name, frame = next_message(front)
    front.send(name, [frame])
    front.send(b"own-99", [frame])
    wait(good)
    assert good.receive() == [b"still"]
    for _ in range(2000):  # it does not read: in the end its connection is ended
        front.send(name, [b"more"])
    assert len(front._channels) == 3
    front.close()
    for channel in [good, *others]:
        channel.close()
