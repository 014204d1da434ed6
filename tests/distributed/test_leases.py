"""Leases: how long they are, and what counts against them."""

import json

import pytest

from khop.cli.main import main
from khop.distributed import init_worker_group
from khop.distributed.membership.leases import LeaseTable, lease_seconds


@pytest.mark.parametrize(
    "given,variable,seconds",
    [(None, None, 30.0), (None, "", 30.0), (None, "60", 60.0), (5, "60", 5.0), (12.5, None, 12.5)],
)
def test_length(monkeypatch, given, variable, seconds):
    """What is passed counts, then the variable, then 30 s."""
    monkeypatch.delenv("KHOP_LEASE", raising=False)
    if variable is not None:
        monkeypatch.setenv("KHOP_LEASE", variable)
    assert lease_seconds(given) == seconds


@pytest.mark.parametrize("given", [0, 4.9, -30, float("nan"), float("inf"), 86_401, "soon", [], {}])
def test_length_that_is_none(monkeypatch, given):
    with pytest.raises(ValueError, match=r"^lease must be a number of seconds from 5 to 86400"):
        lease_seconds(given)
    monkeypatch.setenv("KHOP_LEASE", str(given))
    with pytest.raises(ValueError, match=r"^KHOP_LEASE must be a number .* \(got '"):
        lease_seconds()


def test_length_for_users(monkeypatch, capsys):
    """Trainers refuse what is no length before they look for others; the doctor says it."""
    with pytest.raises(ValueError, match="lease must be"):
        init_worker_group(1, 0, lease=1)
    assert init_worker_group(1, 0, lease=7).members.lease == 7
    monkeypatch.setenv("KHOP_LEASE", "45")
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["liveness"] == {"lease": "45 s ($KHOP_LEASE)"}


class Clock:
    """Time that tests move."""

    now = 100.0

    def __call__(self):
        return self.now


def test_silence_is_measured_by_the_readers_clock():
    clock = Clock()
    table = LeaseTable(clock)
    lease = table.grant()
    for _ in range(40):
        clock.now += 1.0
        table.look()
    assert lease.silence() == 40.0
    assert lease.silence(until=130.0) == 30.0  # what has been read
    lease.renew()
    assert lease.silence() == 0.0
    lease.renew(silent=3.0)  # as another's clock has measured
    assert lease.silence() == 3.0


def test_a_reader_that_was_stopped_excuses_others():
    """An hour in a debugger ends no lease: it is not known who was stopped, too."""
    clock = Clock()
    table = LeaseTable(clock)
    old, heard = table.grant(), table.grant()
    clock.now += 1.0
    table.look()
    clock.now += 3600.0
    assert old.silence() > 3600
    table.look()
    assert old.silence() == 3.0  # what was seen before, and two seconds
    new = table.grant()
    heard.renew()
    clock.now += 1.0
    table.look()
    assert (old.silence(), new.silence(), heard.silence()) == (4.0, 1.0, 1.0)
