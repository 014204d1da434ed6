"""The directory: who may enter, who replaces whom, who may speak for whom, when all have gone."""

import contextlib
import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from khop import codec
from khop.distributed.processes.hosts import host_identity
from khop.distributed.remote.messages import (
    Addresses,
    Goodbye,
    Publish,
    RegisterClient,
    RegisterServer,
    WaitFor,
    incarnation_of,
)
from khop.distributed.remote.server import published_values as module
from khop.distributed.remote.server.directory import Directory
from khop.distributed.rpc.identity import Source
from khop.errors import ProtocolError, RendezvousError, SecurityError

# Who talks: a graph server, two trainers with keys of their own, and anybody of a job with one key.
SERVER = Source((0, b"s"), "server", is_server=True, is_proven=True)
ONE, OTHER = (Source((0, n.encode()), n, has_own_key=True) for n in ("one", "other"))
MEMBER = Source((0, b"m"), "key 10.0.0.1")


class Clock:
    """Time that tests move."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


class Told:
    """A directory, asked in few words; what it sends later is in `heard`."""

    def __init__(self, clock, num_servers=2, num_clients=2, **options):
        options = {"lease": 30.0, "clock": clock, **options}
        self.directory = Directory(num_servers, num_clients, 3, "print", **options)
        self.heard = []

    def server(self, rank, secret="a", port=1, source=SERVER, **changes):
        addresses = Addresses(f"tcp://h:{port}")
        request = RegisterServer(rank, secret, 2, 2, [rank], addresses, "h", 1, "print")
        return self.directory.register_server(replaced(request, changes), source)

    def client(self, rank, secret="a", source=MEMBER, **changes):
        request = RegisterClient(rank, secret, 2, 2, f"c{rank}", 2)
        return self.directory.register_client(replaced(request, changes), source)

    def goodbye(self, role, rank, secret="a", source=MEMBER):
        self.directory.goodbye(Goodbye(role, rank, secret), source)

    def publish(self, rank, value, secret="a", name="n"):
        self.directory.values.publish(Publish(rank, secret, name), json.dumps(value).encode())

    def wait(self, rank, ranks, wait=0.0, secret="a", name="n", source=MEMBER):
        def send(published, arrays):
            text, begin, found = arrays[0].tobytes(), 0, {}
            for of, end in zip(published.ranks, published.ends, strict=True):
                found[of] = json.loads(text[begin:end])
                begin = end
            self.heard.append(found)

        self.directory.values.wait_for(WaitFor(rank, secret, name, ranks, wait), source, send)


def replaced(request, changes):
    """A request with other fields, as it comes from the wire."""
    return codec.from_json(type(request), {**codec.to_json(request), **changes}, "a request")


def servers_of(table):
    return {rank: entry.incarnation for rank, entry in table.servers.items()}


@pytest.mark.parametrize(
    "who,rank,changes,error,words",
    [
        ("server", 0, {"fingerprint": "other"}, RendezvousError, "another partition folder"),
        ("server", 0, {"num_servers": 3}, RendezvousError, "num_servers=3.*num_servers=2"),
        ("client", 0, {"num_clients": 5}, RendezvousError, "num_clients=5.*num_clients=2"),
        ("server", 2, {}, RendezvousError, "server 2 registers, but there are 2"),
        ("client", 2, {}, RendezvousError, "client 2 registers, but there are 2"),
        ("server", 0, {"parts": [3]}, RendezvousError, r"partitions \[3\], but there are 3"),
        ("server", 0, {"parts": [1, 1]}, ProtocolError, "parts names something twice"),
        ("server", 0, {"addresses": {}}, ProtocolError, r"addresses lacks \['tcp'\]"),
        ("server", 0, {"addresses": {"tcp": "ftp://x"}}, ProtocolError, "not tcp://HOST:PORT"),
        ("server", 0, {"addresses": {"tcp": "tcp://h:99999"}}, ProtocolError, "HOST:PORT"),
        ("server", 0, {"addresses": {"tcp": "tcp://h:1", "ipc": "x"}}, ProtocolError, "ipc:///"),
        ("client", 0, {"secret": 5}, ProtocolError, "secret must be a text"),
        ("client", 0, {"name": "x" * 1000}, ProtocolError, "name must be a text of at most 64"),
        ("client", 0, {"name": "x\x1b[2J"}, RendezvousError, "cannot be shown"),
        ("client", 0, {"gone": {}}, ProtocolError, "unknown field 'gone'"),
    ],
)
def test_refused(clock, who, rank, changes, error, words):
    """Who contradicts server 0, or talks nonsense, is told so, and is not entered."""
    told = Told(clock)
    with pytest.raises(error, match=words):
        getattr(told, who)(rank, **changes)
    assert told.directory.lookup().servers == told.directory.lookup().clients == {}


def test_second_living_server_of_a_rank_is_refused(clock):
    """A second living server of a rank waits until the first is heard of, and is refused."""
    told = Told(clock)
    told.server(0, "a", 1)
    assert told.server(0, "b", 2).contending
    clock.now += 0.3
    assert told.server(0, "b", 2).contending
    clock.now += 0.3
    assert not told.server(0, "a", 1).contending
    with pytest.raises(RendezvousError, match=r"server 0 already, which is alive"):
        told.server(0, "b", 2)
    assert servers_of(told.directory.lookup()) == {0: incarnation_of("a")}


def test_restarted_elsewhere(clock):
    """A server that was killed is replaced when it has been silent for a moment."""
    told = Told(clock)
    told.server(0, "a", 1)
    assert told.server(0, "b", 2).contending
    clock.now += 1.6
    assert servers_of(told.server(0, "b", 2)) == {0: incarnation_of("b")}
    with pytest.raises(RendezvousError, match="alive"):  # should the first have been alive: it ends
        for _ in range(3):
            told.server(0, "a", 1)
            clock.now += 0.1
            told.server(0, "b", 2)


def test_restarted_at_the_same_address(clock):
    """Who has the servers' key and listens at a server's address has replaced it at once."""
    told = Told(clock)
    told.server(1, "a", 1)
    assert servers_of(told.server(1, "b", 1)) == {1: incarnation_of("b")}


@pytest.mark.process
def test_an_address_alone_proves_nothing(clock):
    """Without keys, a living server is not replaced by who says to be at its address."""
    anybody = Source((0, b"x"), "127.0.0.1", is_server=True)
    told, here = Told(clock), {"host": host_identity(), "source": anybody}
    told.server(1, "a", 1, pid=os.getpid(), **here)
    assert told.server(1, "evil", 1, pid=os.getpid(), **here).contending
    clock.now += 0.1
    told.server(1, "a", 1, pid=os.getpid(), **here)
    with pytest.raises(RendezvousError, match="alive"):
        told.server(1, "evil", 1, pid=os.getpid(), **here)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    told.server(0, "a", 1, pid=ended.pid, **here)
    assert not told.server(0, "b", 1, pid=os.getpid(), **here).contending  # that one has ended


@pytest.mark.parametrize("source", [ONE, MEMBER])
def test_clients_are_no_servers(clock, source):
    """A client's key does not make a server, wherever it says to be, whoever it says is gone."""
    told = Told(clock)
    told.server(0)
    for rank in (0, 1):
        with pytest.raises(SecurityError, match="without the servers' key"):
            told.server(rank, "evil", 1, source=source, gone={"0": "a", "1": "b"})
    assert servers_of(told.directory.lookup()) == {0: incarnation_of("a")}
    assert not told.directory.finished
    told.goodbye("server", 0, "a", source)  # should it have got the secret
    assert servers_of(told.directory.lookup()) == {0: incarnation_of("a")}


