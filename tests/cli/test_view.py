"""`khop top` of polls that are made up: the right numbers, in tables that fit."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from khop import codec
from khop.cli.poller import Lost, Poll, Rates, Server, read_snapshot
from khop.cli.view import as_json, duration, render, size
from khop.distributed.remote.messages import Table, json_array, read_table
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.statistics import SamplerState, SessionState
from khop.errors import ProtocolError


def sent(value):
    """As it arrives: over JSON."""
    return json.loads(json.dumps(value))


def statistics(rank, uptime, batches, requests=0, pid=7):
    """Statistics of a server: two loaders of one client, the first with two samplers."""
    numbers = (2, 3_000_000, 4, 10_000_000, 0)
    samplers = [SamplerState(8, 3, 9, 10)] * 2
    sessions = [
        SessionState(f"{name}/0", name, "cli\x1bent", False, samplers, *numbers)
        for name in ("aaaaaaaaaaaaaaaaaaaa", "bb")
    ]
    counted = ServerCounters(rank, [rank], "a", lambda: sessions)
    for session in sessions:
        counted.session_opened(session.session)
    for _ in range(batches):
        counted.batch("bb/0", 2_000_000, 0.5)
    for number in range(requests):
        counted.count_request("sample", 0.004, 100, 1000, failed=number == 0)
    own = {"uptime": uptime, "pid": pid, "started": 1000.0, "rss": 123_000_000}
    return {**counted.snapshot(), **own}


def table(*ranks):
    """A directory's table."""
    return {
        "num_servers": 3,
        "num_clients": 2,
        "servers": {
            str(r): {"incarnation": "i", "parts": [r], "addresses": {"tcp": f"tcp://h:{r + 1}"},
                     "host": "h", "pid": 6, "silent": 0.1}
            for r in ranks
        },
        "clients": {
            str(r): {"incarnation": "i", "name": f"host:{i}", "pid": 10 + i, "silent": silent,
                     "gone": gone}
            for i, (r, silent, gone) in enumerate([(0, 0.4, False), (1, 80.0, True),
                                                   (10, 9.0, False)], 1)
        },
        "directory": "d", "num_parts": 3, "fingerprint": "f", "finished": False,
        "contending": False,
    }  # fmt: skip


def poll_of(snapshots, before=None, lost=None, directory=None, entries=None):
    """A poll of three servers, of snapshots by rank, and earlier ones."""
    lost, before = lost or {}, before or {}
    known = codec.from_json(Table, entries or table(0, 1, 2), "it")
    servers = [
        Server(
            rank,
            entry,
            snapshots.get(rank),
            Rates.between(before.get(rank), snapshots[rank]) if rank in snapshots else Rates(),
            lost.get(rank),
        )
        for rank, entry in known.servers.items()
    ]
    return Poll(1e9, "10.0.0.1:5", known, directory, servers)


def snapshot(*values, **options):
    return read_snapshot(sent(statistics(*values, **options)), "it")


BEFORE = {0: snapshot(0, 10.0, 5, 10), 1: snapshot(1, 10.0, 0)}
SNAPSHOTS = {0: snapshot(0, 12.0, 15, 30), 1: snapshot(1, 3.0, 1, pid=8)}
NOW = poll_of(SNAPSHOTS, BEFORE, {2: Lost(75.2, "it is off")})


def rows(lines, title):
    """The rows below the line that begins with a title, cells apart."""
    start = next(i for i, line in enumerate(lines) if line.startswith(title))
    cells = []
    for line in lines[start + 1 :]:
        if not line:
            break
        cells.append([cell.strip() for cell in line.split("  ") if cell.strip()])
    return cells


def test_servers_with_rates():
    """10 batches of 2 MB and 20 requests in two seconds; a restarted server has no rates yet."""
    lines = render(NOW, 1000)
    first, second, third = rows(lines, "SERVER")
    assert first[:8] == ["0", "10.0", "5.0", "1", "1.0K", "9.5M", "12 s", "117M"]
    assert first[8:13] == ["1", "2", "19M", "0", "tcp://h:1"]
    assert second[1:6] == ["-", "-", "0", "-", "-"]
    assert third == ["2", *["-"] * 10, "2", "tcp://h:3", "-"]
    assert lines[0].startswith("khop top 10.0.0.1:5  2 of 3 servers, 2 trainers")
    assert lines[1] == "server 2 lost 1:15 ago: it is off"


def test_sessions_clients_and_requests():
    lines = render(NOW, 1000)
    first, second, *others = rows(lines, "LOADER")
    assert first[:2] == ["aaaaaaaaaaaa", "cli\\x1bent"]
    assert second == [*("bb", "cli\\x1bent", "5.0", "0", "2", "6", "2.9M", "9.5M", "2", "4", "15")]
    assert len(others) == 2
    assert rows(lines, "TRAINER") == [
        ["0", "host:1", "0 s ago", "11"],
        ["1", "host:2", "has left", "12"],
        ["10", "host:3", "9 s ago", "13"],
    ]
    assert rows(lines, "REQUEST") == [["sample", "10.0", "4 ms", "1"]]


def test_samplers_that_write_to_their_trainer_themselves():
    """The server knows nothing of their batches, and shows so."""
    seen = SNAPSHOTS[0]
    sessions = [replace(session, direct=True) for session in seen.sessions]
    lines = render(poll_of({0: replace(seen, sessions=sessions)}, BEFORE), 1000)
    expected = ["bb", "cli\\x1bent", "-", "0", *["-"] * 4, "2", "-", "-"]
    assert rows(lines, "LOADER")[1] == expected


def test_the_directory_is_lost():
    lines = render(replace(NOW, directory=Lost(4.0)), 1000)
    assert lines[1] == "directory lost 4 s ago (its last table is shown)"


