"""What `khop top` shows of given looks: the right numbers, in tables that fit."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from khop.cli.poller import Lost, Poll, rates, session_rates
from khop.cli.snapshot import check_snapshot, check_table
from khop.cli.view import ALARM, HEAD, Column, Table, as_json, duration, render, size
from khop.distributed.remote.server.counters import ServerCounters
from khop.errors import ProtocolError


def sent(value):
    """As it arrives: over JSON."""
    return json.loads(json.dumps(value))


def picture(rank, uptime, batches, requests=0, pid=7):
    """A server's picture: two loaders of one client, the first with two samplers."""
    samplers = [{"pid": 8, "outstanding": 3, "made": 9, "bytes": 10}] * 2
    sessions = [
        {"session": f"{name}/0", "loader": name, "client": "cli\x1bent", "samplers": samplers,
         "restarts": 2, "direct": False, "buffered_bytes": 3_000_000, "unsent_chunks": 4,
         "ring_bytes": 10_000_000}
        for name in ("aaaaaaaaaaaaaaaaaaaa", "bb")
    ]  # fmt: skip
    counted = ServerCounters(rank, [rank], "a", lambda: sessions)
    for session in sessions:
        counted.session_opened(session["session"])
    for _ in range(batches):
        counted.batch("bb/0", 2_000_000, 0.5)
    for number in range(requests):
        counted.count_request("sample", 0.004, 100, 1000, failed=number == 0)
    told = counted.snapshot()
    return {**told, "uptime": uptime, "pid": pid, "started": 1000.0, "rss": 123_000_000}


def table(*ranks):
    """What a directory says."""
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


def look(pictures, lost=None, directory=None, ranks=(0, 1, 2)):
    return Poll(1e9, "10.0.0.1:5", table(*ranks), directory, pictures, lost or {})


BEFORE = look({0: picture(0, 10.0, 5, 10), 1: picture(1, 10.0, 0)})
NOW = look(
    {0: picture(0, 12.0, 15, 30), 1: picture(1, 3.0, 1, pid=8)}, {2: Lost(75.2, "it is off")}
)


def rows(lines, title):
    """The rows below the line that begins with a title, cells apart."""
    start = next(i for i, line in enumerate(lines) if line.text.startswith(title))
    cells = []
    for line in lines[start + 1 :]:
        if not line.text:
            break
        cells.append([cell.strip() for cell in line.text.split("  ") if cell.strip()])
    return cells


def test_servers_with_rates():
    """10 batches of 2 MB and 20 requests in two seconds; a restarted server has no rates yet."""
    lines = render(NOW, BEFORE, 1000)
    first, second, third = rows(lines, "SERVER")
    assert first[:6] == ["0", "tcp://h:1", "0", "12 s", "1", "2"]
    assert first[6:12] == ["10.0", "1.0K", "9.5M", "5.0", "1", "117M"]
    assert second[6:10] == ["-", "-", "-", "-"]
    assert third == ["2", "tcp://h:3", "2", *["-"] * 11]
    assert lines[0].text.startswith("khop top 10.0.0.1:5  2 of 3 servers, 2 trainers")
    assert lines[1].text == "server 2 lost 1:15 ago: it is off"
    assert [line.style for line in lines[:2]] == [HEAD, ALARM]
    assert {line.text.split()[0] for line in lines if line.style == ALARM} == {"server", "2", "10"}


def test_sessions_clients_and_requests():
    lines = render(NOW, BEFORE, 1000)
    first, second, *others = rows(lines, "LOADER")
    assert first[:3] == ["aaaaaaaaaaaa", "cli\\x1bent", "0"]
    assert second == [*("bb", "cli\\x1bent", "0", "2", "6", "2.9M", "4", "5.0", "9.5M", "15", "2")]
    assert len(others) == 2
    assert rows(lines, "TRAINER") == [
        ["0", "host:1", "11", "0 s ago"],
        ["1", "host:2", "12", "has left"],
        ["10", "host:3", "13", "9 s ago"],
    ]
    assert rows(lines, "REQUEST") == [["sample", "10.0", "4 ms", "1"]]


def test_samplers_that_write_to_their_trainer_themselves():
    """The server knows nothing of their batches, and says so."""
    seen = NOW.pictures[0]
    sessions = [{**session, "direct": True} for session in seen["sessions"]]
    lines = render(look({0: {**seen, "sessions": sessions}}), BEFORE, 1000)
    assert rows(lines, "LOADER")[1] == ["bb", "cli\\x1bent", "0", "2", *["-"] * 7]


def test_the_directory_is_lost():
    lines = render(replace(NOW, directory=Lost(4.0)), BEFORE, 1000)
    assert lines[1].text == "directory lost 4 s ago: this is what it said last"


