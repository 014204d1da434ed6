"""The directory: who may enter, who replaces whom, and when all have gone."""

import pytest

from khop.distributed.remote.directory import Directory
from khop.errors import ProtocolError, RendezvousError


class Clock:
    """Time that tests move."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def make(clock, num_servers=2, num_clients=2):
    return Directory(num_servers, num_clients, 3, "print", lost_after=30.0, clock=clock)


def server(rank, incarnation="a", port=1, **changes):
    return {
        "role": "server",
        "rank": rank,
        "incarnation": incarnation,
        "num_servers": 2,
        "num_clients": 2,
        "parts": [rank],
        "addresses": {"tcp": f"tcp://h:{port}", "ipc": None},
        "host": "h",
        "fingerprint": "print",
        "pid": 1,
        **changes,
    }


def client(rank, incarnation="a", **changes):
    return {
        "role": "client",
        "rank": rank,
        "incarnation": incarnation,
        "num_servers": 2,
        "num_clients": 2,
        "name": f"c{rank}",
        "pid": 2,
        **changes,
    }


@pytest.mark.parametrize(
    "message,error,words",
    [
        (server(0, fingerprint="other"), RendezvousError, "another partition folder"),
        (server(0, num_servers=3), RendezvousError, "num_servers=3.*num_servers=2"),
        (client(0, num_clients=5), RendezvousError, "num_clients=5.*num_clients=2"),
        (server(2), ProtocolError, "rank"),
        (client(2), ProtocolError, "rank"),
        (server(0, parts=[3]), ProtocolError, "parts"),
        (server(0, parts=[1, 1]), ProtocolError, "twice"),
        (server(0, addresses={}), RendezvousError, "address"),
        (server(0, role="king"), RendezvousError, "king"),
        (client(0, incarnation=5), ProtocolError, "incarnation"),
        (client(0, name="x" * 1000), ProtocolError, "name"),
    ],
)
def test_refused(clock, message, error, words):
    """Who contradicts server 0, or talks nonsense, is told so, and is not entered."""
    directory = make(clock)
    with pytest.raises(error, match=words):
        directory.register(message)
    assert directory.lookup()["servers"] == directory.lookup()["clients"] == {}


def test_two_of_a_rank(clock):
    """A second living server of a rank waits until the first is heard of, and is refused."""
    directory = make(clock)
    directory.register(server(0, "a", 1))
    assert directory.register(server(0, "b", 2)) == {"contending": True}
    clock.now += 0.3
    assert directory.register(server(0, "b", 2)) == {"contending": True}
    clock.now += 0.3
    assert "servers" in directory.register(server(0, "a", 1))
    with pytest.raises(RendezvousError, match=r"server 0 already, which is alive"):
        directory.register(server(0, "b", 2))
    assert directory.lookup()["servers"]["0"]["incarnation"] == "a"


def test_restarted_elsewhere(clock):
    """A server that was killed is replaced when it has been silent for a moment."""
    directory = make(clock)
    directory.register(server(0, "a", 1))
    assert directory.register(server(0, "b", 2)) == {"contending": True}
    clock.now += 1.6
    assert directory.register(server(0, "b", 2))["servers"]["0"]["incarnation"] == "b"
    with pytest.raises(RendezvousError, match="alive"):  # should the first have been alive: it ends
        for _ in range(3):
            directory.register(server(0, "a", 1))
            clock.now += 0.1
            directory.register(server(0, "b", 2))


def test_restarted_at_the_same_address(clock):
    """Who listens at a server's address has replaced it: it is there at once."""
    directory = make(clock)
    directory.register(server(1, "a", 1))
    assert directory.register(server(1, "b", 1))["servers"]["1"]["incarnation"] == "b"


def test_goodbye(clock):
    """Servers that say goodbye are gone at once; with all clients gone, the job is finished."""
    directory = make(clock)
    directory.register(server(1))
    directory.goodbye({"role": "server", "rank": 1, "incarnation": "b"})  # another's
    assert "1" in directory.lookup()["servers"]
    directory.goodbye({"role": "server", "rank": 1, "incarnation": "a"})
    assert "1" not in directory.lookup()["servers"]
    directory.register(client(0))
    directory.goodbye(client(0))
    assert not directory.finished  # client 1 has not come yet
    directory.register(client(1))
    assert not directory.finished
    directory.goodbye(client(1))
    assert directory.lookup()["finished"]


def test_lost_client(clock):
    """A client that is silent for long is gone; heard of again, it is back."""
    directory = make(clock, num_clients=1)
    directory.register(client(0, num_clients=1))
    clock.now += 29
    directory.tick()
    assert not directory.finished
    clock.now += 2
    directory.tick()
    assert directory.finished
    directory.register(client(0, num_clients=1))
    assert not directory.finished


