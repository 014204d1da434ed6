"""Requests that write: once each, in order, and never to a server that has lost its state."""

import contextlib

import numpy as np
import pytest

from khop.channel.message import pack, unpack
from khop.distributed.rpc import state_handler as windows_module
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.frame_handler import NotYet
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.limits import Limits
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import MOST_IN_FLIGHT, Enroll, StateEnvelope, request_header
from khop.distributed.rpc.state_handler import (
    REPLY_BYTES,
    StateHandler,
    WriteWindows,
    users_requests,
)
from khop.errors import ProtocolError, StateLostError
from support.cluster import counter, serving as graph_servers
from support.cluster.counter import Counter, Fail, Increment, Order, ReadCounter
from support.cluster.partition_server import PART, client_of, make_part, serving
from support.cluster.state_runs import cut_connections, kill_servers

RED, BLUE = "0" * 31 + "1", "0" * 31 + "2"
SOURCE = Source((0, b"peer"), "user", key="key")


class Peer:
    """A client, message by message."""

    def __init__(self, handler, client=RED, source=SOURCE):
        self.handler, self.client, self.source = handler, client, source
        self.incarnation = handler.incarnation
        self.error, _ = self.send(Enroll(client))

    def send(self, message, **state):
        envelope = {"state": state} if state else {}
        frames = pack(request_header(message, 1, part=PART, **envelope), [])
        *_, reply = [None, *self.slices(frames)]
        header, arrays = unpack(reply)
        assert header["incarnation"] == self.handler.incarnation
        if header.get("again"):
            return "again", None
        error = header.get("error")
        return error and (error["type"], error["message"]), arrays and arrays[0].tolist()

    def slices(self, frames):
        steps = self.handler.steps(frames, self.source)
        while True:
            try:
                yield next(steps)
            except StopIteration as end:
                yield end.value
                return

    def write(self, message, sequence, settled=1, previous=0):
        return self.send(
            message,
            incarnation=self.incarnation,
            client=self.client,
            sequence=sequence,
            settled=settled,
            previous=previous,
        )

    def read(self, message=None):
        return self.send(message or ReadCounter(), incarnation=self.incarnation)


@pytest.fixture
def state():
    return Counter()


@pytest.fixture
def handler(state):
    return StateHandler(PART, state.types(), "a" * 16)


# The server -----------------------------------------------------------------------------------


@pytest.mark.unit
def test_a_write_that_is_sent_again_is_answered_and_not_applied(handler, state):
    """With the reply as it was, whatever has changed since; a failed one, too."""
    peer = Peer(handler)
    assert peer.write(Increment(5), 1) == (None, [5])
    assert peer.write(Increment(5), 2, previous=1) == (None, [10])
    assert peer.write(Increment(5), 1) == (None, [5])
    for _ in range(2):
        assert peer.write(Fail(), 3, previous=2) == (("ValueError", "failed at 11"), [])
    assert peer.read() == (None, [11])
    assert state.value == 11


@pytest.mark.unit
def test_a_number_that_is_too_old_is_an_error(handler, state):
    """Its reply was dropped when the client had it; or a later one came first."""
    peer = Peer(handler)
    assert peer.write(Increment(), 1) == (None, [1])
    assert peer.write(Increment(), 2, settled=2) == (None, [2])
    for settled in (1, 2):
        error, _ = peer.write(Increment(), 1, settled=settled)
        assert error[0] == "ProtocolError"
    assert peer.write(Increment(), 5, settled=5) == (None, [3])
    error, _ = peer.write(Increment(), 4, settled=3)
    assert error[0] == "ProtocolError" and "is not applied" in error[1]
    assert state.value == 3


@pytest.mark.unit
def test_writes_of_a_client_keep_their_order(handler, state):
    """One that comes before an earlier one is asked for again."""
    peer = Peer(handler)
    assert peer.write(Increment(7, who="a"), 2, previous=1) == ("again", None)
    assert peer.write(Increment(3, who="a"), 1) == (None, [3])
    assert peer.write(Increment(7, who="a"), 2, previous=1) == (None, [10])
    # The client has given up number 3.
    assert peer.write(Increment(9, who="a"), 4, settled=2, previous=2) == (None, [19])
    assert peer.read(Order("a")) == (None, [3, 7, 9])


@pytest.mark.unit
def test_a_write_that_is_sent_again_while_it_is_applied(handler, state):
    """Both messages get the one reply, and later writes wait for it."""
    peer = Peer(handler)

    def begun(message, sequence, previous=0):
        envelope = StateEnvelope(handler.incarnation, RED, sequence, 1, previous)
        header = request_header(message, sequence, part=PART, state=vars(envelope))
        return peer.slices(pack(header, []))

    first = begun(Increment(slices=10), 1)
    assert [next(first) for _ in range(4)] == [None] * 4
    assert state.value == 4
    (*_, later), (*_, again), (*_, reply) = begun(Increment(5), 2, 1), begun(Increment(), 1), first
    assert [unpack(frames)[1][0].tolist() for frames in (later, again, reply)] == [[15], [10], [10]]


