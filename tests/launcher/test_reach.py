"""Connections between hosts that `khop run` tries before it starts anything."""

import json
import socket
import subprocess
import sys

import pytest

from khop.launcher import host_checks
from soak.network import Hosts, NoNetworkError
from support import processes

LISTEN = """
import sys
from khop.launcher.host_checks import listen
with listen() as listener:
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
"""
REACH = """
import json, sys
from khop.launcher import host_checks
host_checks._REACH_SECONDS = 1.0
print(json.dumps(host_checks.reach(json.loads(sys.argv[1]))))
"""


def test_this_machine(monkeypatch):
    """A port that listens, one that does not, and a name that does not exist."""
    monkeypatch.setattr(host_checks, "_REACH_SECONDS", 20.0)
    with host_checks.listen() as listener, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = listener.getsockname()[1], closed.getsockname()[1]
        failed = host_checks.reach([("127.0.0.1", ports[0]), ("127.0.0.1", ports[1]), ("..", 1)])
    assert failed.keys() == {1, 2}
    assert failed[1] == "Connection refused"


@pytest.mark.network
@pytest.mark.process
def test_large_packets(request):
    """A network that carries small packets only, as with a wrong MTU, and one that is silent."""
    try:
        hosts = Hosts(2)
    except NoNetworkError as error:
        pytest.skip(str(error))
    request.addfinalizer(hosts.close)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    options = {"env": processes.environment(), **pipes}
    listener = subprocess.Popen([*hosts.prefixes[1], sys.executable, "-c", LISTEN], **options)
    targets = json.dumps([[hosts.addresses[1], int(listener.stdout.readline())]])

    def reach(**cable):
        hosts.cable.set(**cable)
        words = [*hosts.prefixes[0], sys.executable, "-c", REACH, targets]
        done = subprocess.run(words, check=True, capture_output=True, text=True, env=options["env"])
        return json.loads(done.stdout)

    try:
        assert reach() == {}
        assert "it connects, but 32768 bytes do not arrive" in reach(longest=1500)["0"]
        assert reach(is_cut=True) == {"0": "no answer in 1 s"}
    finally:
        listener.communicate("")
