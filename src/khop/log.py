"""Logging: one tree of standard Python loggers, 'khop'. Any process, no torch.

Records are *events*. Beside a sentence for people, an event has a name that does not change
('sampler-restarted'), values by name, and its origin: role (trainer, sampler, server, receiver,
client), rank, partition, process. Handlers read these from attributes of the record (`event`,
`role`, `rank`, `partition`, `fields`).

By default khop logs nothing below WARNING, and leaves the root logger alone. There are three ways
to configure it:

- `configure("info")` or `configure("info", json=True)`,
- the environment variable `KHOP_LOG=info|debug|warning|error|json:info`,
- a level and handlers of the logger 'khop' or the root, as with any library.

A process gets its settings from the process that starts it (`of_child`, `start_child`), and writes
to stderr.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from json import dumps
from reprlib import Repr
from typing import Any, TextIO

VARIABLE = "KHOP_LOG"
"""Environment variable with the arguments of `configure`."""

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""Names of levels."""

_ROOT = logging.getLogger("khop")
_ROLES = {"worker": "sampler", "receiver": "receiver"}  # all other programs are servers
_ORIGIN: dict[str, Any] = {"role": "trainer", "rank": None, "partition": None, "number": None}
_handler: logging.Handler | None = None


class EventLogger:
    """Logger of a module of khop, which `get` makes. A record is an event with a name and values.

    Args:
        name: the module's `__name__`.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, message: str, **fields: Any) -> None:
        """Log a detail that helps to find a fault. Arguments are as for `info`."""
        self._log(logging.DEBUG, event, message, fields)

    def info(self, event: str, message: str, **fields: Any) -> None:
        """Log an event of normal operation.

        Args:
            event: name of the event: a few words in lower case, joined by '-'.
            message: a sentence for people.
            **fields: values by name, which JSON can hold.
        """
        self._log(logging.INFO, event, message, fields)

    def warning(self, event: str, message: str, **fields: Any) -> None:
        """Log a fault that khop could recover from. Arguments are as for `info`."""
        self._log(logging.WARNING, event, message, fields)

    def error(self, event: str, message: str, **fields: Any) -> None:
        """Log a fault that khop could not recover from. Arguments are as for `info`."""
        self._log(logging.ERROR, event, message, fields)

    def _log(self, level: int, event: str, message: str, fields: Mapping[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        extra = {**_ORIGIN, "event": event, "fields": dict(fields)}
        # The caller of info() is three frames up.
        self._logger.log(level, "%s", message, extra=extra, stacklevel=3)


def get(name: str) -> EventLogger:
    """Return the event logger of a module of khop. `name` is the module's `__name__`."""
    return EventLogger(name)


def identify(
    role: str | None = None, rank: int | None = None, partition: int | None = None
) -> None:
    """Set the role, rank and partition in this process's records. None keeps the earlier value.

    Args:
        role: 'trainer' (the default), 'sampler', 'server', 'receiver' or 'client'.
        rank: number of the process among the processes of its role.
        partition: partition that the process has loaded.
    """
    fields = {"role": role, "rank": rank, "partition": partition}
    _ORIGIN.update({name: value for name, value in fields.items() if value is not None})


def configure(level: str = "info", json: bool = False, stream: TextIO | None = None) -> None:
    """Enable khop's log, in this process and in processes that it starts from now on.

    The logger 'khop' gets one handler, in place of an earlier call's handler. It no longer passes
    records on to the root logger's handlers. `reset()` undoes this.

    Args:
        level: lowest level of records that are written: 'debug', 'info', 'warning' or 'error'.
        json: write each record as a line of JSON instead of text.
        stream: stream to write to. If None, `sys.stderr` at the time of each record. Started
            processes always write to stderr.

    Raises:
        ValueError: an unknown level.

    Example:
        >>> configure("debug", json=True, stream=sys.stdout)
        >>> batches = list(DistNeighborLoader(DistDataset().load(folder, 0), [2]))
        {"time": "...", "level": "...", ...}
    """
    global _handler  # noqa: PLW0603
    if level.lower() not in LEVELS:
        raise ValueError(f"no such level of logging: '{level}'; there are {', '.join(LEVELS)}")
    reset()
    _handler = _StderrHandler() if stream is None else logging.StreamHandler(stream)
    _handler.setFormatter(JsonFormatter() if json else TextFormatter())
    _ROOT.addHandler(_handler)
    _ROOT.setLevel(LEVELS[level.lower()])
    _ROOT.propagate = False