@pytest.mark.unit
def test_a_write_of_a_client_that_has_gone_is_finished(handler, state):
    """It was begun: a server that stopped at a slice would leave it half done."""
    from khop.distributed.rpc.request_threads import RequestThreads

    threads = RequestThreads(handler, 0, Limits(), completes=True)
    peer = Peer(handler)
    envelope = StateEnvelope(handler.incarnation, RED, 1, 1, 0)
    header = request_header(Increment(slices=5), 1, part=PART, state=vars(envelope))

    class Frame(bytes):
        """A frame whose connection is closed after its first slice."""

        slices = 0

        @property
        def buffer(self):
            return self

        def get(self, name):
            self.slices += 1
            return 2**30 if self.slices > 1 else 0

    threads.put("user", 0, b"peer", [Frame(f) for f in pack(header, [])], source=SOURCE)
    while threads.has_work:
        threads.work()
    threads.close()
    assert state.value == 5 and peer.write(Increment(slices=5), 1) == (None, [5])


@pytest.mark.unit
def test_a_server_that_was_started_again_gives_no_value(handler, state):
    """Whoever knows another incarnation, or none, gets StateLostError or ProtocolError."""
    peer = Peer(handler)
    peer.write(Increment(), 1)
    successor = StateHandler(PART, Counter().types(), "b" * 16)
    peer.handler = successor
    for error, value in (peer.read(), peer.write(Increment(), 1), peer.write(Increment(), 2)):
        assert error[0] == "StateLostError" and not value
    peer.incarnation = successor.incarnation  # and no window there
    assert peer.write(Increment(), 2)[0][0] == "StateLostError"
    assert peer.send(ReadCounter())[0][0] == "ProtocolError"
    assert Peer(successor).read() == (None, [0])
    successor.moved = "server 3 is the primary"
    assert Peer(successor).error == ("StateLostError", "server 3 is the primary")


@pytest.mark.unit
@pytest.mark.parametrize("state_field", [
    None, [], {}, {"incarnation": 1}, {"incarnation": "a" * 16, "sequence": -1},
    {"incarnation": "a" * 16, "client": RED}, {"incarnation": "a" * 16, "client": RED, "x": 1},
    {"incarnation": "a" * 16, "client": RED, "sequence": 2**60},
    {"incarnation": "a" * 16, "client": RED, "sequence": 1, "settled": 2},
    {"incarnation": "a" * 16, "client": RED, "sequence": 1, "settled": 1, "previous": 1},
    {"incarnation": "a" * 16, "client": "9" * 2000, "sequence": 1, "settled": 1},
])  # fmt: skip
def test_envelopes_that_are_malformed(handler, state, state_field):
    """Each is refused, and nothing is applied."""
    Peer(handler)
    frames = pack(request_header(Increment(), 1, part=PART, state=state_field), [])
    *_, reply = Peer(handler).slices(frames)
    assert unpack(reply)[0]["error"]["type"] == "ProtocolError"
    assert state.value == 0


@pytest.mark.unit
def test_nobody_writes_for_another(handler, state):
    """A client's id counts only with the key that has enrolled it."""
    peer = Peer(handler)
    peer.write(Increment(), 1)
    thief = Peer(handler, source=Source((0, b"thief"), "thief", key="other"))
    assert thief.error[0] == "ProtocolError"
    assert thief.write(Increment(), 2)[0][0] == "StateLostError"
    assert Peer(handler, "short").error[0] == "ProtocolError"
    assert state.value == 1


@pytest.mark.unit
def test_clients_and_windows_are_bounded(monkeypatch):
    """A user's own clients give way, the idle ones first; those of others stay."""
    monkeypatch.setattr(windows_module, "_CLIENTS_OF_USER", 3)
    now = 0.0
    windows = WriteWindows(lambda: now)

    def write(client, sequence=1, source=SOURCE, settled=1):
        envelope = StateEnvelope("", client, sequence, settled)
        write = windows.admit(envelope, source, lambda: [np.zeros(1)])
        write.advance()
        return write

    other = Source((0, b"x"), "other")
    ids = [f"{i:032x}" for i in range(6)]
    windows.enroll(ids[5], other)
    for client in ids[:3]:
        windows.enroll(client, SOURCE)
        write(client)
    with pytest.raises(ProtocolError, match="3 clients of this user"):
        windows.enroll(ids[3], SOURCE)
    now = 1000.0
    write(ids[0], 2)
    windows.enroll(ids[3], SOURCE)  # in place of the second
    with pytest.raises(StateLostError, match="not known"):
        write(ids[1])
    write(ids[5], source=other)
    for sequence in range(3, MOST_IN_FLIGHT + 1):
        write(ids[0], sequence)
    with pytest.raises(ProtocolError, match="wait for replies"):
        write(ids[0], MOST_IN_FLIGHT + 1)
    write(ids[0], MOST_IN_FLIGHT + 1, settled=2)
    large = windows.admit(
        StateEnvelope("", ids[0], 99, 9), SOURCE, lambda: [np.zeros(REPLY_BYTES + 1, np.uint8)]
    )
    with pytest.raises(ProtocolError, match="was applied, but its reply"):
        list(large.steps())
    with pytest.raises(NotYet):
        windows.admit(StateEnvelope("", ids[0], 102, 9, 101), SOURCE, list)