def test_a_lost_server_is_not_counted():
    """Its state is old: neither its sessions nor its requests are shown."""
    lines = render(poll_of(SNAPSHOTS, BEFORE, {0: Lost(5.0), 1: Lost(5.0)}), 1000)
    assert not any(line.startswith(("LOADER", "REQUEST")) for line in lines)


def test_without_an_earlier_snapshot_there_are_no_rates():
    first = rows(render(poll_of(SNAPSHOTS), 1000), "SERVER")[0]
    assert first[1:6] == ["-", "-", "1", "-", "-"]
    assert Rates.between(None, SNAPSHOTS[0]) == Rates({}, {}, {})
    assert Rates.between(SNAPSHOTS[0], SNAPSHOTS[0]) == Rates()  # no time has passed


@given(st.integers(1, 250), st.integers(1, 60))
def test_it_fits_any_terminal(width, height):
    lines = render(NOW, width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)


def test_narrow_terminals_keep_the_important_columns():
    """Columns are left out whole, from the right."""
    title = next(line for line in render(NOW, 60) if line.startswith("SERVER"))
    assert title.split() == ["SERVER", "REQ/S", "BATCH/S", "ERRORS", "IN/S", "OUT/S", "UP", "RSS"]
    titles = [line.split()[0] for line in render(NOW, 5)[2:] if line.isupper()]
    assert titles == ["SERVE", "LOADE", "TRAIN", "REQUE"]


def test_low_terminals_count_the_lines_left_out():
    """Servers come first."""
    lines = render(NOW, 200, 10)
    assert len(rows(lines[:-1], "SERVER")) == 3
    assert lines[-1] == f"... and {len(render(NOW, 200)) - 9} more lines"


def test_json_for_programs():
    told = json.loads(json.dumps(as_json(NOW)))
    assert told["servers"]["0"]["rates"] == {
        "requests": 10.0,
        "failed": 0.0,
        "bytes_in": 1000.0,
        "bytes_out": 10_010_000.0,
        "batches": 5.0,
    }
    assert told["servers"]["0"]["session_rates"]["bb/0"] == {"count": 5.0, "bytes": 1e7}
    assert told["servers"]["0"]["picture"] == sent(statistics(0, 12.0, 15, 30)) | {
        name: told["servers"]["0"]["picture"][name] for name in ("cpu_seconds", "descriptors")
    }
    assert told["servers"]["1"]["rates"] is None
    assert told["servers"]["1"]["session_rates"] == {}
    assert told["servers"]["2"]["lost"] == {"seconds": 75.2, "why": "it is off"}
    assert told["servers"]["2"]["picture"] is None
    assert told["directory_lost"] is None
    assert told["clients"]["1"]["gone"] is True


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0B"), (999, "999B"), (1000, "1.0K"), (48 << 20, "48M"), (5e15, "4547T")],
)  # fmt: skip
def test_sizes(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.9, "0 s"), (59, "59 s"), (61, "1:01"), (3661, "1:01:01"), (90061, "1 d 1:01:01")],
)
def test_durations(value, text):
    assert duration(value) == text


HOSTILE = [
    *(None, True, -1, 0.5, 1e400, -1e300, float("nan"), 2**63, 10**400, "", "\x1b[2J", "9" * 9000),
    *([], [None], [[]], [2**70], {}, {"x": 1}, {"\x1b]0;x\x07": {}}, {"-1": {}}, {"x": None}),
]


def places(value, path=()):
    """Paths to everything within a value."""
    yield path
    if isinstance(value, (dict, list)):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(entry, (*path, key))


def changed(value, path, new):
    """A copy of a value with another one at a path; without what is there if that is `places`."""
    if not path:
        return new
    copy = value.copy()
    if len(path) == 1 and new is places:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


STATISTICS, TABLE = sent(statistics(0, 12.0, 15, 30)), sent(table(0, 1))


@given(st.data(), st.sampled_from([*HOSTILE, places]))
def test_altered_statistics_are_shown_or_refused(data, value):
    """Any field replaced by anything: a ProtocolError where it enters, or a sound screen."""
    is_table = data.draw(st.booleans())
    good = TABLE if is_table else STATISTICS
    path = data.draw(st.sampled_from([*places(good)][value is places :]))
    bad = changed(good, path, value)
    try:
        entries = codec.to_json(read_table([json_array(bad)], "it")) if is_table else None
        seen = read_snapshot(STATISTICS if is_table else bad, "it")
    except ProtocolError as error:
        assert str(error).startswith("it ")
        return
    poll = poll_of({0: seen}, BEFORE, entries=entries)
    assert all(line.isprintable() for line in render(poll, 1000))
    assert all(line.isprintable() for line in render(poll_of({0: seen}, {0: seen}), 80, 24))
    json.dumps(as_json(poll), allow_nan=False)


def test_valid_statistics_pass_unchanged():
    assert codec.to_json(read_snapshot(STATISTICS, "it")) == STATISTICS


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("sessions", 0, "samplers", 1, "pid"),
            -1,
            r"sessions\[0\].samplers\[1\].pid must be an integer",
        ),
        (("uptime",), 1e400, "uptime must be a finite number"),
        (("requests", "sample", "buckets"), [1], r"requests\['sample'\] counts 1 classes"),
        (("clients",), "x", "clients must be a list"),
        (("rss",), places, r"lacks \['rss'\]"),
        ((), 5, "must be an object"),
    ],
)
def test_malformed_statistics_are_named(path, value, message):
    with pytest.raises(ProtocolError, match=message):
        read_snapshot(changed(STATISTICS, path, value), "server 1 at tcp://h:1")
