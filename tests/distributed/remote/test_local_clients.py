"""Clients on a graph server's machine that ask for samplers: those that it refuses."""

import socket

import pytest

from khop.channel.control import ControlLine, Op
from khop.distributed.remote.server.local_clients import LocalSamplerService
from khop.distributed.remote.server.session_environment import SessionEnvironment
from support.cluster.fake_samplers import FakeProgram


class Service:
    """A service, and connections to it."""

    def __init__(self, path, max_guests=8):
        self.path, self.program, self.clients = str(path), FakeProgram(), []
        host = SessionEnvironment({}, [0], 1, {}, None, lambda *_: None, lambda: None, self.program)
        self.service = LocalSamplerService(self.path, host, None, max_guests)

    def connect(self):
        """A client's connection."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.connect(self.path)
        self.clients.append(ControlLine(end))
        self.service.process_ready(self.service._listener.fileno())
        return self.clients[-1]

    def run(self):
        """Reads what clients have sent."""
        for descriptor in list(self.service._local_clients):
            self.service.process_ready(descriptor)

    def close(self):
        """Ends all."""
        for client in self.clients:
            client.close()
        self.service.close()


@pytest.fixture
def make_service(tmp_path):
    made = []

    def make_service(**options):
        made.append(Service(tmp_path / "lines", **options))
        return made[-1]

    yield make_service
    for service in made:
        service.close()


def test_a_client_that_is_refused_is_disconnected(make_service):
    """It cannot ask again on this connection, and holds no descriptor of the server."""
    service = make_service()
    before = service.service.descriptors()
    client = service.connect()
    client.send_json(Op.CONFIG, {"spec": None})
    client.send_json(Op.CONFIG, {"spec": None})
    service.run()
    message = client.receive()
    assert (message.op, message.json()["type"]) == (Op.ERROR, "ProtocolError")
    with pytest.raises(EOFError):
        client.receive()
    assert service.service.descriptors() == before
    assert service.program.started == []


def test_clients_are_bounded(make_service):
    """Those that are connected count, with a sampler or without."""
    service = make_service(max_guests=1)
    service.connect()
    client = service.connect()
    client.send_json(Op.CONFIG, {})
    service.run()
    error = client.receive().json()
    assert error["type"] == "MemoryError"
    assert error["message"].startswith("1 clients of this machine are connected")
