"""Conversion of a recording to a file of Chrome's trace events. Runs in the trainer.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.

Every span is a complete event (`ph: X`) of a process and a thread. Times are microseconds of
CLOCK_MONOTONIC, so that recordings of several processes of a machine can be joined. Arrows lead
from a batch's gathering to its use and from a request to its serving. A counter shows the number of
ready batches.

Spans of one thread never overlap. Requests may, as several are in flight at a time: they are shown
in several lanes (virtual threads). A server on another machine has another clock. Its span is
placed in the middle of the request, as if request and reply travelled equally long.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from khop.data.files import check_regular
from khop.private_folders import written_whole
from khop.trace.requests import REQUESTS, Answered

Thread = tuple[int, int]
"""Process and thread id."""

Event = dict[str, Any]

_FOREIGN = 1 << 23  # above the process ids that Linux gives


class Span(NamedTuple):
    """Work of a thread in a recording, with times in nanoseconds of CLOCK_MONOTONIC."""

    thread: Thread
    name: str
    began: int
    ended: int
    args: dict[str, Any]


class Delivery(NamedTuple):
    """Delivery of a batch in a recording: its maker and its taker, which are threads.

    `ready` and `taken` are the times, in nanoseconds of CLOCK_MONOTONIC.
    """

    maker: Thread
    ready: int
    taker: Thread
    taken: int


class Names(NamedTuple):
    """Process id of the trainer, and names of processes and threads, for a trace."""

    trainer: int
    processes: dict[int, str]
    threads: dict[Thread, str]


def trace_events(
    spans: Sequence[Span],
    requests: Sequence[tuple[Thread, Answered]],
    deliveries: Sequence[Delivery],
    names: Names,
) -> Iterator[Event]:
    """Yield a recording as events of Chrome's trace format.

    Args:
        spans: work of all threads.
        requests: requests to partition servers, each with the thread that sent it.
        deliveries: deliveries of batches that other threads than the trainer's made.
        names: names of processes and threads.
    """
    asked, served = _Lanes(), _Lanes()
    processes, threads = dict(names.processes), dict(names.threads)
    remote: list[Event] = []
    for index, (thread, request) in enumerate(sorted(requests, key=lambda r: r[1].sent)):
        lane = asked.add(thread[0], request.sent, request.received)
        threads[lane] = "requests"
        began, ended, is_near = _served(request)
        server = request.pid, request.thread
        if not is_near:
            server = served.add(_FOREIGN + request.part, began, ended)
        remote += _of_request(index, lane, request)
        if request.ended:
            processes[server[0]] = f"server of partition {request.part}"
            threads[server] = "serving"
            remote += _of_serving(index, server, began, ended, request)
    yield from _metadata(processes, threads, names.trainer)
    for span in spans:
        yield _complete(span.thread, span.name, span.began, span.ended, span.args)
    yield from remote
    yield from _arrows(spans, deliveries)
    yield from _ready(deliveries, names.trainer)


class _Lanes:
    """Virtual threads of a trace, which show requests of a process that overlap in time."""

    def __init__(self) -> None:
        self._ends: dict[int, list[int]] = defaultdict(list)

    def add(self, process: int, began: int, ended: int) -> Thread:
        """Return the first virtual thread that is free at `began`, and occupy it to `ended`.

        Times are nanoseconds. Calls are in the order of `began`.
        """
        ends = self._ends[process]
        for lane, end in enumerate(ends):
            if end <= began:
                ends[lane] = ended
                return process, lane + 1
        ends.append(ended)
        return process, len(ends)


def _served(request: Answered) -> tuple[int, int, bool]:
    """Return begin and end of a server's work on the requester's clock, and if clocks are one."""
    sent, received = request.sent, request.received
    if sent <= request.began <= request.ended <= received:
        return request.began, request.ended, True
    length = min(request.ended - request.began, received - sent) if request.ended else 0
    began = sent + (received - sent - length) // 2
    return began, began + length, False


def _of_request(index: int, lane: Thread, request: Answered) -> Iterator[Event]:
    args = {
        "epoch": request.epoch,
        "batch": request.batch,
        "partition": request.part,
        "rows": request.rows,
        "bytes": request.nbytes,
    }
    name = REQUESTS[request.op]
    yield _complete(lane, name, request.sent, request.received, args)
    if request.ended:
        yield _arrow("s", "request", index, lane, request.sent)


def _of_serving(
    index: int, server: Thread, began: int, ended: int, request: Answered
) -> Iterator[Event]:
    args = {"partition": request.part, "rows": request.rows, "bytes": request.nbytes}
    yield _complete(server, REQUESTS[request.op], began, ended, args)
    yield _arrow("f", "request", index, server, began)


def _metadata(
    processes: dict[int, str], threads: dict[Thread, str], trainer: int
) -> Iterator[Event]:
    for process, name in processes.items():
        order = 0 if process == trainer else 2 if name.startswith("server") else 1
        yield _named("process_name", (process, 0), {"name": name})
        yield _named("process_sort_index", (process, 0), {"sort_index": order})
    for thread, name in threads.items():
        yield _named("thread_name", thread, {"name": name})


def _arrows(spans: Sequence[Span], deliveries: Sequence[Delivery]) -> Iterator[Event]:
    """Yield arrows from a batch's gathering to its use by the trainer, if both were recorded."""
    made = {(s.thread, s.ended) for s in spans if s.name == "gathering"}
    used = {(s.thread, s.began) for s in spans if s.name == "collating"}
    for index, batch in enumerate(deliveries):
        if (batch.maker, batch.ready) in made and (batch.taker, batch.taken) in used:
            # An arrow belongs to the span that its moment lies in: the last nanosecond still does.
            yield _arrow("s", "batch", index, batch.maker, batch.ready - 1)
            yield _arrow("f", "batch", index, batch.taker, batch.taken)


