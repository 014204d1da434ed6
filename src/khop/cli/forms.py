"""What `khop top` accepts of servers: forms of the directory's table and of a server's picture.

Both come from the network and are shown in a terminal, so they are checked in full where they
enter. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from khop.distributed.remote.statistics import REQUEST_BUCKETS
from khop.errors import ProtocolError

_MOST = 1 << 63
_LONGEST = 4096
_MOST_ENTRIES = 1 << 14


class _MalformedError(ValueError):
    """A value is not of its form.

    Attributes:
        path: names of the fields that lead to it.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []


Check = Callable[[Any], Any]
"""Returns a value that is of the form; raises _MalformedError if it is not."""


def count(value: Any) -> int:
    """An integer from 0 on."""
    if type(value) is not int or not 0 <= value < _MOST:
        raise _MalformedError("is no count")
    return value


def seconds(value: Any) -> float:
    """A time or duration."""
    if type(value) not in (int, float) or not 0 <= value < 1e15:
        raise _MalformedError("is no number of seconds")
    return float(value)


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _MalformedError("is neither true nor false")
    return value


def text(value: Any) -> str:
    """A text of some lines at most."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise _MalformedError("is no text, or a long one")
    return value


def rank(value: Any) -> str:
    """A rank as JSON has it as a key."""
    if not isinstance(value, str) or not (value.isascii() and value.isdecimal() and len(value) < 9):
        raise _MalformedError("is no rank")
    return str(int(value))


@dataclass(frozen=True)
class Many:
    """A list of values of one form."""

    form: Check

    def __call__(self, value: Any) -> list[Any]:
        """The list."""
        if not isinstance(value, list) or len(value) > _MOST_ENTRIES:
            raise _MalformedError("is no list, or a long one")
        return [_within(str(i), self.form, entry) for i, entry in enumerate(value)]


@dataclass(frozen=True)
class Named:
    """Values of one form by name."""

    form: Check
    name: Check = text

    def __call__(self, value: Any) -> dict[str, Any]:
        """The dictionary."""
        if not isinstance(value, Mapping) or len(value) > _MOST_ENTRIES:
            raise _MalformedError("is no object, or a large one")
        return {
            _within("key", self.name, key): _within(str(key)[:40], self.form, entry)
            for key, entry in value.items()
        }


@dataclass(frozen=True)
class Fields:
    """An object of known fields; what else it has, a newer khop's, is left out."""

    forms: Mapping[str, Check]
    optional: frozenset[str] = field(default=frozenset())

    def __call__(self, value: Any) -> dict[str, Any]:
        """The dictionary."""
        if not isinstance(value, Mapping):
            raise _MalformedError("is no object")
        missing = [n for n in self.forms if n not in value and n not in self.optional]
        if missing:
            raise _MalformedError(f"has no '{missing[0]}'")
        return {
            name: _within(name, form, value[name])
            for name, form in self.forms.items()
            if name in value
        }


def _within(name: str, form: Check, value: Any) -> Any:
    try:
        return form(value)
    except _MalformedError as error:
        error.path.insert(0, name)
        raise


def _buckets(value: Any) -> list[int]:
    counts: list[int] = Many(count)(value)
    if len(counts) != len(REQUEST_BUCKETS) + 1:
        raise _MalformedError(f"has {len(counts)} entries instead of {len(REQUEST_BUCKETS) + 1}")
    return counts


_BATCHES = Fields({"count": count, "bytes": count, "seconds": seconds})
_SAMPLER = Fields({"pid": count, "outstanding": count, "made": count, "bytes": count})
_SESSION = Fields(
    {
        **dict.fromkeys(("session", "loader", "client"), text),
        "direct": flag,
        "samplers": Many(_SAMPLER),
        **dict.fromkeys(("restarts", "buffered_bytes", "unsent_chunks", "ring_bytes"), count),
        "batches": _BATCHES,
    }
)
_REQUESTS = Fields({"count": count, "failed": count, "seconds": seconds, "buckets": _buckets})
_PICTURE = Fields(
    {
        **{"rank": count, "parts": Many(count), "address": text, "pid": count, "version": text},
        **{"started": seconds, "uptime": seconds, "clients": Many(text)},
        "sessions": Many(_SESSION),
        "requests": Named(_REQUESTS),
        "refused": Named(count),
        **dict.fromkeys(("bytes_in", "bytes_out", "sampler_restarts", "ring_bytes"), count),
        "batches": _BATCHES,
        "sessions_total": Named(count),
        **{"rss": count, "descriptors": count, "cpu_seconds": seconds},
    }
)
_SERVER = Fields(
    {
        "parts": Many(count),
        "addresses": Fields({"tcp": text, "ipc": text}, frozenset({"ipc"})),
        **{"host": text, "fingerprint": text, "pid": count, "incarnation": text, "silent": seconds},
        "gone": flag,
    },
    frozenset({"host", "fingerprint", "pid", "incarnation", "gone"}),
)
_CLIENT = Fields(
    {"name": text, "pid": count, "incarnation": text, "silent": seconds, "gone": flag},
    frozenset({"incarnation"}),
)
_TABLE = Fields(
    {
        "num_servers": count,
        "num_clients": count,
        "servers": Named(_SERVER, rank),
        "clients": Named(_CLIENT, rank),
    }
)


def check_table(table: Any, who: str) -> dict[str, Any]:
    """What a directory says, its known fields.

    Raises:
        ProtocolError: malformed; names `who` has sent it, and the field.
    """
    return _checked(_TABLE, table, who)


def check_picture(picture: Any, who: str) -> dict[str, Any]:
    """A server's picture of itself, see `ServerCounters.snapshot`; like `check_table`."""
    return _checked(_PICTURE, picture, who)


def _checked(form: Fields, value: Any, who: str) -> dict[str, Any]:
    try:
        return form(value)
    except _MalformedError as error:
        where = f"'{'.'.join(error.path)}' " if error.path else "what it says "
        raise ProtocolError(
            f"{who} has sent malformed statistics: {where}{error}. Does it run another khop?"
        ) from None