@pytest.mark.unit
def test_only_the_users_own_modules_are_imported(tmp_path):
    """Requests of a module that has them; others are errors at the start."""
    part = make_part(tmp_path / "parts")
    names = [kind.message.op for kind in users_requests(["support.cluster.counter"], part)]
    assert names == ["increment", "fail", "read_counter", "order"]
    with pytest.raises(ValueError, match="no function request_types"):
        users_requests(["json"], part)
    with pytest.raises(ValueError, match="not all different"):
        users_requests(["support.cluster.counter"] * 2, part)
    # What writes is answered by no thread but the writer's.
    readers = RequestHandler(part, types=counter.request_types(part))
    header, _ = unpack(readers(pack(request_header(Increment(), 1, part=PART), [])))
    assert "no such request 'increment'" in header["error"]["message"]


# Over connections -----------------------------------------------------------------------------


def test_many_writes_in_flight(tmp_path):
    """More than a window holds: all are applied in order; errors are the writes' own."""
    part, state = make_part(tmp_path / "parts"), Counter()
    with (
        serving(part, handler=RequestHandler(part, types=state.types())) as server,
        client_of(server) as client,
    ):
        tickets = [client.write(PART, Increment(i % 7 + 1, who="a")) for i in range(500)]
        bad = [client.write(PART, Fail()), client.write(PART, Increment(), [np.arange(3)])]
        last = client.read_state(PART, Order("a"))
        client.wait([*tickets, *bad, last])
        sums = np.cumsum([i % 7 + 1 for i in range(500)])
        assert [ticket.result()[0][0] for ticket in tickets] == sums.tolist()
        assert last.result()[0].tolist() == [i % 7 + 1 for i in range(500)]
        with pytest.raises(ValueError, match=f"failed at {sums[-1] + 1}"):
            bad[0].result()
        with pytest.raises(ProtocolError, match="carries 24 bytes"):
            bad[1].result()
        client.start_again()  # a call was interrupted
        after = client.write(PART, Increment())
        client.wait([after])
        assert after.result()[0][0] == sums[-1] + 2


def test_a_server_without_state(tmp_path):
    """An error that says so, for all that waits."""
    part = make_part(tmp_path / "parts")
    with serving(part) as server, client_of(server) as client:
        tickets = [client.write(PART, Increment()), client.read_state(PART, ReadCounter())]
        client.wait(tickets)
        for ticket in tickets:
            with pytest.raises(ProtocolError, match="no such request 'enroll'"):
                ticket.result()


@pytest.mark.fault
def test_connections_that_are_cut(tmp_path):
    """Each increment is counted once, in order, without an error."""
    report = cut_connections(tmp_path / "parts", cuts=30)
    assert report.faults >= 30 and report.writes > 30


@pytest.mark.fault
def test_servers_that_are_killed(tmp_path):
    """Every client hears of the loss before it gets a value of the new server."""
    report = kill_servers(tmp_path / "parts", kills=3, peace=0.0)
    assert (report.faults, report.losses) == (3, 9)


@pytest.mark.fault
def test_graph_servers_have_a_primary_for_each_part(folder_of):
    """The lowest rank; it alone takes writes, and is known again when it was killed."""
    root = folder_of("random", 2)
    modules = {"requests": ["support.cluster.counter"], "parts": [0, 1]}
    with (
        graph_servers.serving(root, started=2, **modules) as graph,
        graph_servers.client_of(graph) as directory,
    ):
        table = directory.wait_for_servers()
        assert [table.primary(part) for part in (0, 1, 2)] == [0, 0, None]
        endpoints = [Endpoint(graph.addresses[rank]["ipc"]) for rank in (0, 1)]

        def result(client, ticket):
            client.wait([ticket])
            return ticket.result()[0].tolist()

        with (
            contextlib.closing(PartitionClient(dict.fromkeys((0, 1), endpoints[0]))) as first,
            contextlib.closing(PartitionClient({0: endpoints[1]})) as second,
        ):
            assert result(first, first.write(0, Increment())) == [1]
            assert result(first, first.write(1, Increment(5))) == [5]
            ids = first.degrees(0, 0, np.arange(3))
            assert len(result(first, ids)) == 3

            def refused():  # when the server has the directory's table
                try:
                    result(second, second.write(0, Increment()))
                except StateLostError as error:
                    return "graph server 0 is the primary" in str(error)
                return False

            graph_servers.wait_until(refused)
            graph.kill(0)
            graph.start(0)
            first.relocate(0, Endpoint(graph.addresses[0]["ipc"]))
            with pytest.raises(StateLostError, match="has been started again"):
                result(first, first.write(0, Increment()))
            first.accept_state_loss(0)
            assert result(first, first.write(0, Increment())) == [1]
