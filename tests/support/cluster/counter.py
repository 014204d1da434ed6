"""A counter as state of a part: requests of a user, with which tests start servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from khop.codec import AtMost, Between
from khop.distributed.rpc.frame_handler import RequestType
from khop.distributed.rpc.protocol import check_empty


@dataclass(frozen=True)
class Increment:
    """Request that adds to the counter, in several slices of work. The reply is the new value."""

    op: ClassVar[str] = "increment"

    by: Annotated[int, Between(1, 1000)] = 1
    slices: Annotated[int, Between(1, 1000)] = 1
    who: Annotated[str, AtMost(16)] = ""


@dataclass(frozen=True)
class Fail:
    """Request that adds one to the counter and then fails."""

    op: ClassVar[str] = "fail"


@dataclass(frozen=True)
class ReadCounter:
    """Request for the counter's value."""

    op: ClassVar[str] = "read_counter"


@dataclass(frozen=True)
class Order:
    """Request for the increments of a named client, in the order in which they came."""

    op: ClassVar[str] = "order"

    who: Annotated[str, AtMost(16)]


class Counter:
    """The counter, which a server keeps for a part.

    Attributes:
        value: the sum of all increments.
        added: increments by client, in order.
        steps: what each increment has added, in the order in which they ended.
    """

    def __init__(self):
        self.value = 0
        self.added = {}
        self.steps = []

    def increment(self, request, arrays):
        check_empty(arrays)
        for number in range(request.slices):
            if number:
                yield
            self.value += 1 if request.slices > 1 else request.by
        self.added.setdefault(request.who, []).append(request.by)
        self.steps.append(request.by if request.slices == 1 else request.slices)
        return [np.array([self.value])]

    def fail(self, request, arrays):
        self.value += 1
        raise ValueError(f"failed at {self.value}")

    def read(self, request, arrays):
        return [np.array([self.value])]

    def order(self, request, arrays):
        return [np.array(self.added.get(request.who, []), np.int64)]

    def types(self):
        """Return the table of the counter's requests."""
        return [
            RequestType(Increment, "write", self.increment, carries=0),
            RequestType(Fail, "write", self.fail, carries=0),
            RequestType(ReadCounter, "read_state", self.read, carries=0),
            RequestType(Order, "read_state", self.order, carries=0),
        ]


def request_types(part):
    """Return the table of requests to a part's counter, which servers look up by this name."""
    del part
    return Counter().types()
