"""`khop top` at servers that send what they like: it says who does, and ends or goes on."""

import contextlib
import json
import threading
import time

import pytest
import zmq

from khop.channel.message import pack
from khop.cli import poller
from khop.cli.main import main
from khop.cli.poller import Poller
from khop.cli.view import render
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.messages import json_array
from khop.errors import ProtocolError

ESCAPE = "\x1b]0;pwned\x07\x1b[2J"


def table(address, **change):
    """A directory's, of one server: the same process."""
    entry = {"parts": [0], "addresses": {"tcp": address}, "host": "h", "silent": 0.0}
    entry |= {"incarnation": "i", "pid": 1}
    return {
        **{"directory": "d", "num_servers": 1, "num_clients": 0, "num_parts": 1, "finished": False},
        **{"fingerprint": "f", "servers": {"0": entry}, "clients": {}},
        **change,
    }


@contextlib.contextmanager
def answering(answers):
    """A socket that answers: answers(request's name, its own address); yields its address.

    What an answer has to say is a text, but for errors.
    """
    context, done = zmq.Context(), threading.Event()
    socket = context.socket(zmq.ROUTER)
    address = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"

    def serve():
        while not done.is_set():
            if socket.poll(50):
                peer, frame, *_ = socket.recv_multipart()
                if not frame:
                    continue  # a greeting
                asked = json.loads(frame)
                said = answers(asked["op"], address)
                header = said if isinstance(said, dict) and "error" in said else {}
                arrays = [] if header else [json_array(said)]
                socket.send_multipart([peer, *pack({**header, "id": asked["id"]}, arrays)])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address.removeprefix("tcp://")
    finally:
        done.set()
        thread.join()
        context.destroy(0)


@pytest.mark.parametrize(
    "statistics", [5, {}, {"uptime": 1e308, "clients": "x"}, [ESCAPE], {"sessions": {ESCAPE: 1}}]
)
def test_malformed_statistics(monkeypatch, statistics):
    """The server counts as lost, with the reason; the table goes on being shown."""
    monkeypatch.setattr(poller, "LOST_AFTER", 0.3)

    def answers(op, address):
        return statistics if op == "statistics" else table(address)

    with answering(answers) as master, Poller(Servers(master), 10.0) as watcher:
        end = time.monotonic() + 20
        while not (seen := watcher.poll(0.1)).servers[0].lost:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert "server 0 has sent malformed statistics" in seen.servers[0].lost.why
        assert seen.directory is None
        lines = render(seen, 1000)
    assert all(line.isprintable() for line in lines)
    assert any(line.startswith("server 0 lost") for line in lines)


@pytest.mark.parametrize(
    "change",
    [
        {"clients": 5},
        {"clients": {"x": {}}},
        {"clients": {ESCAPE: {"name": "c", "pid": 1, "silent": 0.0, "gone": False}}},
        {"clients": {"0": {"name": "c", "pid": 1, "silent": 1e999, "gone": False}}},
        {"num_servers": None},
    ],
)
def test_malformed_tables(change):
    with (
        answering(lambda op, address: table(address, **change)) as master,
        pytest.raises((ProtocolError, ConnectionError), match="directory at"),
    ):
        Poller(Servers(master), 2.0)


@pytest.mark.parametrize("name", ["ProtocolError", "ValueError", "Exotic"])
def test_errors_of_servers(capsys, name):
    """What they say is shown, and steers no terminal."""
    with answering(lambda *_: {"error": {"type": name, "message": f"m{ESCAPE}\nEVIL"}}) as master:
        assert main(["top", master, "--once"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("khop top: error: ")
    assert line.isprintable()
