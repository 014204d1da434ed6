"""The partition server answers what is asked correctly, and nobody who should not ask."""

import contextlib
import os
import select
import socket
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zmq
from hypothesis import given, settings, strategies as st

from khop import log
from khop.channel.control import ControlLine, Op, socket_pair
from khop.channel.message import pack, unpack
from khop.distributed.processes.child import ChildProcess
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.partition_server import PartitionServer, RequestHandler
from khop.distributed.rpc.protocol import PROTOCOL, Degrees, request_header
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.partition import PartitionFolder
from khop.sampler.requests import HopRequest, RowSet
from khop.storage.part import Part
from support.kernels import hop_calls


@pytest.fixture
def part(folder_of):
    """Part 1 of 3."""
    return Part(PartitionFolder(folder_of("random", 3)), 1)


@contextlib.contextmanager
def serving(part, handler=None, **options):
    """A server in a thread."""
    ours, theirs = socket_pair()
    settings = {"ipc_path": None, "tcp_host": None, "curve": None, **options}
    server = PartitionServer(handler or RequestHandler(part), **settings)
    thread = threading.Thread(target=server.serve, args=(ControlLine(theirs),))
    thread.start()
    try:
        yield server
    finally:
        ours.close()
        thread.join(5)
        assert not thread.is_alive()
        server.close()
        theirs.close()


@contextlib.contextmanager
def client_of(endpoint, credentials=None, **options):
    """A client of part 1."""
    client = PartitionClient({1: endpoint}, credentials, **options)
    try:
        yield client
    finally:
        client.close()


def connect(client):
    """Waits until the connection to part 1 stands, which is no time of a request's."""
    end = time.monotonic() + 20
    while client._connections[1].lost_since is not None:
        assert time.monotonic() < end
        time.sleep(0.01)
        client.pump()


def ask(client, request):
    """Waits for one answer."""
    client.wait([request])
    return request.result()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_answers(part, tmp_path, num_threads):
    """Neighbours and attributes over the wire are those that the part itself has."""
    low, high = part.meta.node_types[0].bounds[1:3]
    ids = np.arange(low, high)
    with (
        serving(part, ipc_path=str(tmp_path / "s"), num_threads=num_threads) as server,
        client_of(Endpoint(server.addresses["ipc"])) as client,
    ):
        drawn = [
            client.sample(1, 0, RowSet(ids), HopRequest(3, False, True, key)) for key in range(20)
        ]
        fetched = [client.fetch(1, "node", 0, ids[::-1].copy(), ["id", "x", "half", "brain"])]
        client.wait([*drawn, *fetched])
        for key, request in enumerate(drawn):
            expected = hop_calls.sample_rows(part.csrs[0], ids, 3, False, key, True)
            for ours, theirs in zip(request.result(), expected, strict=True):
                assert np.array_equal(ours, theirs)
        original, x, half, brain = fetched[0].result()
        assert np.array_equal(original, part.node_ids("node")[::-1])
        assert np.array_equal(x[:, 0], original.astype(np.float32))
        assert np.array_equal(half, original.astype(np.float16))
        assert brain.dtype == np.uint16


def test_wrong_requests_raise_at_the_client(part, tmp_path):
    """What the server refuses, with its own type and words; it goes on serving."""
    low, high = part.meta.node_types[0].bounds[1:3]
    with (
        serving(part, ipc_path=str(tmp_path / "s")) as server,
        client_of(Endpoint(server.addresses["ipc"])) as client,
    ):
        for bad in ([low - 1], [high], [2**60], [-5]):
            ids = np.array(bad)
            with pytest.raises(IndexError, match=r"not one of the graph's rows(.|\n)*partition 1"):
                ask(client, client.sample(1, 0, RowSet(ids), HopRequest(3, False, False, 1)))
            with pytest.raises(IndexError):
                ask(client, client.fetch(1, "node", 0, ids, ["x"]))
        ids = np.array([low])
        with pytest.raises(KeyError, match="secret"):
            ask(client, client.fetch(1, "node", 0, ids, ["secret"]))
        with pytest.raises(ProtocolError, match="relation"):
            ask(client, client.sample(1, 7, RowSet(ids), HopRequest(3, False, False, 1)))
        assert len(ask(client, client.fetch(1, "node", 0, ids, ["x"]))) == 1


