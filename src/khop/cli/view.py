"""Display of `khop top`: plain tables as wide as the terminal, and JSON.

Columns are in order of importance. If the terminal is too narrow, the last columns are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate

from khop import codec
from khop.cli.poller import Lost, Poll
from khop.log import printable
from khop.tables import grid

_SERVERS = (
    *("SERVER", "REQ/S", "BATCH/S", "ERRORS", "IN/S", "OUT/S", "UP", "RSS"),
    *("CLIENTS", "LOADERS", "RINGS", "PARTS", "ADDRESS", "FDS"),
)
_SESSIONS = (
    *("LOADER", "CLIENT", "BATCH/S", "SERVER", "RESTARTS", "ASKED", "BUFFERED", "BYTES/S"),
    *("SAMPLERS", "UNSENT", "BATCHES"),
)
_CLIENTS = ("TRAINER", "NAME", "LAST SEEN", "PID")
_REQUESTS = ("REQUEST", "PER S", "MEAN", "FAILED")
_Row = Sequence[str | None]


def render(poll: Poll, width: int, height: int | None = None) -> list[str]:
    """Return the lines that `khop top` shows in the terminal.

    Args:
        poll: state of all servers.
        width: columns of characters.
        height: number of lines. If None, all lines.
    """
    lines = [printable(line) for line in _summary(poll)]
    for titles, rows in (
        (_SERVERS, _server_rows(poll)),
        (_SESSIONS, _session_rows(poll)),
        (_CLIENTS, _client_rows(poll)),
        (_REQUESTS, _request_rows(poll)),
    ):
        lines += _table(titles, rows, width)
    if height is not None and len(lines) > height:
        lines[height - 1 :] = [f"... and {len(lines) - height + 1} more lines"]
    return [line[:width] for line in lines]


def as_json(poll: Poll) -> dict[str, object]:
    """Return the state of all servers as values for JSON: addresses, counters and rates."""
    servers = {
        str(server.rank): {
            "entry": codec.to_json(server.entry),
            "picture": None if server.snapshot is None else codec.to_json(server.snapshot),
            "rates": None if server.lost else server.rates.server or None,
            "session_rates": {} if server.lost else server.rates.sessions,
            "lost": None if server.lost is None else asdict(server.lost),
        }
        for server in poll.servers
    }
    return {
        "time": poll.time,
        "master": poll.master,
        "directory_lost": None if poll.directory is None else asdict(poll.directory),
        "num_servers": poll.table.num_servers,
        "num_clients": poll.table.num_clients,
        "servers": servers,
        "clients": codec.to_json(poll.table.clients),
    }


def _table(titles: Sequence[str], rows: Iterable[_Row], width: int) -> list[str]:
    """Return lines of a table with titles and rows, `width` characters wide. None is a dash."""
    cells = [[printable("-" if cell is None else cell) for cell in row] for row in (titles, *rows)]
    ends = accumulate(2 + max(map(len, column)) for column in zip(*cells, strict=True))
    shown = max(1, sum(end - 2 <= width for end in ends))
    return ["", *grid([row[:shown] for row in cells]).splitlines()] if len(cells) > 1 else []


def _summary(poll: Poll) -> Iterator[str]:
    reachable = sum(server.lost is None for server in poll.servers)
    clients = sum(not client.gone for client in poll.table.clients.values())
    yield (
        f"khop top {poll.master}  {reachable} of {poll.table.num_servers} servers, "
        f"{clients} trainer{'' if clients == 1 else 's'}  "
        f"{time.strftime('%H:%M:%S', time.localtime(poll.time))}"
    )
    if poll.directory is not None:
        yield f"{_lost('directory', poll.directory)} (its last table is shown)"
    for server in poll.servers:
        if server.lost is not None:
            yield _lost(f"server {server.rank}", server.lost)


def _lost(name: str, lost: Lost) -> str:
    return f"{name} lost {duration(lost.seconds)} ago" + (f": {lost.why}" if lost.why else "")


def _server_rows(poll: Poll) -> Iterator[_Row]:
    for server in poll.servers:
        rank, snapshot, rate = str(server.rank), server.snapshot, server.rates.server
        parts, address = ",".join(map(str, server.entry.parts)), server.entry.addresses.tcp
        if snapshot is None or server.lost:
            yield [rank, *[None] * 10, parts, address, None]
            continue
        yield [
            rank,
            count(rate.get("requests")),
            count(rate.get("batches")),
            str(snapshot.failures),
            size(rate.get("bytes_in")),
            size(rate.get("bytes_out")),
            duration(snapshot.uptime),
            size(snapshot.rss),
            str(len(snapshot.clients)),
            str(len(snapshot.sessions)),
            size(snapshot.ring_bytes),
            parts,
            address,
            str(snapshot.descriptors),
        ]


def _session_rows(poll: Poll) -> Iterator[_Row]:
    for server in poll.servers:
        if server.snapshot is None or server.lost:
            continue
        for session in server.snapshot.sessions:
            names, samplers = (session.loader[:12], session.client), str(len(session.samplers))
            rank, rate = str(server.rank), server.rates.sessions.get(session.session, {})
            if session.direct:  # the server does not see the batches
                yield [*names, None, rank, *[None] * 4, samplers, None, None]
                continue
            yield [
                *names,
                count(rate.get("count")),
                rank,
                str(session.restarts),
                str(sum(sampler.outstanding for sampler in session.samplers)),
                size(session.buffered_bytes),
                size(rate.get("bytes")),
                samplers,
                str(session.unsent_chunks),
                str(session.batches.count),
            ]


def _client_rows(poll: Poll) -> Iterator[_Row]:
    for rank, client in sorted(poll.table.clients.items()):
        last_seen = "has left" if client.gone else f"{duration(client.silent)} ago"
        yield [str(rank), client.name, last_seen, str(client.pid)]


def _request_rows(poll: Poll) -> Iterator[_Row]:
    """Yield one row of the table per type of request, with sums over all servers."""
    servers = [
        (s.snapshot.requests, s.rates.requests) for s in poll.servers if s.snapshot and not s.lost
    ]
    for name in sorted({name for requests, _ in servers for name in requests}):
        counted = [requests[name] for requests, _ in servers if name in requests]
        rates = [rates[name] for _, rates in servers if name in rates]
        if total := sum(r.count for r in counted):
            mean = 1e3 * sum(r.seconds for r in counted) / total
            failed = sum(r.failed for r in counted)
            yield [name, count(sum(rates) if rates else None), f"{mean:.3g} ms", str(failed)]


def count(value: float | None) -> str | None:
    """Format a number of events per second in few characters. None (unknown) stays None."""
    if value is None:
        return None
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def size(nbytes: float | None) -> str | None:
    """Format bytes in few characters, as `ls -h` does: 48M are 48 MiB. None stays None."""
    if nbytes is None:
        return None
    for unit in "BKMGT":
        if nbytes < 999.5 or unit == "T":
            break
        nbytes /= 1024
    return f"{nbytes:.1f}{unit}" if nbytes < 9.95 and unit != "B" else f"{nbytes:.0f}{unit}"


def duration(seconds: float) -> str:
    """Format seconds in few characters, in the unit that fits."""
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest:02d}"
    days, hours = divmod(hours, 24)
    return f"{f'{days} d ' if days else ''}{hours}:{minutes:02d}:{rest:02d}"