def test_requests_in_the_name_of_another_client_are_refused(clock):
    """What everybody is told of a client is not enough to say goodbye or to publish for it."""
    told = Told(clock)
    told.client(0, "zero", ONE)
    told.client(1, "one", OTHER)
    known = told.directory.lookup().clients
    for rank in range(2):
        told.goodbye("client", rank, known[rank].incarnation, OTHER)
        with pytest.raises(RendezvousError, match="another process is client"):
            told.publish(rank, "evil", known[rank].incarnation)
    assert not told.directory.finished
    assert "zero" not in repr(told.directory.lookup())


def test_publishing_without_registration_is_refused(clock):
    told = Told(clock)
    with pytest.raises(RendezvousError, match="before it has registered"):
        told.publish(7, 1)


def test_a_rank_is_kept_for_its_key(clock):
    """Where each client has a key, another one gets a rank only when its holder is lost."""
    told = Told(clock)
    told.client(0, "a", ONE)
    clock.now += 5
    assert told.client(0, "evil", OTHER).contending
    assert not told.client(0, "b", ONE).contending  # started again
    clock.now += 31
    assert not told.client(0, "evil", OTHER).contending


def test_goodbye(clock):
    """Servers that say goodbye are gone at once; with all clients gone, the job is finished."""
    told = Told(clock)
    told.server(1)
    told.goodbye("server", 1, "b", SERVER)  # another's
    assert 1 in told.directory.lookup().servers
    told.goodbye("server", 1, "a", SERVER)
    assert 1 not in told.directory.lookup().servers
    told.client(0)
    told.goodbye("client", 0)
    assert not told.directory.finished  # client 1 has not come yet
    told.client(1)
    assert not told.directory.finished
    told.goodbye("client", 1)
    assert told.directory.lookup().finished


