"""Trace files: written whole or not at all, one event a line."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from khop.data.files import check_regular

Event = dict[str, Any]


def of_rank(path: Path, rank: int) -> Path:
    """Return a trainer's own path: `out.json` -> `out-rank1.json`."""
    name, dot, rest = path.name.partition(".")
    return path.with_name(f"{name}-rank{rank}{dot}{rest}")


def write_events(path: Path, events: Iterable[Event], about: dict[str, Any]) -> None:
    """Write a trace.

    Args:
        path: the file; gzipped if it ends in '.gz'.
        events: its events.
        about: further content of the file, 'otherData'.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _open(unfinished, "wt", path.suffix == ".gz") as file:
            file.write('{"traceEvents": [')
            for number, event in enumerate(events):
                file.write(",\n" if number else "\n")
                file.write(json.dumps(event))
            file.write(f'\n], "displayTimeUnit": "ms", "otherData": {json.dumps(about)}}}\n')
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def merge(paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> None:
    """Merge recordings that several trainers of one machine made at the same time.

    Args:
        paths: their files, from `record`.
        output: the file to write.

    Raises:
        ValueError: a file is no trace.

    Example:
        >>> with record(path / "trace.json") as recording:
        ...     batches = list(NeighborLoader(data, [2], batch_size=3))
        >>> merge([recording.path], path / "all.json")
    """
    events: dict[str, Event] = {}
    about: dict[str, Any] = {}
    for number, path in enumerate(map(Path, paths)):
        with _open(check_regular(path), "rt", path.suffix == ".gz") as file:
            content = json.load(file)
        if not isinstance(content, dict) or "traceEvents" not in content:
            raise ValueError(f"'{path}' is no trace that khop.trace.record has written")
        for event in content["traceEvents"]:
            if "id" in event:  # arrows are numbered file by file
                event["id"] = f"{number}: {event['id']}"
            events.setdefault(json.dumps(event), event)  # several files name the same server
        about[path.name] = content.get("otherData")
    write_events(Path(output), events.values(), about)


def _open(path: Path, mode: str, compressed: bool) -> IO[str]:
    if compressed:
        return cast("IO[str]", gzip.open(path, mode, encoding="utf-8"))
    return path.open(mode, encoding="utf-8")