def _ready(deliveries: Sequence[Delivery], trainer: int) -> Iterator[Event]:
    """Yield counter events: how many batches are ready, whenever deliveries change it."""
    changes = [(d.ready, 1) for d in deliveries] + [(d.taken, -1) for d in deliveries]
    count = 0
    for moment, change in sorted(changes):
        count += change
        yield _event("C", "ready batches", (trainer, 0), moment) | {"args": {"batches": count}}


def _event(phase: str, name: str, thread: Thread, moment: int) -> Event:
    return {"ph": phase, "name": name, "pid": thread[0], "tid": thread[1], "ts": moment / 1000}


def _complete(thread: Thread, name: str, began: int, ended: int, args: dict[str, Any]) -> Event:
    return _event("X", name, thread, began) | {"dur": (ended - began) / 1000, "args": args}


def _named(name: str, thread: Thread, args: dict[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": thread[0], "tid": thread[1], "args": args}


def _arrow(phase: str, name: str, index: int, thread: Thread, moment: int) -> Event:
    event = _event(phase, name, thread, moment) | {"cat": name, "id": f"{name} {index}"}
    return event | {"bp": "e"} if phase == "f" else event


def of_rank(path: Path, rank: int) -> Path:
    """Return the path of a trainer's own trace: `out-rank1.json` of `out.json` and rank 1."""
    name, dot, rest = path.name.partition(".")
    return path.with_name(f"{name}-rank{rank}{dot}{rest}")


def write_events(path: Path, events: Iterable[Event], about: dict[str, Any]) -> None:
    """Write a trace whole, or not at all. Gzipped for '.gz'. `about` has further entries."""
    with written_whole(path) as opened, _text(opened, "wt", path) as file:
        file.write('{"traceEvents": [')
        for index, event in enumerate(events):
            file.write(",\n" if index else "\n")
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
    for index, path in enumerate(map(Path, paths)):
        with check_regular(path).open("rb") as opened, _text(opened, "rt", path) as file:
            content = json.load(file)
        if not isinstance(content, dict) or "traceEvents" not in content:
            raise ValueError(f"'{path}' is no trace that khop.trace.record has written")
        for event in content["traceEvents"]:
            if "id" in event:  # arrows are numbered file by file
                event["id"] = f"{index}: {event['id']}"
            events.setdefault(json.dumps(event), event)  # several files name the same server
        about[path.name] = content.get("otherData")
    write_events(Path(output), events.values(), about)


def _text(opened: IO[bytes], mode: str, path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return cast("IO[str]", gzip.open(opened, mode, encoding="utf-8"))
    return io.TextIOWrapper(opened, "utf-8")
