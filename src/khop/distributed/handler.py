"""What a partition server answers.

Stateless: every request says all that its answer depends on, so it may be asked twice, and any
server of the part gives the same answer. Each request is checked in full before memory is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from khop import _native
from khop.channel.message import pack, unpack
from khop.distributed.wire import (
    PROTOCOL,
    check_empty,
    describe_error,
    one_vector,
    unpack_rows,
)
from khop.errors import ProtocolError
from khop.partition.part import Part
from khop.sampler.collect import fetch_rows
from khop.sampler.engine import Drawn, HopRequest
from khop.typing import Array


class RequestHandler:
    """Answers requests from one part.

    Args:
        part: the part.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._answers = {
            "sample": self._sample,
            "induce": self._induce,
            "has_edges": self._has_edges,
            "fetch": self._fetch,
        }

    def __call__(self, frames: list[Any]) -> list[Any]:
        """Frames of the reply to a request's frames; never raises."""
        number = None
        try:
            header, arrays = unpack(frames)
            number = header.get("id")
            if header.get("protocol") != PROTOCOL:
                raise ProtocolError(
                    f"protocol {header.get('protocol')} instead of {PROTOCOL}: all machines must "
                    "run the same khop"
                )
            if header.get("part") != self._part.part:
                raise ProtocolError(f"this is partition {self._part.part}")
            answer = self._answers.get(str(header.get("op")))
            if answer is None:
                raise ProtocolError(f"no such request '{header.get('op')}'")
            return pack({"id": number}, answer(header, arrays))
        except Exception as error:
            return pack({"id": number, "error": describe_error(error)}, [])

    def _sample(self, header: Mapping[str, Any], arrays: list[Array]) -> list[Array]:
        relation, csr = self._relation(header)
        rows, rest = unpack_rows(header, arrays)
        check_empty(rest)
        request = HopRequest(
            _integer(header, "fanout"),
            _flag(header, "replace"),
            _flag(header, "with_edge"),
            _integer(header, "key"),
            _flag(header, "weighted"),
            _flag(header, "last"),
        )
        if request.weighted and not csr.has_weights:
            raise ProtocolError(
                f"edge type {relation} has no weights in partition {self._part.part}"
            )
        return _reply(rows.draw(csr, request))

    def _induce(self, header: Mapping[str, Any], arrays: list[Array]) -> list[Array]:
        relation, csr = self._relation(header)
        rows, rest = unpack_rows(header, arrays)
        keys = one_vector(rest)
        source, _ = self._part.relations[relation]
        num_nodes = self._part.meta.node_types[source].count
        return _reply(rows.induce(csr, keys, num_nodes, _flag(header, "with_edge")))

    def _has_edges(self, header: Mapping[str, Any], arrays: list[Array]) -> list[Array]:
        _, csr = self._relation(header)
        rows, rest = unpack_rows(header, arrays)
        neighbors = one_vector(rest)
        if len(neighbors) != len(rows.ids):
            raise ProtocolError("a question for edges names other numbers of rows and neighbours")
        return [_native.has_edges(csr, rows.ids, neighbors)]

    def _relation(self, header: Mapping[str, Any]) -> tuple[int, _native.Csr]:
        relation = _index(header, "relation", len(self._part.csrs))
        return relation, self._part.csrs[relation]

    def _fetch(self, header: Mapping[str, Any], arrays: list[Array]) -> list[Array]:
        kind, names = header.get("kind"), header.get("names")
        if kind not in ("node", "edge") or not isinstance(names, list):
            raise ProtocolError("a fetch names neither nodes nor edges")
        types = self._part.meta.node_types if kind == "node" else self._part.meta.edge_types
        index = _index(header, "index", len(types))
        known = {"id" if kind == "node" else "edge_id", *types[index].attrs}
        for name in names:
            if name not in known:
                raise KeyError(f"no attribute '{name}': there are {sorted(known)}")
        return fetch_rows(self._part, kind, index, one_vector(arrays), names)


def _integer(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name)
    if type(value) is not int:
        raise ProtocolError(f"'{name}' must be an integer")
    return value


def _flag(header: Mapping[str, Any], name: str) -> bool:
    value = header.get(name)
    if not isinstance(value, bool):
        raise ProtocolError(f"'{name}' must be true or false")
    return value


def _index(header: Mapping[str, Any], name: str, count: int) -> int:
    value = _integer(header, name)
    if not 0 <= value < count:
        raise ProtocolError(f"'{name}' is {value}, but there are {count}")
    return value


def _reply(drawn: Drawn) -> list[Array]:
    counts, neighbors, edges = drawn
    return [counts, neighbors] if edges is None else [counts, neighbors, edges]
