"""What clients ask of servers, and what comes back from those that lie: ProtocolError, never less.

The thread that asks lives on whatever it is told; if it should end all the same, nobody waits.
"""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from khop.channel.control import ControlLine, Op, socket_pair
from khop.distributed import init_client, shutdown_client
from khop.distributed.processes.hosts import host_identity
from khop.distributed.remote.client.local_sampler import LocalSampler
from khop.distributed.remote.messages import Ping, WaitFor, json_array
from khop.errors import PartitionUnavailableError, ProtocolError, RendezvousError
from khop.typing import EDGE, NODE
from support.cluster import jobs
from support.cluster.lying import malformed_frames, scripted
from support.cluster.serving import client_of, wait_until


@pytest.fixture
def server(folder_of):
    """A scripted server of one part."""
    with scripted(folder_of("random", 1)) as found:
        yield found


@contextlib.contextmanager
def within(seconds):
    """Fails if the block takes longer: it must not wait without an end."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def with_entry(table, **fields):
    """A table whose server 0 is described in another way."""
    return {**table, "servers": {"0": {**table["servers"]["0"], **fields}}}


def nested(depth):
    text = b"[" * depth + b"]" * depth
    return np.frombuffer(text, np.uint8)


def test_tables_that_are_none(server):
    """Strange addresses, missing fields, no JSON, nesting: none ends the thread that reads it."""
    table = server.table()
    bad = [
        json_array(with_entry(table, addresses={"tcp": "ftp://x", "ipc": None})),
        json_array(with_entry(table, addresses={"tcp": "tcp://h:99999", "ipc": None})),
        json_array(with_entry(table, addresses={"tcp": 3})),
        json_array(with_entry(table, parts="0")),
        json_array(with_entry(table, silent=float("nan"))),
        json_array({name: value for name, value in table.items() if name != "directory"}),
        json_array({**table, "num_servers": 10**9}),
        json_array({**table, "servers": {"0x1": table["servers"]["0"]}}),
        json_array([table]),
        np.frombuffer(b"{", np.uint8),
        np.frombuffer(b"\xff\xfe", np.uint8),
        nested(985),
        nested(100_000),
        json_array(table).view(np.int8),
    ]
    with client_of(server, timeout=20.0) as client:
        client.wait_for_servers()
        turns = iter(bad)
        done = threading.Event()

        def change(op, messages):
            if op != "lookup":
                return messages
            array = next(turns, None)
            if array is None:
                done.set()
                return messages
            return [(messages[0][0], [array])]

        server.change = change
        # Its connection ends with each, and comes back after a second at most.
        assert done.wait(60)
        assert client.request(0, Ping()).fields.rank == 0
        assert client.wait_for_servers().num_servers == 1


def test_addresses_that_no_socket_takes(server):
    """A path that the system has no bytes for is that server's trouble, until it has another."""
    table = server.table()
    tcp = table["servers"]["0"]["addresses"]["tcp"]
    strange = {"tcp": tcp, "ipc": "ipc:///\ud800"}
    server.table = lambda: with_entry(table, host=host_identity(), addresses=strange)
    with client_of(server, timeout=1.0) as client:
        client.wait_for_servers()
        with within(10), pytest.raises(PartitionUnavailableError, match="graph server 0"):
            client.request(0, Ping())
        server.table = lambda: table
        assert client.request(0, Ping(), timeout=10.0).fields.rank == 0


def test_invalid_replies_of_the_directory_are_named_at_the_timeout(server):
    """Who waits for it is told what is wrong, when his time is over."""
    server.table = lambda: []
    with (
        client_of(server) as client,
        within(10),
        pytest.raises(RendezvousError, match=r"cannot be used|must be an object"),
    ):
        client.wait_for_table(lambda _: True, "an answer", 2.5)


@pytest.mark.parametrize(
    "reply",
    [
        lambda header: ({**header, "rank": "x"}, []),
        lambda header: ({"id": header["id"]}, []),
        lambda header: ({**header, "more": 1}, []),
        lambda header: ({**header, "rank": 10**9}, []),
    ],
    ids=["text", "missing", "unknown", "range"],
)
def test_replies_of_another_kind(server, reply):
    """The error names the server, and the next request is answered."""
    with client_of(server) as client:
        client.wait_for_servers()
        server.change = lambda op, m: [reply(m[0][0])] if op == "ping" else m
        name = rf"graph server 0 at tcp://127.0.0.1:{server.port} sent a malformed reply to 'ping'"
        with within(10), pytest.raises(ProtocolError, match=name):
            client.request(0, Ping())
        server.change = lambda op, messages: messages
        assert client.request(0, Ping()).fields.rank == 0


def test_replies_to_nobody_and_messages_that_are_none(server):
    """They are passed over, or end the connection; requests are sent again over the next."""
    strange = [
        *malformed_frames()[:5],
        *([b'{"arrays": [], "id": %s}' % number] for number in (b"[1]", b'"1"', b"1e9", b"null")),
    ]
    with client_of(server) as client:
        client.wait_for_servers()
        for frames in strange:
            lies = iter([frames])

            def change(op, messages, lies=lies):
                return [*lies, *messages] if op == "ping" else messages

            server.change = change
            with within(15):
                assert client.request(0, Ping()).fields.rank == 0


