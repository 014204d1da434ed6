"""Display of `khop top`: tables that fit the terminal, as text and as JSON.

Pure functions of two looks; rates are differences between the earlier and the later one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from khop.cli.poller import Lost, Poll, failures, rates, session_rates
from khop.log import printable

NORMAL, HEAD, ALARM = "normal", "head", "alarm"
"""Styles of lines."""

_NOTHING = "-"


@dataclass(frozen=True)
class Line:
    """A line of text and its style."""

    text: str
    style: str = NORMAL


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its name.
        rank: columns are dropped where there is too little room, those of the highest rank first.
        is_text: aligned to the left.
    """

    title: str
    rank: int = 0
    is_text: bool = False


@dataclass
class Table:
    """Rows of cells below titles.

    Attributes:
        columns: one for each cell of a row.
        rows: cells; None if unknown.
        alarms: indices of the rows that report a problem.
    """

    columns: Sequence[Column]
    rows: list[list[str | None]] = field(default_factory=list)
    alarms: set[int] = field(default_factory=set)

    def lines(self, width: int, most_rows: int) -> list[Line]:
        """Return titles and rows as lines.

        Args:
            width: columns of characters.
            most_rows: rows to show; a further line counts those left out.
        """
        cells = [[c.title for c in self.columns]]
        cells += [[_NOTHING if c is None else printable(c) for c in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        shown = self._columns_that_fit(widths, width)
        lines = []
        for number, row in enumerate(cells[: most_rows + 1]):
            padded = [
                row[i].ljust(widths[i]) if self.columns[i].is_text else row[i].rjust(widths[i])
                for i in shown
            ]
            style = HEAD if number == 0 else ALARM if number - 1 in self.alarms else NORMAL
            lines.append(Line("  ".join(padded).rstrip()[:width], style))
        left = len(self.rows) - most_rows
        return [*lines, Line(f"... and {left} more"[:width])] if left > 0 else lines

    def _columns_that_fit(self, widths: list[int], width: int) -> list[int]:
        shown = list(range(len(self.columns)))
        while len(shown) > 1 and sum(widths[i] + 2 for i in shown) - 2 > width:
            shown.remove(max(shown, key=lambda i: (self.columns[i].rank, i)))
        return shown


def render(poll: Poll, before: Poll | None, width: int, height: int | None = None) -> list[Line]:
    """Return the lines that the terminal shows.

    Args:
        poll: the state to show.
        before: an earlier poll, for rates. If None, rates are left out.
        width: columns of characters.
        height: lines. If None, as many as there are.
    """
    head = [_headline(poll, width), *_troubles(poll, width)]
    tables = [t for t in _tables(poll, before) if t.rows]
    rooms = _rooms([len(t.rows) for t in tables], len(head), height)
    lines = head
    for table, most_rows in zip(tables, rooms, strict=True):
        lines += [Line(""), *table.lines(width, most_rows)]
    return lines if height is None else lines[:height]


def as_json(poll: Poll, before: Poll | None) -> dict[str, Any]:
    """Return the directory's entries, servers' snapshots, rates and lost servers, for JSON."""
    servers = {}
    for rank, entry in poll.servers.items():
        snapshot, lost = poll.pictures.get(rank), poll.lost.get(rank)
        servers[str(rank)] = {
            "entry": dict(entry),
            "picture": snapshot,
            "rates": None if snapshot is None or lost else rates(snapshot, _of(before, rank)),
            "session_rates": {}
            if snapshot is None or lost
            else session_rates(snapshot, _of(before, rank)),
            "lost": None if lost is None else asdict(lost),
        }
    return {
        "time": poll.time,
        "master": poll.master,
        "directory_lost": None if poll.directory is None else asdict(poll.directory),
        "num_servers": poll.table["num_servers"],
        "num_clients": poll.table["num_clients"],
        "servers": servers,
        "clients": dict(poll.table["clients"]),
    }


def _of(poll: Poll | None, rank: int) -> Mapping[str, Any] | None:
    return None if poll is None else poll.pictures.get(rank)


def _headline(poll: Poll, width: int) -> Line:
    here = len(poll.servers) - len(poll.lost)
    clients = [c for c in poll.table["clients"].values() if not c["gone"]]
    stamp = time.strftime("%H:%M:%S", time.localtime(poll.time))
    text = (
        f"khop top {poll.master}  {here} of {poll.table['num_servers']} servers, "
        f"{len(clients)} trainer{'' if len(clients) == 1 else 's'}  {stamp}"
    )
    return Line(printable(text)[:width], HEAD)


def _troubles(poll: Poll, width: int) -> list[Line]:
    troubles = []
    if poll.directory is not None:
        troubles.append(f"directory lost {_lost(poll.directory)}: this is what it said last")
    for rank, lost in poll.lost.items():
        why = f": {lost.why}" if lost.why else ""
        troubles.append(f"server {rank} lost {_lost(lost)}{why}")
    return [Line(printable(text)[:width], ALARM) for text in troubles]


def _lost(lost: Lost) -> str:
    return f"{duration(lost.seconds)} ago"


def _rooms(sizes: list[int], above: int, height: int | None) -> list[int]:
    """Return how many rows of each table are shown; the last tables are cut first."""
    rooms = list(sizes)
    if height is None:
        return rooms

    def used() -> int:
        cut = sum(room < size for room, size in zip(rooms, sizes, strict=True))
        return above + sum(rooms) + 2 * len(rooms) + cut

    for place in reversed(range(len(rooms))):
        while rooms[place] > 1 and used() > height:
            rooms[place] -= 1
    return rooms


def _tables(poll: Poll, before: Poll | None) -> list[Table]:
    return [
        _servers(poll, before),
        _sessions(poll, before),
        _clients(poll),
        _requests(poll, before),
    ]


def _servers(poll: Poll, before: Poll | None) -> Table:
    table = Table(
        [
            Column("SERVER"),
            Column("ADDRESS", 8, is_text=True),
            Column("PARTS", 7, is_text=True),
            Column("UP", 3),
            Column("CLIENTS", 4),
            Column("LOADERS", 5),
            Column("REQ/S"),
            Column("IN/S", 2),
            Column("OUT/S", 2),
            Column("BATCH/S"),
            Column("ERRORS", 1),
            Column("RSS", 3),
            Column("RINGS", 6),
            Column("FDS", 9),
        ]
    )
    for rank, entry in poll.servers.items():
        snapshot, lost = poll.pictures.get(rank), poll.lost.get(rank)
        if lost is not None:
            table.alarms.add(len(table.rows))
        parts = ",".join(map(str, entry["parts"]))
        row: list[str | None] = [str(rank), entry["addresses"].get("tcp"), parts]
        if snapshot is None or lost is not None:
            row += [None] * (len(table.columns) - len(row))
        else:
            row += _of_server(snapshot, rates(snapshot, _of(before, rank)))
        table.rows.append(row)
    return table


def _of_server(snapshot: Mapping[str, Any], rate: Mapping[str, float] | None) -> list[str | None]:
    return [
        duration(snapshot["uptime"]),
        str(len(snapshot["clients"])),
        str(len(snapshot["sessions"])),
        None if rate is None else count(rate["requests"]),
        None if rate is None else size(rate["bytes_in"]),
        None if rate is None else size(rate["bytes_out"]),
        None if rate is None else count(rate["batches"]),
        str(failures(snapshot)),
        size(snapshot["rss"]),
        size(snapshot["ring_bytes"]),
        str(snapshot["descriptors"]),
    ]


def _sessions(poll: Poll, before: Poll | None) -> Table:
    table = Table(
        [
            Column("LOADER", is_text=True),
            Column("CLIENT", is_text=True),
            Column("SERVER", 1),
            Column("SAMPLERS", 4),
            Column("ASKED", 2),
            Column("BUFFERED", 2),
            Column("UNSENT", 5),
            Column("BATCH/S"),
            Column("BYTES/S", 3),
            Column("BATCHES", 6),
            Column("RESTARTS", 1),
        ]
    )
    for rank, snapshot in sorted(poll.pictures.items()):
        if rank in poll.lost:
            continue
        per_second = session_rates(snapshot, _of(before, rank))
        for session in snapshot["sessions"]:
            rate = per_second.get(session["session"])
            table.rows.append([session["loader"][:12], session["client"], str(rank),
                               *_of_session(session, rate)])  # fmt: skip
    return table


def _of_session(session: Mapping[str, Any], rate: Mapping[str, float] | None) -> list[str | None]:
    samplers = session["samplers"]
    if session["direct"]:  # its samplers write to the trainer, not to the server
        return [str(len(samplers)), *[None] * 7]
    return [
        str(len(samplers)),
        str(sum(s["outstanding"] for s in samplers)),
        size(session["buffered_bytes"]),
        str(session["unsent_chunks"]),
        None if rate is None else count(rate["count"]),
        None if rate is None else size(rate["bytes"]),
        str(session["batches"]["count"]),
        str(session["restarts"]),
    ]


def _clients(poll: Poll) -> Table:
    table = Table(
        [Column("TRAINER"), Column("NAME", is_text=True), Column("PID", 2), Column("LAST SEEN", 1)]
    )
    for rank, client in sorted(poll.table["clients"].items(), key=lambda item: int(item[0])):
        if client["gone"]:
            last_message = "has left"
        else:
            last_message = f"{duration(client['silent'])} ago"
            if client["silent"] > 3:
                table.alarms.add(len(table.rows))
        table.rows.append([str(rank), str(client["name"]), str(client["pid"]), last_message])
    return table


def _requests(poll: Poll, before: Poll | None) -> Table:
    """Return the table of requests by name, over all servers."""
    table = Table(
        [Column("REQUEST", is_text=True), Column("PER S"), Column("MEAN", 1), Column("FAILED", 2)]
    )
    names = sorted({name for snapshot in poll.pictures.values() for name in snapshot["requests"]})
    for name in names:
        sums: dict[str, float] = defaultdict(float)
        for rank, snapshot in poll.pictures.items():
            answered = snapshot["requests"].get(name)
            if answered is None or rank in poll.lost:
                continue
            for key in ("count", "failed", "seconds"):
                sums[key] += answered[key]
            earlier, seconds = _earlier(snapshot, _of(before, rank), name)
            if seconds:
                sums["rate"] += (answered["count"] - earlier) / seconds
        if sums["count"]:
            mean = f"{1e3 * sums['seconds'] / sums['count']:.3g} ms"
            rate = count(sums["rate"]) if "rate" in sums else None
            table.rows.append([name, rate, mean, str(int(sums["failed"]))])
    return table


def _earlier(
    snapshot: Mapping[str, Any], before: Mapping[str, Any] | None, name: str
) -> tuple[int, float | None]:
    """Return the number of requests of a name at the poll before, and the seconds since."""
    if before is None or rates(snapshot, before) is None:
        return 0, None
    return before["requests"].get(name, {}).get("count", 0), snapshot["uptime"] - before["uptime"]


def count(value: float) -> str:
    """Format a number of events a second in few characters."""
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def size(nbytes: float) -> str:
    """Format bytes in few characters, as `ls -h` does: 48M are 48 MiB."""
    units = iter(("B", "K", "M", "G", "T"))
    unit = next(units)
    while nbytes >= 999.5 and unit != "T":
        nbytes, unit = nbytes / 1024, next(units)
    return f"{nbytes:.1f}{unit}" if nbytes < 9.95 and unit != "B" else f"{nbytes:.0f}{unit}"


def duration(seconds: float) -> str:
    """Format a time in few characters."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    hours = f"{whole // 3600 % 24}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return hours if whole < 86400 else f"{whole // 86400} d {hours}"