def configure_program(level: str = "info") -> None:
    """Write a program's log, from `level` on, to stderr. `KHOP_LOG` takes precedence, if set."""
    if not os.environ.get(VARIABLE):
        configure(level)


def reset() -> None:
    """Undo `configure`: remove its handler, and pass records on to the root logger again."""
    global _handler  # noqa: PLW0603
    if _handler is not None:
        _ROOT.removeHandler(_handler)
        _handler = None
        _ROOT.setLevel(logging.NOTSET)
        _ROOT.propagate = True


def of_child(program: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of khop's log for a process that this one starts, as values for JSON.

    The process passes them to `start_child`.

    Args:
        program: module of the process, 'khop.distributed.sampling.worker' for example.
        config: configuration of the process, with its partition as 'part', its rank as 'rank'
            (default: this process's), and its number among several as 'number'.
    """
    return {
        "level": _ROOT.getEffectiveLevel(),
        "json": _handler is not None and isinstance(_handler.formatter, JsonFormatter),
        "who": {
            "role": _ROLES.get(program.rpartition(".")[2], "server"),
            "rank": config.get("rank", _ORIGIN["rank"]),
            "partition": config.get("part"),
            "number": config.get("number"),
        },
    }


def start_child(settings: Mapping[str, Any]) -> None:
    """Configure the log of a started process, on stderr, by its parent's `of_child` settings."""
    configure("warning", bool(settings["json"]))
    _ROOT.setLevel(int(settings["level"]))
    _ORIGIN.update(settings["who"])


class TextFormatter(logging.Formatter):
    """Formatter of a record as a line of text.

    `2026-11-22 04:30:01.250 WARNING sampler 1, rank 0, part 2, pid 77: sampler-restarted: ...`.
    Characters that could forge another line, or control a terminal, are escaped: parts of a message
    may come from the network.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, and the traceback of its exception."""
        known = _event_of(record)
        origin = [" ".join(str(w) for w in (known["role"], known["number"]) if w is not None)]
        origin += [f"rank {known['rank']}"] if known["rank"] is not None else []
        origin += [f"part {known['partition']}"] if known["partition"] is not None else []
        event = f"{known['event']}: " if known["event"] else ""
        fields = " ".join(f"{name}={value}" for name, value in known["fields"].items())
        text = event + record.getMessage() + (f" ({fields})" if fields else "")
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        start = f"{stamp}.{int(record.msecs):03d} {record.levelname}"
        line = f"{start} {', '.join(origin)}, pid {record.process}: {printable(text)}"
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).splitlines()
        return "\n".join([line, *map(printable, trace)])


class JsonFormatter(logging.Formatter):
    """Formatter of a record as a line of JSON.

    Its keys are 'time' (ISO 8601, UTC), 'level', 'logger', 'event', 'message', 'role', 'rank',
    'partition', 'number', 'pid' and 'fields'. A record with an exception also has 'traceback'.
    """

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            **_event_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return dumps(line, default=str)


def printable_lines(text: str) -> str:
    """Return the text with unprintable characters escaped, except line feeds and tabs."""
    return printable(text, "\n\t")


def printable(text: str, kept: str = "") -> str:
    """Return the text with unprintable characters (also line feeds) escaped, except `kept`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


_BRIEFLY = Repr()
_BRIEFLY.maxlevel, _BRIEFLY.maxdict, _BRIEFLY.maxlist, _BRIEFLY.maxtuple = 2, 4, 4, 4
_BRIEFLY.maxstring = _BRIEFLY.maxother = 70


def shown(value: object) -> str:
    """Return an untrusted value as text for an error message, in at most 80 characters.

    Large or deeply nested values are shortened before they are converted to text.
    """
    text = _BRIEFLY.repr(value)
    return printable(text if len(text) <= 80 else f"{text[:77]}...")


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Handler that looks up `sys.stderr` for each record, so that redirections take effect."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _event_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return origin, event and fields of a log record, with defaults for plain records."""
    return {
        name: getattr(record, name, default)
        for name, default in {**_ORIGIN, "event": None, "fields": {}}.items()
    }


def _configure_by(value: str) -> None:
    """Configure the log by the value of the environment variable `KHOP_LOG`. Bad values: 'info'."""
    first, _, second = value.partition(":")
    json = first == "json"
    try:
        configure((second or "info") if json else value, json)
    except ValueError as error:
        configure("info", json)
        get(__name__).warning("bad-setting", f"{VARIABLE}={value}: {error}; taken as 'info'")


if os.environ.get(VARIABLE):
    _configure_by(os.environ[VARIABLE])