def test_lost_client(clock):
    """A client that is silent for long is gone; heard of again, it is back."""
    told = Told(clock, num_clients=1)
    told.client(0, num_clients=1)
    clock.now += 29
    told.directory.tick()
    assert not told.directory.finished
    clock.now += 2
    told.directory.tick()
    assert told.directory.finished
    told.client(0, num_clients=1)
    assert not told.directory.finished


def test_new_directory_hears_of_those_who_have_gone(clock):
    """Server 0 was started again: other servers know that client 0 has said goodbye."""
    told = Told(clock)
    told.server(1, gone={"0": "a", "7": "x"})
    assert told.directory.lookup().clients[0].gone
    told.client(1)
    told.goodbye("client", 1)
    assert told.directory.finished
    told.client(0, "b")  # it was started again, too
    told.server(1, gone={"0": "a"})
    assert not told.directory.finished


def test_wait_for(clock):
    """A value is heard when all have published it, or what there is when the time is over."""
    told = Told(clock)
    told.client(0), told.client(1)
    told.wait(0, [0, 1], 2.0)
    told.publish(0, [1, 2])
    assert told.heard == []
    told.publish(1, "x")
    assert told.heard.pop() == {0: [1, 2], 1: "x"}
    told.wait(0, [0, 5], 2.0)
    clock.now += 2.1
    told.directory.tick()
    assert told.heard.pop() == {0: [1, 2]}
    told.wait(0, [5])
    assert told.heard.pop() == {}
    with pytest.raises(RendezvousError, match="publishes 100002 bytes as 'n', more than"):
        told.publish(0, "x" * 100_000)


def test_depth_of_a_value_is_nobodys_matter(clock):
    """What is published is passed on as it is: it ends nobody, however it is nested."""
    told = Told(clock)
    told.client(0)
    sent = []
    told.directory.values.publish(Publish(0, "a", "n"), b"[" * 30_000)
    told.directory.values.wait_for(
        WaitFor(0, "a", "n", [0], 0.0), MEMBER, lambda p, arrays: sent.append(arrays[0].tobytes())
    )
    told.directory.tick()
    assert sent == [b"[" * 30_000]


def test_replies_are_bounded(clock):
    """Of many long values those that fit a reply are sent: the others are asked for again."""
    told = Told(clock, num_clients=2000)
    ranks = range(40)
    for rank in ranks:
        told.client(rank, num_clients=2000)
        told.publish(rank, "x" * 60_000)
    missing, rounds = set(ranks), 0
    while missing:
        told.wait(0, sorted(missing))
        found = told.heard.pop()
        assert 0 < sum(map(len, found.values())) <= 1 << 20
        missing -= found.keys()
        rounds += 1
    assert rounds == 3


def test_a_reply_that_cannot_be_sent_fails_alone(clock):
    """The others that wait are answered all the same."""
    told = Told(clock)
    told.client(0)

    def broken(published, arrays):
        raise RecursionError("while encoding")

    told.directory.values.wait_for(WaitFor(0, "a", "n", [0], 1.0), OTHER, broken)
    told.wait(0, [0], 1.0)
    clock.now += 2
    told.directory.tick()
    assert told.heard == [{}]


def test_waiting_requests_of_a_user_are_bounded(clock):
    """One user's waiting requests are bounded; another's are taken all the same."""
    told = Told(clock)
    told.client(0, source=ONE)
    with pytest.raises(RendezvousError, match="wait here already"):
        for _ in range(1000):
            told.wait(0, [1], 9.0, source=ONE)
    told.wait(1, [0], 9.0, source=OTHER)


def test_clients_that_come_and_go_leave_nothing(clock):
    """Of any number of clients those that have gone are forgotten, with all that they published."""
    told = Told(clock, num_clients=0)
    for rank in range(20):
        told.client(rank, num_clients=0)
        told.publish(rank, "x")
        told.goodbye("client", rank)
    clock.now += 1000
    told.directory.tick()
    assert told.directory.lookup().clients == {}
    assert told.directory.values._nbytes == 0


def test_registrations_are_bounded(clock):
    """One user cannot take all ranks; the table of all that there may be can be sent."""
    told = Told(clock, num_clients=0)
    with pytest.raises(RendezvousError, match="the limit"):
        for rank in range(2048):
            told.client(rank, num_clients=0, source=ONE, name="\N{PILE OF POO}" * 64)
    told.client(2047, num_clients=0, source=OTHER)


def test_successor_of_a_client_has_published_nothing(clock):
    """What a client that was started again published before does not count, nor what comes late."""
    told = Told(clock)
    told.client(0, "a")
    told.publish(0, 1)
    clock.now += 2
    told.client(0, "b")
    told.wait(0, [0], secret="b")
    assert told.heard == [{}]
    with pytest.raises(RendezvousError, match="another process is client 0"):
        told.publish(0, 1)


