"""Trace files: written whole or not at all, one event a line."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from khop.data.files import check_regular
from khop.private_folders import written_whole

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
    with written_whole(path) as opened, _text(opened, "wt", path) as file:
        file.write('{"traceEvents": [')
        for number, event in enumerate(events):
            file.write(",\n" if number else "\n")
            file.write(json.dumps(event))
        file.write(f'\n], "displayTimeUnit": "ms", "otherData": {json.dumps(about)}}}\n')


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
        with check_regular(path).open("rb") as opened, _text(opened, "rt", path) as file:
            content = json.load(file)
        if not isinstance(content, dict) or "traceEvents" not in content:
            raise ValueError(f"'{path}' is no trace that khop.trace.record has written")
        for event in content["traceEvents"]:
            if "id" in event:  # arrows are numbered file by file
                event["id"] = f"{number}: {event['id']}"
            events.setdefault(json.dumps(event), event)  # several files name the same server
        about[path.name] = content.get("otherData")
    write_events(Path(output), events.values(), about)


def _text(opened: IO[bytes], mode: str, path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return cast("IO[str]", gzip.open(opened, mode, encoding="utf-8"))
    return io.TextIOWrapper(opened, "utf-8")