def test_a_lost_server_is_not_counted():
    """What it had is old: neither its sessions nor its requests are shown."""
    lines = render(look(NOW.pictures, {0: Lost(5.0), 1: Lost(5.0)}), BEFORE, 1000)
    assert not any(line.text.startswith(("LOADER", "REQUEST")) for line in lines)


def test_without_a_look_before_there_are_no_rates():
    assert rows(render(NOW, None, 1000), "SERVER")[0][6:10] == ["-"] * 4
    assert rates(NOW.pictures[0], None) is None
    assert session_rates(NOW.pictures[0], None) == {}
    assert rates(NOW.pictures[0], NOW.pictures[0]) is None  # no time has passed


@given(st.integers(1, 250), st.integers(1, 60))
def test_it_fits_any_terminal(width, height):
    lines = render(NOW, BEFORE, width, height)
    assert len(lines) <= height
    assert all(len(line.text) <= width for line in lines)
    assert all(line.text.isprintable() for line in lines)


def test_narrow_terminals_keep_what_matters():
    """At 80 columns rates and errors are there; identity always."""
    title = next(line.text for line in render(NOW, BEFORE, 80) if line.text.startswith("SERVER"))
    assert title.split() == [
        *("SERVER", "UP", "CLIENTS", "LOADERS", "REQ/S", "IN/S", "OUT/S", "BATCH/S"),
        *("ERRORS", "RSS", "RINGS"),
    ]


def test_low_terminals_say_what_is_missing():
    """Servers are cut last."""
    lines = render(NOW, BEFORE, 200, 19)
    assert len(rows(lines, "SERVER")) == 3
    assert [line.text for line in lines if line.text.startswith("...")] == [
        "... and 2 more",
        "... and 2 more",
    ]


def test_tables():
    """Texts to the left, numbers to the right, unknown cells as a dash."""
    given = Table([Column("A", is_text=True), Column("B"), Column("C", 1)])
    given.rows += [["x\ny", "1", None], ["z", "100", "3"]]
    assert [line.text for line in given.lines(80, 9)] == [
        "A       B  C",
        "x\\ny    1  -",
        "z     100  3",
    ]
    assert [line.text for line in given.lines(9, 1)] == ["A       B", "x\\ny    1", "... and 1"]


def test_json_for_programs():
    told = json.loads(json.dumps(as_json(NOW, BEFORE)))
    assert told["servers"]["0"]["rates"] == {
        "requests": 10.0,
        "failed": 0.0,
        "bytes_in": 1000.0,
        "bytes_out": 10_010_000.0,
        "batches": 5.0,
    }
    assert told["servers"]["0"]["session_rates"]["bb/0"] == {"count": 5.0, "bytes": 1e7}
    assert told["servers"]["1"]["rates"] is None
    assert told["servers"]["2"]["lost"] == {"seconds": 75.2, "why": "it is off"}
    assert told["servers"]["0"]["picture"]["rank"] == 0
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


GOOD_PICTURE, GOOD_TABLE = sent(picture(0, 12.0, 15, 30)), sent(table(0, 1))


@given(st.data(), st.sampled_from([*HOSTILE, places]))
def test_altered_statistics_are_shown_or_refused(data, value):
    """Any field replaced by anything: a ProtocolError where it enters, or a sound board."""
    is_picture = data.draw(st.booleans())
    good = GOOD_PICTURE if is_picture else GOOD_TABLE
    path = data.draw(st.sampled_from([*places(good)][value is places :]))
    bad = changed(good, path, value)
    try:
        if is_picture:
            seen = Poll(
                1e9, "m", check_table(GOOD_TABLE, "it"), None, {0: check_snapshot(bad, "it")}, {}
            )
        else:
            seen = Poll(1e9, "m", check_table(bad, "it"), None, {0: GOOD_PICTURE}, {})
    except ProtocolError as error:
        assert str(error).startswith(("it has sent malformed statistics: ", "it has sent a mal"))
        return
    assert all(line.text.isprintable() for line in render(seen, BEFORE, 1000))
    assert all(line.text.isprintable() for line in render(seen, seen, 80, 24))
    json.dumps(as_json(seen, BEFORE), allow_nan=False)


def test_valid_statistics_pass_unchanged():
    assert check_snapshot(GOOD_PICTURE, "it") == GOOD_PICTURE
    told = check_table(GOOD_TABLE, "it")
    for entry in told["servers"].values():
        assert entry["addresses"].pop("ipc") is None
    assert told == GOOD_TABLE


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
        check_snapshot(changed(GOOD_PICTURE, path, value), "server 1 at tcp://h:1")
