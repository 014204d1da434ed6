"""Conversion of a recording to Chrome's trace events. Runs in the trainer.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Every
span is a complete event (`ph: X`) of a process and a thread; times are microseconds of
CLOCK_MONOTONIC, so that what was recorded by several processes of a machine can be joined. Arrows
lead from a batch's gathering to its use and from a request to its serving; a counter shows how many
batches lay ready.

Spans of one thread never overlap. Requests do, as several are in flight at a time: they get as many
lanes as they need. The times of a server on another machine are by another clock: its span is
placed in the middle of the request, as if both ways took equally long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from khop.trace.requests import REQUESTS, Answered

Thread = tuple[int, int]
"""Process and thread id."""

Event = dict[str, Any]

_FOREIGN = 1 << 23  # above the process ids that Linux gives


class Span(NamedTuple):
    """Work of a thread, with times in nanoseconds of CLOCK_MONOTONIC."""

    thread: Thread
    name: str
    began: int
    ended: int
    args: dict[str, Any]


class Delivery(NamedTuple):
    """Delivery of a batch: its producer, when it was ready, the thread that took it, and when."""

    maker: Thread
    ready: int
    taker: Thread
    taken: int


class Names(NamedTuple):
    """Process id of the trainer, and names of processes and threads."""

    trainer: int
    processes: dict[int, str]
    threads: dict[Thread, str]


def trace_events(
    spans: Sequence[Span],
    requests: Sequence[tuple[Thread, Answered]],
    deliveries: Sequence[Delivery],
    names: Names,
) -> Iterator[Event]:
    """Yield the events of a recording.

    Args:
        spans: work of threads.
        requests: requests to other partitions, each with the thread that sent it.
        deliveries: deliveries of batches that the trainer's thread did not make itself.
        names: names of processes and threads.
    """
    asked, served = _Lanes(), _Lanes()
    processes, threads = dict(names.processes), dict(names.threads)
    remote: list[Event] = []
    for number, (thread, request) in enumerate(sorted(requests, key=lambda r: r[1].sent)):
        lane = asked.place(thread[0], request.sent, request.received)
        threads[lane] = "requests"
        began, ended, is_near = _served(request)
        server = request.pid, request.thread
        if not is_near:
            server = served.place(_FOREIGN + request.part, began, ended)
        remote += _of_request(number, lane, request)
        if request.ended:
            processes[server[0]] = f"server of partition {request.part}"
            threads[server] = "serving"
            remote += _of_serving(number, server, began, ended, request)
    yield from _metadata(processes, threads, names.trainer)
    for span in spans:
        yield _complete(span.thread, span.name, span.began, span.ended, span.args)
    yield from remote
    yield from _arrows(spans, deliveries)
    yield from _ready(deliveries, names.trainer)


class _Lanes:
    """Virtual threads, for spans of a process that may overlap."""

    def __init__(self) -> None:
        self._ends: dict[int, list[int]] = defaultdict(list)

    def place(self, process: int, began: int, ended: int) -> Thread:
        """Return the first lane that is free; spans come in order of their begin."""
        ends = self._ends[process]
        for lane, end in enumerate(ends):
            if end <= began:
                ends[lane] = ended
                return process, lane + 1
        ends.append(ended)
        return process, len(ends)


def _served(request: Answered) -> tuple[int, int, bool]:
    """Return when the server worked, on the requester's clock, and True if both share a clock."""
    sent, received = request.sent, request.received
    if sent <= request.began <= request.ended <= received:
        return request.began, request.ended, True
    length = min(request.ended - request.began, received - sent) if request.ended else 0
    began = sent + (received - sent - length) // 2
    return began, began + length, False


def _of_request(number: int, lane: Thread, request: Answered) -> Iterator[Event]:
    args = {
        "epoch": request.epoch,
        "batch": request.batch,
        "partition": request.part,
        "rows": request.rows,
        "bytes": request.nbytes,
    }
    name = REQUESTS[request.kind]
    yield _complete(lane, name, request.sent, request.received, args)
    if request.ended:
        yield _arrow("s", "request", number, lane, request.sent)


def _of_serving(
    number: int, server: Thread, began: int, ended: int, request: Answered
) -> Iterator[Event]:
    args = {"partition": request.part, "rows": request.rows, "bytes": request.nbytes}
    yield _complete(server, REQUESTS[request.kind], began, ended, args)
    yield _arrow("f", "request", number, server, began)


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
    """Yield arrows from the end of a batch's making to its use, as far as both were recorded."""
    made = {(s.thread, s.ended) for s in spans if s.name == "gathering"}
    used = {(s.thread, s.began) for s in spans if s.name == "collating"}
    for number, batch in enumerate(deliveries):
        if (batch.maker, batch.ready) in made and (batch.taker, batch.taken) in used:
            # An arrow belongs to the span that its moment lies in: the last nanosecond still does.
            yield _arrow("s", "batch", number, batch.maker, batch.ready - 1)
            yield _arrow("f", "batch", number, batch.taker, batch.taken)


def _ready(deliveries: Sequence[Delivery], trainer: int) -> Iterator[Event]:
    """Yield the number of ready batches, whenever it changes."""
    changes = [(d.ready, 1) for d in deliveries] + [(d.taken, -1) for d in deliveries]
    count = 0
    for moment, change in sorted(changes):
        count += change
        yield _event("C", "ready batches", (trainer, 0), moment) | {"args": {"batches": count}}


def _event(kind: str, name: str, thread: Thread, moment: int) -> Event:
    return {"ph": kind, "name": name, "pid": thread[0], "tid": thread[1], "ts": moment / 1000}


def _complete(thread: Thread, name: str, began: int, ended: int, args: dict[str, Any]) -> Event:
    return _event("X", name, thread, began) | {"dur": (ended - began) / 1000, "args": args}


def _named(what: str, thread: Thread, args: dict[str, Any]) -> Event:
    return {"ph": "M", "name": what, "pid": thread[0], "tid": thread[1], "args": args}


def _arrow(kind: str, what: str, number: int, thread: Thread, moment: int) -> Event:
    event = _event(kind, what, thread, moment) | {"cat": what, "id": f"{what} {number}"}
    return event | {"bp": "e"} if kind == "f" else event
