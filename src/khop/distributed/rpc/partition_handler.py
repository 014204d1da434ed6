"""Request handlers of partition servers and graph servers. Imports no torch.

Stateless: a request has all that its reply depends on, so it may be sent twice, and any server of
the part gives the same reply. Each request is checked in full before memory is read, and the size
of its reply is computed before memory is allocated (`limits`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any

import numpy as np

from khop import _native
from khop.channel.message import pack, unpack
from khop.channel.pool import BufferPool
from khop.codec import INT64
from khop.distributed.rpc.limits import DEFAULT, check_reply_bytes, degrees_of, pieces
from khop.distributed.rpc.protocol import (
    Degrees,
    Fetch,
    HasEdges,
    Induce,
    Sample,
    check_empty,
    check_index,
    describe_error,
    ids_of,
    read_request,
    unpack_rows,
)
from khop.errors import ProtocolError
from khop.sampler.requests import Drawn, HopRequest, RowSet
from khop.sampler.row_fetcher import fetch_rows
from khop.storage.folder import AttrMeta
from khop.storage.part import Part
from khop.trace.requests import served_since
from khop.typing import Array, Int64Array

_MAX_IDLE = 64 << 20
# A refusal does not parse headers longer than this.
_MAX_REFUSED = 16 << 10

Answer = Callable[[Any, list[Array]], list[Array]]


class FrameHandler:
    """Base of all request handlers: calls the function for the request's name.

    Args:
        what: name of the data that is served: 'partition'.
        number: its number; requests for another are refused. If None, requests have no number.
        answers: {class of a request: function of request and arrays that returns the reply's
            arrays}.
    """

    def __init__(self, what: str, number: int | None, answers: Mapping[Any, Answer]) -> None:
        self._what = what
        self._number = number
        self._answers = {kind.op: (kind, answer) for kind, answer in answers.items()}

    @property
    def names(self) -> list[str]:
        """Names of the requests that are answered."""
        return list(self._answers)

    def __call__(self, frames: list[Any]) -> list[Any]:
        """Return the frames of the reply to a request's frames; never raises."""
        number, began = None, monotonic_ns()
        try:
            header, arrays = unpack(frames)
            number = header.get("id")
            if type(number) is not int or not 0 <= number <= INT64:
                number = None
                raise ProtocolError(
                    "a request has no 'id', by which the sender recognises the reply"
                )
            kind, answer = self._answers.get(str(header.get("op")), (None, None))
            if kind is None or answer is None:
                raise ProtocolError(f"no such request '{str(header.get('op'))[:100]}'")
            request = read_request(kind, header)
            if header.get("part") != self._number:
                mine = "" if self._number is None else f" {self._number}"
                raise ProtocolError(f"this is {self._what}{mine}")
            reply = answer(request, arrays)
            timed = {"served": served_since(began)} if header.get("timed") is True else {}
            return pack({"id": number, **timed}, reply)
        except Exception as error:
            return pack({"id": number, "error": describe_error(error)}, [])


def refusal(frames: list[Any], why: Exception) -> list[Any]:
    """Return the frames of an error reply to an unread request; never raises, costs little."""
    number = None
    if frames and len(frames[0]) <= _MAX_REFUSED:
        with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
            request_id = json.loads(bytes(frames[0]))["id"]
            number = request_id if type(request_id) is int else None
    return pack({"id": number, "error": describe_error(why)}, [])


def pack_or_refuse(header: Mapping[str, Any], arrays: Sequence[Array]) -> list[Any]:
    """Return the frames of a reply or event, or of an error if it cannot be sent; never raises."""
    try:
        return pack(header, arrays)
    except (ProtocolError, ValueError, RecursionError) as error:
        number = header.get("id")
        number = number if type(number) is int and 0 <= number < 1 << 63 else None
        return pack({"id": number, "error": describe_error(error)}, [])