GOOD = {
    "op": "sample",
    "protocol": PROTOCOL,
    "id": 1,
    "part": 1,
    "relation": 0,
    "hop": {
        "fanout": 2,
        "replace": False,
        "key": 1,
        "with_edge": False,
        "weighted": False,
        "last": False,
    },
    "rows": [],
}


def changed(change):
    """A right request but for some fields, those of the hop included."""
    hop = {name: change[name] for name in change if name in GOOD["hop"]}
    if change.get("op") == "fetch":
        return {**{name: GOOD[name] for name in ("protocol", "id", "part")}, **change}
    rest = {name: change[name] for name in change if name not in hop}
    return {**GOOD, "hop": {**GOOD["hop"], **hop}, **rest}


@pytest.mark.parametrize("change", [
    {"op": "run"}, {"op": None}, {"op": ["sample"]}, {"protocol": 0}, {"part": 0}, {"relation": -1},
    {"relation": 1.0}, {"relation": True}, {"fanout": "2"}, {"fanout": 2**80}, {"replace": 1},
    {"key": -1}, {"key": 2**64}, {"key": None}, {"with_edge": "yes"}, {"weighted": 0}, {"last": 2},
    {"weighted": True}, {"unknown": 1}, {"hop": None}, {"fanout": -2}, {"rows": None},
    {"rows": [1]}, {"rows": ["trees"]},
    {"op": "fetch", "element": "graph", "index": 0, "names": []},
    {"op": "fetch", "element": "node", "index": 0, "names": "x"},
    {"op": "fetch", "element": "node", "index": 0, "names": [["x"]]},
    {"op": "fetch", "element": "node", "index": 0, "names": ["../../../etc/passwd"]},
])  # fmt: skip
def test_hostile_requests(part, change):
    """Every field out of its range or type is answered with an error."""
    low = part.meta.node_types[0].bounds[1]
    reply, arrays = unpack(RequestHandler(part)(pack(changed(change), [np.array([low])])))
    unknown = change.get("names") == ["../../../etc/passwd"]
    assert reply["error"]["type"] == ("KeyError" if unknown else "ProtocolError") and not arrays
    reply, arrays = unpack(RequestHandler(part)(pack(GOOD, [np.array([low])])))
    assert "error" not in reply and len(arrays) == 2


@given(st.lists(st.binary(max_size=200), max_size=4))
@settings(max_examples=300)
def test_any_frames(frames):
    """Frames of any bytes are answered with an error."""
    handler = RequestHandler.__new__(RequestHandler)
    handler._types, handler.incarnation, handler._bounded = {}, "", False
    reply, _ = unpack(handler(frames))
    assert reply["error"]["type"] == "ProtocolError"


@pytest.mark.parametrize("array", [
    np.zeros(3, np.int32), np.zeros(3), np.zeros((2, 2), np.int64), np.zeros((), np.int64),
])  # fmt: skip
def test_ids_of_another_type(part, array):
    """Only vectors of int64 are ids."""
    reply, _ = unpack(RequestHandler(part)(pack(GOOD, [array])))
    assert reply["error"]["type"] == "ProtocolError"


def make_keys():
    """A server's and a job's key pair."""
    server, job = zmq.curve_keypair(), zmq.curve_keypair()
    curve = {
        "public": server[0].decode(),
        "secret": server[1].decode(),
        "clients": [job[0].decode()],
    }
    return curve, KeyPair(job[0].decode(), job[1].decode())


def test_only_the_job_is_let_in(part):
    """With CURVE: the job's key works; another key, and no key, do not."""
    curve, credentials = make_keys()
    _, stranger = make_keys()
    ids = np.array([part.meta.node_types[0].bounds[1]])
    with serving(part, tcp_host="127.0.0.1", curve=curve) as server:
        endpoint = Endpoint(server.addresses["tcp"], curve["public"])
        with client_of(endpoint, credentials) as client:
            assert len(ask(client, client.fetch(1, "node", 0, ids, ["x"]))) == 1
        for target, keys in ((endpoint, stranger), (Endpoint(endpoint.address), None)):
            with (
                client_of(target, keys, timeout=0.5) as client,
                pytest.raises(PartitionUnavailableError, match="partition 1 at tcp"),
            ):
                ask(client, client.fetch(1, "node", 0, ids, ["x"]))
    with pytest.raises(ValueError, match="no keys are given"):
        PartitionClient({1: endpoint})