def test_all_clients_are_started_again(clock):
    """Who comes first does not hear the predecessors of those who have not come yet."""
    told = Told(clock)
    for rank in range(2):
        told.client(rank, "a")
        told.publish(rank, "old")
    clock.now += 2
    told.client(0, "b")
    told.publish(0, "new", "b")
    told.wait(0, [0, 1], secret="b")
    assert told.heard.pop() == {0: "new"}
    told.wait(0, [0, 1], 9.0, "b")
    told.directory.tick()
    assert told.heard == []
    told.client(1, "b")
    told.directory.tick()
    assert told.heard == []
    told.publish(1, "newer", "b")
    assert told.heard.pop() == {0: "new", 1: "newer"}


def test_client_that_has_published_long_ago(clock):
    """It is heard as soon as it has said that it lives."""
    told = Told(clock)
    told.client(1)
    told.publish(1, "x")
    clock.now += 5
    told.client(0)
    told.wait(0, [1], 2.0)
    assert told.heard == []
    told.client(1)
    told.directory.tick()
    assert told.heard.pop() == {1: "x"}


def test_client_that_has_published_and_left(clock):
    """It came first, needed the other's value, and left before it registered again."""
    told = Told(clock)
    told.client(0)
    told.publish(0, "x")
    clock.now += 0.5
    told.client(1)
    told.publish(1, "y")
    told.wait(0, [0, 1])
    assert told.heard.pop() == {0: "x", 1: "y"}
    told.wait(1, [0, 1], 9.0)
    assert told.heard == []
    clock.now += 0.1
    told.goodbye("client", 0)
    told.directory.tick()
    assert told.heard.pop() == {0: "x", 1: "y"}


def test_published_values_beyond_the_bound_drop_the_oldest(clock, monkeypatch):
    """The oldest values of whoever published most go first; what is said twice counts once."""
    monkeypatch.setattr(module, "_MAX_PUBLISHED", 1000)
    monkeypatch.setattr(module, "_size_of", lambda name, value: len(value))
    told = Told(clock)
    told.client(0), told.client(1)
    told.publish(1, "y" * 98)
    for i in range(20):  # nine names of a hundred bytes fit beside
        for _ in range(3):
            told.publish(0, "x" * 98, name=f"n{i}")
    kept = []
    for i in range(20):
        told.wait(0, [0], name=f"n{i}")
        kept.append(len(told.heard.pop()))
    assert kept == [0] * 11 + [1] * 9
    told.wait(0, [1])
    assert told.heard.pop() == {1: "y" * 98}
    assert told.directory.values._nbytes == np.sum(kept) * 100 + 100


def test_a_flood_of_requests_does_not_fill_a_disk(clock, caplog):
    """A line a change, and of one user few: 4,000 of each request in a second, and all refused.

    A registration and a goodbye in turn change something each time. Others' changes are logged.
    """
    told = Told(clock)
    told.client(0)
    with caplog.at_level(logging.INFO, "khop"):
        for i in range(4000):
            clock.now += 1 / 4000
            told.goodbye("client", 0)
            told.goodbye("client", 0, "wrong")
            told.goodbye("server", 0)
            told.client(1, secret=str(i % 2))
            told.goodbye("client", 1, secret=str(i % 2))
            told.wait(0, [0])
            told.directory.lookup()
            with contextlib.suppress(RendezvousError, SecurityError, ProtocolError):
                told.publish(0, i)
            with contextlib.suppress(SecurityError):
                told.server(0, source=MEMBER)
            told.directory.tick()
            if i % 2:
                told.client(0)
        assert sum(len(record.getMessage()) for record in caplog.records) < 32_000
        told.server(0)
        assert caplog.records[-1].getMessage() == "server 0 has registered"
        assert caplog.records[-1].fields["left_out"] > 2000


def test_only_changes_are_logged(clock, caplog):
    """A client that says goodbye twice has left once; one that registers again was there."""
    told = Told(clock)
    with caplog.at_level(logging.INFO, "khop"):
        for _ in range(2):
            told.client(0)
        for _ in range(2):
            told.goodbye("client", 0)
            told.goodbye("server", 1)
    assert [record.event for record in caplog.records] == ["client-registered", "client-left"]


def test_any_text_is_a_secret(clock):
    """Half of a pair of surrogates, too: JSON can say it, UTF-8 cannot."""
    told = Told(clock)
    told.client(0, secret="\ud800")
    told.publish(0, "x", secret="\ud800")
    told.wait(0, [0], secret="\udfff")
    assert told.heard == [{0: "x"}]