def test_errors_are_bounded_and_name_the_server(server):
    with client_of(server) as client:
        client.wait_for_servers()
        for error in (
            None,
            [],
            5,
            {},
            {"type": ["a"]},
            {"type": "x" * 10**5, "message": "y" * 9 * 10**5},
        ):

            def change(op, m, error=error):
                return [({"id": m[0][0]["id"], "error": error}, [])] if op == "ping" else m

            server.change = change
            with pytest.raises(Exception, match="graph server 0 at") as raised:
                client.request(0, Ping())
            assert len(str(raised.value)) < 250_000


def test_values_of_clients_that_are_none(server):
    """What the directory says that clients have published."""
    with client_of(server) as client:
        client.wait_for_servers()
        for fields, text in (
            ({"ranks": [0], "ends": [5]}, b"12"),
            ({"ranks": [0], "ends": [2, 2]}, b"12"),
            ({"ranks": [0], "ends": [1]}, b"{}"),
            ({"ranks": [3], "ends": [2]}, b"12"),
            ({"ranks": [0, 1], "ends": [2, 1]}, b"12"),
            ({"ranks": [0], "ends": [10**5]}, nested(50_000).tobytes()),
            ({"ranks": [0]}, b"12"),
        ):

            def change(op, m, fields=fields, text=text):
                if op != WaitFor.op:
                    return m
                return [({"id": m[0][0]["id"], **fields}, [np.frombuffer(text, np.uint8)])]

            server.change = change
            with within(10), pytest.raises(ProtocolError, match="the directory"):
                client.wait_for("n", [0, 1], 0.1)


def test_end_of_the_client_thread_fails_all_requests(server):
    """What is under way fails at once, with the reason; so does what comes later."""
    with client_of(server, timeout=60.0) as client:
        client.wait_for_servers()
        server.change = lambda op, m: [] if op == "ping" else m
        waiting = [client.submit(0, Ping()) for _ in range(3)]
        table: list[Exception] = []

        def wait():
            try:
                client.wait_for_table(lambda _: False, "what never comes", 60.0)
            except Exception as error:
                table.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: server.count("ping") == 3)
        # As an error in the thread that nobody has thought of.
        client._beat = lambda: 1 / 0
        with within(10):
            for future in waiting:
                with pytest.raises(RuntimeError, match="division by zero"):
                    future.result()
            waiter.join(10)
        assert "division by zero" in str(table[0])
        for call in (client.submit, client.request):
            with within(5), pytest.raises(RuntimeError, match="division by zero"):
                call(0, Ping())
        with within(5), pytest.raises(RuntimeError, match="division by zero"):
            client.wait_for_table(lambda _: False, "anything")


@pytest.mark.process
def test_a_fork_does_not_wait_for_a_thread_that_it_lacks(server):
    with client_of(server) as client:
        client.wait_for_servers()
        fork = os.fork()
        if fork == 0:
            try:
                client.submit(0, Ping())
            except RuntimeError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 7


# The graph -----------------------------------------------------------------------------------


@contextlib.contextmanager
def graph_of(server):
    """The graph as a client's loaders see it."""
    context = init_client(1, 1, 0, "127.0.0.1", server.port)
    try:
        yield context.graph
    finally:
        server.change = lambda op, messages: messages
        shutdown_client()


def arrays_of(op, change):
    """A reply with other arrays."""
    return lambda name, m: [(m[0][0], change(m[0][1]))] if name == op else m


def put(value, place=0):
    def change(arrays):
        changed = [np.array(array) for array in arrays]
        changed[place].reshape(-1)[0] = value
        return changed

    return change


IDS = {
    "too few": lambda a: [a[0][:-1]],
    "none": lambda a: [],
    "two": lambda a: [a[0], a[0]],
    "floats": lambda a: [a[0].astype(np.float64)],
    "small": lambda a: [a[0].astype(np.int32)],
    "below 0": put(-1),
    "beyond": put(500),
}


def test_ids_that_do_not_exist(server):
    """Translated ids, edges and splits lie within the graph, and are as many as were asked for."""
    ids = np.arange(40)
    with graph_of(server) as graph:
        name = rf"graph server 0 at tcp://127.0.0.1:{server.port} (answered|sent)"
        for op, ask in (
            ("to_new_ids", lambda: graph.to_new_ids(ids, "ids")),
            ("to_original_ids", lambda: graph.to_original_ids(ids)),
            ("home_edges", lambda: graph.owned_edges(EDGE)),
        ):
            right = ask()
            for lie in IDS.values():
                server.change = arrays_of(op, lie)
                with within(10), pytest.raises(ProtocolError, match=name):
                    ask()
            server.change = lambda op, messages: messages
            assert np.array_equal(ask(), right)