def test_server_that_is_not_there(tmp_path):
    """An exception that names partition and address, within the time that a request may take."""
    address = f"ipc://{tmp_path / 'nobody'}"
    with (
        client_of(Endpoint(address), timeout=0.3) as client,
        pytest.raises(PartitionUnavailableError, match=f"partition 1 at {address} .*unreach"),
    ):
        ask(client, client.fetch(1, "node", 0, np.zeros(1, np.int64), ["x"]))


def test_server_that_gives_no_answer(tmp_path):
    """A server that listens but never answers: the request's own time runs out."""
    context = zmq.Context()
    silent = context.socket(zmq.ROUTER)
    silent.bind(f"ipc://{tmp_path / 's'}")
    with (
        client_of(Endpoint(f"ipc://{tmp_path / 's'}"), timeout=0.5) as client,
        pytest.raises(PartitionUnavailableError, match=r"connected, but gave no answer in \d"),
    ):
        connect(client)
        ask(client, client.fetch(1, "node", 0, np.zeros(1, np.int64), ["x"]))
    silent.close(0)
    context.term()


def test_server_that_comes_back(part, tmp_path):
    """Requests in flight are sent again to a server that was gone for a moment."""
    path = str(tmp_path / "s")
    ids = np.array([part.meta.node_types[0].bounds[1]])
    context = zmq.Context()
    first = context.socket(zmq.ROUTER)
    first.bind(f"ipc://{path}")
    with client_of(Endpoint(f"ipc://{path}"), timeout=20) as client:
        request = client.fetch(1, "node", 0, ids, ["x"])
        connect(client)
        assert first.poll(20_000)
        first.recv_multipart()  # and dies without an answer
        first.close(0)
        context.term()
        Path(path).unlink(missing_ok=True)
        with serving(part, ipc_path=path):
            assert len(ask(client, request)) == 1


def test_server_that_comes_back_elsewhere(part, tmp_path):
    """`relocate` takes requests in flight along, and those to come; `give_up` fails them."""
    ids = np.array([part.meta.node_types[0].bounds[1]])
    context = zmq.Context()
    silent = context.socket(zmq.ROUTER)
    silent.bind(f"ipc://{tmp_path / 'old'}")
    with (
        serving(part, ipc_path=str(tmp_path / "new")) as server,
        client_of(Endpoint(f"ipc://{tmp_path / 'old'}"), timeout=20) as client,
    ):
        requests = [client.fetch(1, "node", 0, ids, ["x"]) for _ in range(3)]
        connect(client)
        assert silent.poll(20_000)
        assert not client.relocate(1, Endpoint(f"ipc://{tmp_path / 'old'}"))
        before = {socket for socket, _ in client.poller.sockets}
        assert client.relocate(1, Endpoint(server.addresses["ipc"]))
        assert not before & {socket for socket, _ in client.poller.sockets}
        client.wait(requests)
        for request in [*requests, client.fetch(1, "node", 0, ids, ["x"])]:
            assert ask(client, request)[0].shape == (1, 5)
        client.give_up(1, "has ended for a test")
        with pytest.raises(PartitionUnavailableError, match=r"1 at ipc:.* has ended for a test"):
            ask(client, client.fetch(1, "node", 0, ids, ["x"]))
    silent.close(0)
    context.term()


class SlowHandler(RequestHandler):
    """Takes longer over an answer than heartbeats may be late."""

    def steps(self, frames, *source):
        time.sleep(4)
        return super().steps(frames, *source)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_server_that_is_slow(part, tmp_path, num_threads):
    """Its heartbeats tell that it lives: it is waited for, and asked once."""
    ids = np.array([part.meta.node_types[0].bounds[1]])
    lost = []
    with (
        serving(
            part, SlowHandler(part), ipc_path=str(tmp_path / "s"), num_threads=num_threads
        ) as server,
        client_of(Endpoint(server.addresses["ipc"]), timeout=20) as client,
    ):
        connect(client)
        client.on_lost = lambda number, since: lost.append(number)
        assert ask(client, client.fetch(1, "node", 0, ids, ["x"]))[0].shape == (1, 5)
    assert lost == []


