"""Records of requests to other partitions, for traces, and their encoding in messages.

Samplers keep the records and send them to the trainer. Partition servers add their own times.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from time import monotonic_ns
from typing import Any, NamedTuple

import numpy as np

from khop.channel.control import U64_PAIR
from khop.errors import ProtocolError
from khop.trace.clock import Segment

REQUESTS = ("sample", "induce", "has_edges", "fetch")
"""Names of requests. Records hold indices into this tuple."""

_MAX_RECORDS = 300  # per control message, which holds 60,000 bytes
_NOTHING_SERVED = (0, 0, 0, 0)


class Asked(NamedTuple):
    """A request to another partition that has no answer yet. `Answered` describes the fields."""

    epoch: int
    batch: int
    part: int
    op: int
    rows: int
    sent: int


class Answered(NamedTuple):
    """A request to another partition, and its answer. Part of a recording.

    All times are nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        epoch, batch: the batch that needed the request.
        part: the partition.
        op: index into `REQUESTS`.
        rows: number of rows that were asked for.
        sent, received: times on the requester's clock.
        nbytes: bytes of the answer.
        began, ended: begin and end of the server's work, on its clock. 0 if not reported.
        pid, thread: process and thread of the server. 0 if not reported.
    """

    epoch: int
    batch: int
    part: int
    op: int
    rows: int
    sent: int
    received: int
    nbytes: int
    began: int
    ended: int
    pid: int
    thread: int


class RequestLog:
    """Log of a thread's requests to other partitions, while a recording is under way.

    Attributes:
        task: epoch and batch of the next requests.
        answered: the requests that have been answered.
    """

    def __init__(self, task: tuple[int, int] = (0, 0)) -> None:
        self.task = task
        self.answered: list[Answered] = []

    def log_request(self, part: int, op: str, rows: int) -> Asked | None:
        """Log that rows are requested from a partition. Return None if `op` is not recorded."""
        if op not in REQUESTS:
            return None
        return Asked(*self.task, part, REQUESTS.index(op), rows, monotonic_ns())

    def log_reply(self, asked: Asked, served: Any, nbytes: int) -> None:
        """Log the reply to a request, with `served`, the server's times.

        Malformed times are ignored.
        """
        reported = isinstance(served, list) and len(served) == len(_NOTHING_SERVED)
        if not reported or any(type(n) is not int or not 0 <= n < 2**63 for n in served):
            served = _NOTHING_SERVED
        self.answered.append(Answered(*asked, monotonic_ns(), nbytes, *served))


def served_since(began: int) -> list[int]:
    """Return begin and end (now) of a server's work in nanoseconds, and its process and thread."""
    return [began, monotonic_ns(), os.getpid(), threading.get_native_id()]


def pack_records(segments: list[Segment], answered: list[Answered]) -> Iterator[bytes]:
    """Yield messages, as bytes, with phases and requests. None are made if there are no records."""
    while segments or answered:
        first, segments = segments[:_MAX_RECORDS], segments[_MAX_RECORDS:]
        room = _MAX_RECORDS - len(first)
        second, answered = answered[:room], answered[room:]
        counts = U64_PAIR.pack(len(first), len(second))
        arrays = np.array(first, np.int64), np.array(second, np.int64)
        yield counts + arrays[0].tobytes() + arrays[1].tobytes()


def unpack_records(payload: bytes) -> tuple[list[Segment], list[Answered]]:
    """Decode a message of `pack_records`.

    Raises:
        ProtocolError: the length of the message does not match its counts.
    """
    counts = U64_PAIR.unpack_from(payload) if len(payload) >= U64_PAIR.size else (0, 0)
    widths = len(Segment._fields), len(Answered._fields)
    if len(payload) != U64_PAIR.size + 8 * sum(n * w for n, w in zip(counts, widths, strict=True)):
        raise ProtocolError(f"{len(payload)} bytes of a recording do not hold {counts} records")
    values = np.frombuffer(payload, np.int64, offset=U64_PAIR.size)
    first, second = np.split(values, [counts[0] * widths[0]])
    segments = list(map(Segment._make, first.reshape(-1, widths[0]).tolist()))
    return segments, list(map(Answered._make, second.reshape(-1, widths[1]).tolist()))