def test_splits_that_are_none(server):
    """Not ascending, repeated, of another length each time, or never ending."""
    totals, first = iter(range(100, 400)), {}

    def growing(arrays):
        return [np.array([next(totals)]), arrays[1][:2], arrays[2][:2]]

    lies = {
        "turned": lambda a: [a[0], a[1][::-1].copy(), a[2]],
        "repeated": lambda a: [a[0], np.repeat(a[1][:1], len(a[1])), a[2]],
        "the same piece again": lambda a: first.setdefault("a", [a[0], a[1][:5], a[2][:5]]),
        "nothing": lambda a: [a[0], a[1][:0], a[2][:0]],
        "more than it says": lambda a: [a[0] - 1, a[1], a[2]],
        "more than there are": lambda a: [np.array([2**62]), a[1], a[2]],
        "below 0": lambda a: [np.array([-5]), a[1], a[2]],
        "another total each time": growing,
        "two totals": lambda a: [np.array([5, 6]), a[1], a[2]],
        "a matrix": lambda a: [a[0], a[1].reshape(1, -1), a[2]],
        "one array": lambda a: [a[0]],
        "an id beyond": put(10**6, 1),
    }
    with graph_of(server) as graph:
        for lie in lies.values():
            server.change = arrays_of("split", lie)
            with within(10), pytest.raises(ProtocolError, match="graph server 0 at tcp"):
                graph.split(NODE, "train_mask")
        server.change = lambda op, messages: messages
        assert len(graph.split(NODE, "train_mask")) > 5


def test_descriptions_of_graphs_that_are_none(server):
    for text in (
        json_array([]),
        json_array({"meta": 5}),
        json_array({"meta": {"num_parts": float("inf")}}),
        np.frombuffer(b"{", np.uint8),
        nested(985),
    ):
        server.change = arrays_of("graph", lambda _, text=text: [text])
        with (
            within(20),
            pytest.raises(ProtocolError, match=f"graph server 0 at tcp://127.0.0.1:{server.port}"),
            graph_of(server),
        ):
            pass


# The same machine ----------------------------------------------------------------------------


@contextlib.contextmanager
def local_server(path, *answers):
    """A server of this machine that answers one client so: (operation, payload, descriptors)."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def serve():
        line = listener.accept()[0]
        message = line.recvmsg(1 << 17, 1 << 10)
        for _, _, data in message[1]:
            for descriptor in np.frombuffer(data, np.int32):
                os.close(int(descriptor))
        for op, payload, descriptors in answers:
            socket.send_fds(line, [bytes([op]) + payload], descriptors)
        line.recv(1)
        line.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join(10)
        listener.close()
        path.unlink()


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_samplers_of_this_machine_that_are_none(tmp_path):
    """What the server says of them is read; descriptors that come along are not left open."""
    path, pair = tmp_path / "lines", socket_pair()
    file, stream = os.open(os.devnull, os.O_RDONLY), socket.socket()
    ours, line = pair[0], pair[1].fileno()
    before = num_descriptors()
    for op, payload, descriptors in (
        (Op.READY, b"{}", [line]),
        (Op.READY, b'{"pid": "x"}', [line]),
        (Op.READY, b'{"pid": -1}', [line]),
        (Op.READY, b"[]", [line]),
        (Op.READY, b"{", [line]),
        (Op.READY, b'{"pid": 7}', []),
        (Op.READY, b'{"pid": 7}', [line, line]),
        (Op.READY, b'{"pid": 7}', [file]),
        (Op.READY, b'{"pid": 7}', [stream.fileno()]),
        (Op.ERROR, b"[]", [line]),
        (99, b"", [line]),
    ):
        with local_server(path, (op, payload, descriptors)), pytest.raises(ProtocolError):
            LocalSampler(str(path), {}, [])
        assert num_descriptors() == before, payload
    os.close(file)
    for end in (stream, ours, pair[1]):
        end.close()


def test_ends_of_samplers_that_are_none(tmp_path):
    path, pair = tmp_path / "lines", socket_pair()
    started = (Op.READY, b'{"pid": 7}', [pair[1].fileno()])
    for payload in (b"[]", b"{}", b'{"status": 1, "task": null, "log": ""}', b"{"):
        with local_server(path, started, (Op.ERROR, payload, [pair[1].fileno()])):
            process = LocalSampler(str(path), {}, [])
            before = num_descriptors()
            for ask in (process.exit_status, process.last_task, process.log_tail):
                with contextlib.suppress(ProtocolError):
                    assert not ask() or "ended with its graph server" in ask()
            assert num_descriptors() == before
            process.close()
    said = b'{"status": "was killed", "task": [1, 2], "log": "end"}'
    with local_server(path, started, (Op.ERROR, said, [])):
        process = LocalSampler(str(path), {}, [])
        assert process.exit_status() == "was killed"
        assert (process.last_task(), process.log_tail()) == ((1, 2), "end")
        assert not process.ended_with_server
        process.close()
    for end in pair:
        end.close()
    assert isinstance(process.line, ControlLine)
    assert jobs.wait_for_ends([]) == []