def test_new_directory_hears_of_those_who_have_gone(clock):
    """Server 0 was started again: other servers know that client 0 has said goodbye."""
    directory = make(clock)
    directory.register(server(1, gone={"0": "a", "7": "x", "1": 5}))
    assert directory.lookup()["clients"]["0"]["gone"]
    directory.register(client(1))
    directory.goodbye(client(1))
    assert directory.finished
    directory.register(client(0, "b"))  # it was started again, too
    directory.register(server(1, gone={"0": "a"}))
    assert not directory.finished


def tell(rank, value, incarnation="a"):
    return {"rank": rank, "incarnation": incarnation, "name": "n", "value": value}


def hear(rank, ranks, wait=0.0, incarnation="a"):
    return {"rank": rank, "incarnation": incarnation, "name": "n", "ranks": ranks, "wait": wait}


def test_hear(clock):
    """A value is heard when all have told it, or what there is when the time is over."""
    directory, heard = make(clock), []
    directory.hear(hear(0, [0, 1], 2.0), heard.append)
    directory.tell(tell(0, [1, 2]))
    assert heard == []
    directory.tell(tell(1, "x"))
    assert heard.pop() == {"told": {"0": [1, 2], "1": "x"}}
    directory.hear(hear(0, [0, 5], 2.0), heard.append)
    clock.now += 2.1
    directory.tick()
    assert heard.pop() == {"told": {"0": [1, 2]}}
    directory.hear(hear(0, [5]), heard.append)
    assert heard.pop() == {"told": {}}
    with pytest.raises(ProtocolError):
        directory.hear(hear(0, [0], 1000), heard.append)
    with pytest.raises(RendezvousError, match="bytes"):
        directory.tell(tell(0, "x" * 100_000))


def test_successor_of_a_client_has_told_nothing(clock):
    """What a client that was started again told before does not count, nor what it tells late."""
    directory, heard = make(clock), []
    directory.register(client(0, "a"))
    directory.tell(tell(0, 1))
    clock.now += 2
    directory.register(client(0, "b"))
    directory.hear(hear(0, [0], incarnation="b"), heard.append)
    assert heard == [{"told": {}}]
    with pytest.raises(RendezvousError, match="another process is client 0"):
        directory.tell(tell(0, 1))


def test_all_clients_are_started_again(clock):
    """Who comes first does not hear the predecessors of those who have not come yet."""
    directory, heard = make(clock), []
    for rank in range(2):
        directory.register(client(rank, "a"))
        directory.tell(tell(rank, "old"))
    clock.now += 2
    directory.register(client(0, "b"))
    directory.tell(tell(0, "new", "b"))
    directory.hear(hear(0, [0, 1], incarnation="b"), heard.append)
    assert heard.pop() == {"told": {"0": "new"}}
    directory.hear(hear(0, [0, 1], 9.0, "b"), heard.append)
    directory.tick()
    assert heard == []
    directory.register(client(1, "b"))
    directory.tick()
    assert heard == []
    directory.tell(tell(1, "newer", "b"))
    assert heard.pop() == {"told": {"0": "new", "1": "newer"}}


def test_client_that_has_told_long_ago(clock):
    """It is heard as soon as it has said that it lives."""
    directory, heard = make(clock), []
    directory.register(client(1))
    directory.tell(tell(1, "x"))
    clock.now += 5
    directory.register(client(0))
    directory.hear(hear(0, [1], 2.0), heard.append)
    assert heard == []
    directory.register(client(1))
    directory.tick()
    assert heard.pop() == {"told": {"1": "x"}}


def test_what_is_told_is_bounded(clock, monkeypatch):
    """What was told longest ago goes first; what is told twice counts once."""
    monkeypatch.setattr("khop.distributed.remote.directory._MAX_TOLD", 1000)
    directory, heard = make(clock), []
    for i in range(20):  # nine or ten names of a hundred bytes fit
        for _ in range(3):
            directory.tell({**tell(0, "x" * 98), "name": f"n{i}"})
        directory.register(client(1, f"{i}"))
        directory.tell({**tell(1, "y" * 98, f"{i}"), "name": "other"})
        clock.now += 2  # the next one of this rank is another process
    kept = []
    for i in range(20):
        directory.hear({**hear(0, [0]), "name": f"n{i}"}, heard.append)
        kept.append(len(heard.pop()["told"]))
    assert kept == sorted(kept)
    assert 9 <= sum(kept) <= 10