def test_connection_that_is_half_open(part):
    """What is sent arrives nowhere, and nobody says so: heartbeats find out, it is sent again."""
    ids = np.array([part.meta.node_types[0].bounds[1]])
    curve, credentials = make_keys()
    with serving(part, tcp_host="127.0.0.1", curve=curve) as server:
        port = int(server.addresses["tcp"].rpartition(":")[2])
        with (
            forwarding(port) as (proxy, muted),
            client_of(Endpoint(proxy, curve["public"]), credentials, timeout=30) as client,
        ):
            ask(client, client.fetch(1, "node", 0, ids, ["x"]))
            muted.set()  # of connections that there are; later ones are forwarded
            began = time.monotonic()
            requests = [client.fetch(1, "node", 0, ids, ["x"]) for _ in range(5)]
            client.wait(requests)
            assert [r.result()[0].shape for r in requests] == [(1, 5)] * 5
            assert 1 < time.monotonic() - began < 15


@contextlib.contextmanager
def forwarding(port):
    """A proxy of a port; when its event is set, it swallows what connections there are bring."""
    listener = socket.create_server(("127.0.0.1", 0))
    muted, ends = threading.Event(), []

    def pump(source, target, is_old):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not (is_old and muted.is_set()):
                    target.sendall(data)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                ends.extend([near, far])
                for pair in ((near, far), (far, near)):
                    arguments = (*pair, not muted.is_set())
                    threading.Thread(target=pump, args=arguments, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}", muted
    finally:
        for end in [listener, *ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_lost_servers_are_told(part, tmp_path):
    """`on_lost` hears of a server that requests wait for, and may say where it is."""
    ids = np.array([part.meta.node_types[0].bounds[1]])
    told = []

    def look(number, since):
        told.append((number, since))
        client.relocate(number, Endpoint(f"ipc://{tmp_path / 'new'}"))

    with (
        serving(part, ipc_path=str(tmp_path / "new")),
        client_of(Endpoint(f"ipc://{tmp_path / 'old'}"), timeout=20, on_lost=look) as client,
    ):
        assert ask(client, client.fetch(1, "node", 0, ids, ["x"]))[0].shape == (1, 5)
    assert [number for number, _ in told] == [1]


def test_socket_folder_is_the_owners_alone(folder_of):
    """On one machine the socket lies in a folder that nobody else can enter."""
    from khop.distributed import DistDataset

    dataset = DistDataset().load(folder_of("random", 2), 0, also_serve=[1])
    endpoint = dataset.service().endpoints()[1]
    folder = Path(endpoint.address.removeprefix("ipc://")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()
    assert endpoint.server_key is None


def start_program(program, folder_of, path, **config):
    """A server of `support.cluster` that listens at a path, in a process of its own."""
    process = ChildProcess(f"support.cluster.{program}", None)
    config = {"root": str(folder_of("random", 1)), "part": 0, "ipc_path": str(path), **config}
    config |= {"tcp_host": None, "curve": None, "num_threads": 1}
    told = {"parent": os.getpid(), "end_with_parent_thread": False, "log": log.of_child("", {})}
    process.line.send_json(Op.CONFIG, {**told, **config})
    poller = select.poll()
    poller.register(process.line.fileno(), select.POLLIN)
    assert poller.poll(30_000)
    assert process.line.receive().op is Op.READY
    return process


def test_a_signal_between_two_frames_of_a_reply(folder_of, tmp_path):
    """The reply is sent in full, and the goodbye is a message of its own."""
    path = tmp_path / "server"
    # Its parent is another process: it has "ended".
    process = start_program("signalled_server", folder_of, path, parent=1)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(f"ipc://{path}")
        dealer.send_multipart(pack(request_header(Degrees(0), 1, part=0), [np.arange(3)]))
        messages = []
        while len(messages) < 2:
            assert dealer.poll(10_000), messages
            messages.append(unpack(dealer.recv_multipart()))
    process.close()
    (reply, (degrees,)), (goodbye, nothing) = messages
    assert reply["id"] == 1 and len(degrees) == 3
    assert "has ended" in goodbye["goodbye"] and not nothing


def test_server_that_is_interrupted_while_it_tidies_up(folder_of, tmp_path, monkeypatch):
    """Of a trainer that is terminated the line closes, and SIGTERM comes: no folder is left."""
    place = tmp_path / "khop-socket"
    place.mkdir()
    process = start_program("interrupted_server", folder_of, place / "server")
    assert (place / "server").exists()
    process.close()
    assert not place.exists()
