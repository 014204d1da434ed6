"""What servers answer.

Stateless: every request says all that its answer depends on, so it may be asked twice, and any
server of the part gives the same answer. Each request is checked in full before memory is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any

from khop import _native
from khop.channel.message import pack, unpack
from khop.channel.pool import BufferPool
from khop.distributed.fields import flag, ids, index, integer
from khop.distributed.wire import (
    PROTOCOL,
    check_empty,
    describe_error,
    unpack_rows,
)
from khop.errors import ProtocolError
from khop.partition.part import Part
from khop.sampler.collect import fetch_rows
from khop.sampler.requests import Drawn, HopRequest
from khop.trace.requests import served_since
from khop.typing import Array

_MAX_IDLE = 64 << 20

Answer = Callable[[Mapping[str, Any], list[Array]], list[Array]]


class FrameHandler:
    """Answers requests by their names; what is common to all servers.

    Args:
        what: what is served: 'partition'.
        number: its number; requests for another are refused. None: requests name none.
        answers: name of a request -> what makes the reply's arrays of its header and arrays.
    """

    def __init__(self, what: str, number: int | None, answers: Mapping[str, Answer]) -> None:
        self._what = what
        self._number = number
        self._answers = answers

    @property
    def names(self) -> list[str]:
        """Names of the requests that are answered."""
        return list(self._answers)

    def __call__(self, frames: list[Any]) -> list[Any]:
        """Frames of the reply to a request's frames; never raises."""
        number, began = None, monotonic_ns()
        try:
            header, arrays = unpack(frames)
            number = header.get("id")
            if header.get("protocol") != PROTOCOL:
                raise ProtocolError(
                    f"protocol {header.get('protocol')} instead of {PROTOCOL}: all machines must "
                    "run the same khop"
                )
            if header.get("part") != self._number:
                mine = "" if self._number is None else f" {self._number}"
                raise ProtocolError(f"this is {self._what}{mine}")
            answer = self._answers.get(str(header.get("op")))
            if answer is None:
                raise ProtocolError(f"no such request '{header.get('op')}'")
            reply = answer(header, arrays)
            timed = {"served": served_since(began)} if header.get("timed") is True else {}
            return pack({"id": number, **timed}, reply)
        except Exception as error:
            return pack({"id": number, "error": describe_error(error)}, [])


class RequestHandler(FrameHandler):
    """Answers requests from one part.

    Args:
        part: the part.
    """

    def __init__(self, part: Part) -> None:
        answers = {
            "sample": self._sample,
            "induce": self._induce,
            "has_edges": self._has_edges,
            "fetch": self._fetch,
        }
        super().__init__("partition", part.part, answers)
        self._part = part
        # Memory of replies comes back when they have been sent. Fresh memory cost more to touch
        # than to fill.
        self._pool = BufferPool(_MAX_IDLE)

    def _sample(self, header: Mapping[str, Any], arrays: list[Array]) -> list[Array]:
        relation, csr = self._relation(header)
        rows, rest = unpack_rows(header, arrays)
        check_empty(rest)
        request = HopRequest(
            integer(header, "fanout", low=-1),
            flag(header, "replace"),
            flag(header, "with_edge"),
            integer(header, "key", 0, 2**64 - 1),
            flag(header, "weighted"),
            flag(header, "last"),
        )
        if request.weighted and not csr.has_weights:
            raise ProtocolError(
                f"edge type {relation} has no weights in partition {self._part.part}"
            )
        return _reply(rows.draw(csr, request))

    def _induce(self, header: Mapping[str, Any], arrays: list[Array]) -> list[Array]:
        relation, csr = self._relation(header)
        rows, rest = unpack_rows(header, arrays)
        keys = ids(rest)
        source, _ = self._part.relations[relation]
        num_nodes = self._part.meta.node_types[source].count
        return _reply(rows.induce(csr, keys, num_nodes, flag(header, "with_edge")))

    def _has_edges(self, header: Mapping[str, Any], arrays: list[Array]) -> list[Array]:
        _, csr = self._relation(header)
        rows, rest = unpack_rows(header, arrays)
        neighbors = ids(rest)
        if len(neighbors) != len(rows.ids):
            raise ProtocolError("a question for edges names other numbers of rows and neighbours")
        return [_native.has_edges(csr, rows.ids, neighbors)]

    def _relation(self, header: Mapping[str, Any]) -> tuple[int, _native.Csr]:
        relation = index(header, "relation", len(self._part.csrs))
        return relation, self._part.csrs[relation]

    def _fetch(self, header: Mapping[str, Any], arrays: list[Array]) -> list[Array]:
        kind, names = header.get("kind"), header.get("names")
        if kind not in ("node", "edge"):
            raise ProtocolError("a fetch names neither nodes nor edges")
        if not isinstance(names, list) or any(not isinstance(name, str) for name in names):
            raise ProtocolError("a fetch does not name attributes")
        types = self._part.meta.node_types if kind == "node" else self._part.meta.edge_types
        place = index(header, "index", len(types))
        known = {"id" if kind == "node" else "edge_id", *types[place].attrs}
        for name in names:
            if name not in known:
                raise KeyError(f"no attribute '{name}': there are {sorted(known)}")
        return fetch_rows(self._part, kind, place, ids(arrays), names, self._pool.empty)


def _reply(drawn: Drawn) -> list[Array]:
    counts, neighbors, edges = drawn
    return [counts, neighbors] if edges is None else [counts, neighbors, edges]
