"""`scripts/soak`: that it would notice what it is there to notice. `.ci/run` has it pass."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from soak.ledger import Ledger
from soak.network import Hosts, NoNetworkError
from soak.run import soak
from soak.watch import Usage, Watch
from soak.workload import Workload
from support import script_modules

EXPECTED = [[11, 12, 13], [21, 22, 23]]
SMALL = Workload(num_nodes=2000, num_edges=10_000, num_seeds=300, num_epochs=2)


def counts_of(events):
    """What a ledger says of deliveries; None is the end of an epoch."""
    ledger = Ledger(EXPECTED)
    for event in events:
        if event is None:
            ledger.end_epoch()
        else:
            ledger.deliver(event)
    counts = ledger.counts
    return counts.lost, counts.doubled, counts.changed


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([11, 12, 13, None, 21, 22, 23, None, 11, 12], (0, 0, 0)),
        ([11, 13, None, 21, 22, 23, None], (1, 0, 0)),
        ([11, 12, None], (1, 0, 0)),
        ([11, 12, 12, 13, None], (0, 1, 0)),
        ([11, 99, 13, None], (0, 0, 1)),
        ([11, 12, 13, 11, None], (0, 1, 0)),
        ([None], (3, 0, 0)),
    ],
)
def test_ledger(events, wrong):
    assert counts_of(events) == wrong


def test_begun_anew():
    """A client that was killed begins with the first epoch, and nothing is lost by that."""
    ledger = Ledger(EXPECTED)
    ledger.deliver(11)
    ledger.begin()
    for value in EXPECTED[0]:
        ledger.deliver(value)
    ledger.end_epoch()
    assert ledger.counts.wrong == 0


def test_growth_is_seen():
    flat, growing = Watch(), Watch()
    for second in range(100):
        noise = 5 * (second % 7)
        flat.samples.setdefault("t", []).append((second, Usage(500 + noise, 100, 20)))
        growing.samples.setdefault("t", []).append((second, Usage(500 + noise + second, 100, 20)))
    assert all(trend.is_flat for trend in flat.trends()["t"].values())
    assert not growing.trends()["t"]["private"].is_flat


ECHO = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.bind((sys.argv[1], 7777))
print("up", flush=True)
while True:
    sender.sendto(*sender.recvfrom(100))
"""
ASK = """
import socket, sys
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asker.settimeout(float(sys.argv[2]))
asker.sendto(b"hello", (sys.argv[1], 7777))
assert asker.recv(100) == b"hello"
"""


def test_cable():
    """Packets pass, pass later, and do not pass."""
    try:
        hosts = Hosts(3)
    except NoNetworkError as error:
        pytest.skip(str(error))
    address, python = hosts.addresses[1], [sys.executable, "-c"]

    def arrives(seconds, host=0):
        command = [*hosts.prefixes[host], *python, ASK, address, str(seconds)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    command = [*hosts.prefixes[1], *python, ECHO, address]
    echo = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert echo.stdout.readline() == b"up\n"
        assert arrives(10)
        hosts.cable.set(delay=1)
        assert not arrives(1.5)  # both ways take two
        assert arrives(10)
        hosts.cable.set(rate=20)
        assert not arrives(1.5)  # 33 bytes, both ways
        hosts.cable.set(is_cut=True)
        assert not arrives(1)
        hosts.cable.set(cut_off=[0])
        assert not arrives(1)
        assert arrives(10, host=2)
        hosts.cable.set()
        assert arrives(10)
        hosts.set_link(1, False)
        assert not arrives(1)
        hosts.set_link(1, True)
        assert arrives(10)
    finally:
        echo.kill()
        echo.wait()
        hosts.close()


def test_changed_batches_are_seen(monkeypatch, tmp_path, capsys):
    """A soak that expects other batches than come says so, and fails."""
    expected = Workload.expected

    def another(self, stream):
        sums = expected(self, stream)
        sums[1][2] += 1
        return sums

    monkeypatch.setattr(Workload, "expected", another)
    script = script_modules.load("soak")
    monkeypatch.setattr(script, "soak", lambda s, say: soak(replace(s, workload=SMALL), say))
    report = tmp_path / "soak.json"
    arguments = ["--minutes", "0.01", "--interval", "60", "--no-network", "--out", str(report)]
    monkeypatch.setattr(sys, "argv", ["soak", *arguments])
    assert script.main() == 1
    found = json.loads(report.read_text())
    assert [counts["changed"] > 0 for counts in found["trainers"]] == [True, True]
    *wrong, idle = found["problems"]
    assert [text.split(":")[0] for text in wrong] == ["trainer 0", "trainer 1"]
    assert idle == "nothing was killed"
    assert f"PROBLEM: {wrong[0]}" in capsys.readouterr().out