class RequestHandler(FrameHandler):
    """Handler of requests for one part.

    Args:
        part: the part.
        reply_bytes: see `Limits`.
    """

    def __init__(self, part: Part, reply_bytes: int = DEFAULT.reply_bytes) -> None:
        answers: dict[Any, Answer] = {
            Sample: self._sample,
            Induce: self._induce,
            HasEdges: self._has_edges,
            Degrees: self._answer_degrees,
            Fetch: self._fetch,
        }
        super().__init__("partition", part.part, answers)
        self._part = part
        self._reply_bytes = reply_bytes
        # Memory of replies is reused when they have been sent: to touch fresh memory costs more
        # than to fill it.
        self._pool = BufferPool(_MAX_IDLE)

    def _sample(self, request: Sample, arrays: list[Array]) -> list[Array]:
        csr, relation, hop = self._csr(request.relation), request.relation, request.hop
        rows, rest = unpack_rows(request.rows, arrays)
        check_empty(rest)
        if hop.weighted and not csr.has_weights:
            raise ProtocolError(
                f"edge type {relation} has no weights in partition {self._part.part}"
            )
        self._check_drawn(relation, rows, hop)
        return _reply(rows.draw(csr, hop))

    def _check_drawn(self, relation: int, rows: RowSet, hop: HopRequest) -> None:
        """Raise ProtocolError if the neighbours would not fit a reply. Nothing is sampled yet."""
        count, fanout, width = len(rows.ids), hop.fanout, _edge_bytes(hop.with_edge)
        nbytes = 4 * count + count * fanout * width
        if fanout < 0 or nbytes > self._reply_bytes:  # then the degrees bound it
            degrees = self._degrees(relation, rows)
            if hop.replace and fanout >= 0:
                edges = int(np.count_nonzero(degrees)) * fanout
            elif fanout >= 0:
                edges = int(np.minimum(degrees, fanout).sum())
            else:
                edges = int(degrees.sum())
            nbytes = 4 * count + edges * width
        check_reply_bytes(nbytes, self._reply_bytes, f"neighbours of {count} rows")

    def _degrees(self, relation: int, rows: RowSet) -> Int64Array:
        indptr = self._part.indptr(relation)
        _, row_type = self._part.relations[relation]
        first_row = self._part.meta.node_types[row_type].bounds[self._part.part]
        return degrees_of(indptr, first_row, rows.ids)

    def _induce(self, request: Induce, arrays: list[Array]) -> list[Array]:
        csr, relation, with_edge = self._csr(request.relation), request.relation, request.with_edge
        rows, rest = unpack_rows(request.rows, arrays)
        keys = ids_of(rest)
        source, _ = self._part.relations[relation]
        num_nodes = self._part.meta.node_types[source].count
        # The number of a row's neighbours in the batch is known only afterwards. So rows are
        # processed in pieces whose replies would fit if all neighbours were in the batch.
        room = self._reply_bytes // _edge_bytes(with_edge)
        degrees = self._degrees(relation, rows)
        if len(degrees) < len(rows.ids) or int(degrees.sum()) <= room:
            return _reply(rows.induce(csr, keys, num_nodes, with_edge))
        found, nbytes = [], 0
        for piece in pieces(degrees, room):
            found.append(_reply(_rows_at(rows, piece).induce(csr, keys, num_nodes, with_edge)))
            nbytes += sum(array.nbytes for array in found[-1])
            check_reply_bytes(nbytes, self._reply_bytes, f"edges among {len(keys)} nodes")
        return [np.concatenate(arrays) for arrays in zip(*found, strict=True)]

    def _has_edges(self, request: HasEdges, arrays: list[Array]) -> list[Array]:
        csr = self._csr(request.relation)
        rows, rest = unpack_rows(request.rows, arrays)
        neighbors = ids_of(rest)
        if len(neighbors) != len(rows.ids):
            raise ProtocolError("a question for edges names other numbers of rows and neighbours")
        return [_native.has_edges(csr, rows.ids, neighbors)]

    def _answer_degrees(self, request: Degrees, arrays: list[Array]) -> list[Array]:
        relation = check_index(request.relation, len(self._part.csrs), "relation")
        ids = ids_of(arrays)
        degrees = self._degrees(relation, RowSet(ids))
        if len(degrees) != len(ids):
            raise IndexError(f"partition {self._part.part} does not own all nodes of a request")
        return [degrees]

    def _csr(self, relation: int) -> _native.Csr:
        return self._part.csrs[check_index(relation, len(self._part.csrs), "relation")]

    def _fetch(self, request: Fetch, arrays: list[Array]) -> list[Array]:
        kind, names = request.kind, request.names
        types = self._part.meta.types(kind)
        place = check_index(request.index, len(types), "index")
        original_ids = "id" if kind == "node" else "edge_id"
        known = {**types[place].attrs, original_ids: AttrMeta("int64")}
        for name in names:
            if name not in known:
                raise KeyError(f"no attribute '{name[:100]}': there are {sorted(known)}")
        wanted = ids_of(arrays)
        nbytes = len(wanted) * sum(known[name].row_bytes for name in names)
        check_reply_bytes(nbytes, self._reply_bytes, f"{len(names)} attributes of {len(wanted)}")
        return fetch_rows(self._part, kind, place, wanted, names, self._pool.empty)


def _edge_bytes(with_edge: bool) -> int:
    """Return the maximum bytes of a neighbour in a reply."""
    return 16 if with_edge else 8


def _rows_at(rows: RowSet, piece: slice) -> RowSet:
    return RowSet(
        rows.ids[piece],
        None if rows.trees is None else rows.trees[piece],
        None if rows.times is None else rows.times[piece],
        rows.excluded,
    )


def _reply(drawn: Drawn) -> list[Array]:
    counts, neighbors, edges = drawn
    return [counts, neighbors] if edges is None else [counts, neighbors, edges]
