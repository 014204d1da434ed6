"""Lists of hosts, as users write them for `khop run`. Imports no torch.

A list has entries with commas between: `a`, `user@b:4`, `n[01-03,07]-ib:2`. The number of
trainers comes after the colon. Brackets are ranges in Slurm's notation, where leading zeros count.
A host file has one entry per line, also as mpirun and DeepSpeed write it: `a slots=4`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MAX_HOSTS, MAX_PROCESSES = 4096, 1024
"""Maximum numbers of hosts of a job, and of trainers per host."""

_MAX_FILE_BYTES = 1 << 20
_ENTRY = re.compile(r"(?P<name>(?:[^\s,\[\]:]|\[[\d,-]+\])+)(?::(?P<count>\d{1,5}))?")
# Not an option of ssh, and nothing that a shell reads.
_NAME = re.compile(r"(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]*")
_RANGE = re.compile(r"\[([\d,-]*)\]")


class Host(NamedTuple):
    """A host of a job, and its number of trainers.

    Attributes:
        name: name or address, as the transport (ssh) takes it, with `user@` if need be.
        slots: number of trainers, or None for the default.
    """

    name: str
    slots: int | None = None


def parse_hosts(text: str) -> list[Host]:
    """Return the hosts of a list such as 'a:4,user@n[01-03]'.

    Raises:
        ValueError: the text is no such list, names a host twice, or has too many hosts.
    """
    hosts: list[Host] = []
    begin = 0
    while begin <= len(text):
        match = _ENTRY.match(text, begin)
        if match is None or text[match.end() :][:1] not in ("", ","):
            raise ValueError(f"hosts must be as in a:4,b or n[01-03]:2 (got '{text[begin:][:80]}')")
        count = None if match["count"] is None else _count(match["count"])
        hosts += [Host(name, count) for name in _expanded(match["name"])]
        begin = match.end() + 1
    return _checked(hosts)


def read_host_file(path: str) -> list[Host]:
    """Return the hosts of a file: an entry per line, and comments after `#`.

    Raises:
        ValueError: a line is no entry, or the file is longer than 1 MiB.
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError(f"'{path}' is no list of hosts: it is longer than 1 MiB")
    hosts: list[Host] = []
    for line in content.decode(errors="replace").splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        entry, slots = words[0], [w.partition("=")[2] for w in words[1:] if w.startswith("slots=")]
        if len(words) > 2 or len(slots) != len(words) - 1:
            raise ValueError(f"'{path}' has a line that is not HOST or HOST slots=N: '{line:.80}'")
        more = parse_hosts(entry)
        hosts += [host._replace(slots=_count(slots[0])) if slots else host for host in more]
    return _checked(hosts)


def _checked(hosts: Sequence[Host]) -> list[Host]:
    if not hosts:
        raise ValueError("there is no host in the list")
    if len(hosts) > MAX_HOSTS:
        raise ValueError(f"at most {MAX_HOSTS} hosts are supported (got {len(hosts)})")
    seen: set[str] = set()
    for host in hosts:
        if not _NAME.fullmatch(host.name):
            raise ValueError(f"'{host.name:.80}' is no name of a host")
        if host.name in seen:
            raise ValueError(f"host '{host.name:.80}' is listed twice: write {host.name:.80}:2")
        seen.add(host.name)
    return list(hosts)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= MAX_PROCESSES:
        raise ValueError(f"trainers per host must be 1 to {MAX_PROCESSES} (got '{text:.20}')")
    return int(text)


def _expanded(name: str) -> list[str]:
    """Return the names that brackets stand for: n01, n02, n07 of `n[01-02,07]`."""
    match = _RANGE.search(name)
    if match is None:
        return [name]
    before, after = name[: match.start()], _expanded(name[match.end() :])
    names: list[str] = []
    for part in match[1].split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdigit() or not last.isdigit() or max(len(first), len(last)) > 9:
            raise ValueError(f"hosts have ranges as in n[01-03,07] (got '{name:.80}')")
        span = range(int(first), int(last) + 1)
        if not 1 <= len(span) * len(after) <= MAX_HOSTS - len(names):
            raise ValueError(f"'{name:.80}' is no range of 1 to {MAX_HOSTS} hosts")
        names += [f"{before}{n:0{len(first)}}{end}" for n in span for end in after]
    return names
