"""Handler of the requests to a part, in partition servers and graph servers. Imports no torch.

Requests that read the folder are stateless: the reply depends on nothing but the request. So a
request may be sent twice, and any server of the part gives the same reply. `state_handler` handles
requests that depend on state. A request is checked in full before memory is read. The size of its
reply (`limits`) and its cost (`work`) are computed before memory is allocated. Requests are
processed in slices, between which a thread may turn to other requests (`request_threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from khop import _native
from khop.channel.message import frame_slices
from khop.channel.pool import BufferPool
from khop.data.arrays import storage_dtype
from khop.distributed.rpc import work
from khop.distributed.rpc.frame_handler import FrameHandler, RequestType, Steps
from khop.distributed.rpc.limits import DEFAULT, check_reply_bytes
from khop.distributed.rpc.protocol import (
    Degrees,
    Fetch,
    HasEdges,
    Induce,
    Sample,
    check_empty,
    check_index,
    ids_of,
    unpack_rows,
)
from khop.distributed.rpc.state_handler import StateHandler
from khop.errors import ProtocolError
from khop.sampler.drawing.disk_rows import DiskRows
from khop.sampler.methods.access import Waiting
from khop.sampler.requests import Drawn, HopRequest, RowSet
from khop.storage.folder import AttrMeta
from khop.storage.part import Part
from khop.typing import Array, Int32Array, Int64Array

# Replies to a few large batches.
_MAX_IDLE = 256 << 20
# Most bytes of a neighbour in a reply, without and with its edge.
_EDGE_BYTES = (8, 16)


class RequestHandler(FrameHandler):
    """Handler of khop's requests for one part, and of a user's requests (see `users_requests`).

    Attributes:
        state: handler of the user's requests that write or read state. None if there are none.
    """

    def __init__(
        self,
        part: Part,
        reply_bytes: int = DEFAULT.reply_bytes,
        types: Sequence[RequestType] = (),
    ) -> None:
        # Each work on a reply is bounded by its cost, too (`work`), and the reply by its bytes.
        own = [
            RequestType(Sample, "read", self._sample),
            RequestType(Induce, "read", self._induce),
            RequestType(HasEdges, "read", self._has_edges),
            RequestType(Degrees, "read", self._answer_degrees),
            RequestType(Fetch, "read", self._fetch),
        ]
        reads = [*own, *(t for t in types if t.access == "read")]
        super().__init__("partition", part.part, reads)
        stateful = [t for t in types if t.access != "read"]
        self.state = StateHandler(part.part, stateful, self.incarnation) if stateful else None
        self._part = part
        self._reply_bytes = reply_bytes
        # Memory of replies is reused once they are sent: to touch fresh memory takes longer than to
        # fill it.
        self._pool = BufferPool(_MAX_IDLE)

    def _sample(self, request: Sample, arrays: list[Array]) -> Steps:
        csr, relation, hop = self._csr(request.relation), request.relation, request.hop
        rows, rest = unpack_rows(request.rows, arrays)
        check_empty(rest)
        if hop.weighted and not csr.has_weights:
            raise ProtocolError(
                f"edge type {relation} has no weights in partition {self._part.part}"
            )
        pairs = _excluded_of(rows)
        costs = yield from self._costs_of_draws(relation, rows, hop, pairs)
        if hop.last and not csr.has_times:
            hop = replace(hop, last=False)
        options, stop, disk_rows = hop.options(), self.stop, self._disk_rows[relation]

        def draw(piece: slice) -> Drawn | Waiting[Drawn]:
            ids, trees, times = _piece(rows, piece)
            if disk_rows is not None:
                return disk_rows.draw(RowSet(ids, trees, times, rows.excluded), hop, options)
            return _native.sample_rows(csr, ids, options, trees, times, pairs, stop)

        return (yield from self._in_slices(draw, costs, len(rows.ids)))

    def _costs_of_draws(
        self, relation: int, rows: RowSet, hop: HopRequest, pairs: _native.ExcludedPairs | None
    ) -> Generator[None, None, int | Int64Array]:
        """Compute the cost of drawing each row: [n] int64, or an int if all rows cost the same.

        Costs are in entries (`work`). `pairs` are edges to leave out. Yields None between slices.

        Raises:
            ProtocolError: the neighbours would not fit in a reply, or would take too long.
        """
        count, fanout, width = len(rows.ids), hop.fanout, _EDGE_BYTES[hop.with_edge]
        name = f"neighbours of {count} rows"
        nbytes = 4 * count + count * fanout * width
        fits = fanout >= 0 and nbytes <= self._reply_bytes
        if fits and not work.reads_degrees(hop, pairs is not None):
            work.check_draws(hop)
            work.check_cost(count * work.cost_of_row(hop), name)
            return work.cost_of_row(hop)
        degrees = yield from self._degrees(relation, rows.ids)
        if hop.replace and fanout >= 0:
            edges = int(np.count_nonzero(degrees)) * fanout
        else:
            edges = int(work.picks_of(hop, degrees).sum())
        check_reply_bytes(4 * count + edges * width, self._reply_bytes, name)
        work.check_draws(hop)
        costs = np.empty(count, np.int64)
        for piece in work.ranges(count):
            numbers = None if pairs is None else pairs.counts(rows.ids[piece])
            costs[piece] = work.costs_of_rows(hop, degrees[piece], numbers)
            if piece.stop < count:
                yield
        work.check_cost(int(costs.sum()), name)
        return costs

    def _degrees(self, relation: int, ids: Int64Array) -> Generator[None, None, Int64Array]:
        """Return the number of neighbours of each row, [n] int64.

        Raises:
            IndexError: a row is not of this part.
        """
        csr = self._csr(relation)
        if len(ids) <= work.ROWS_AT_ONCE:
            return _native.degrees(csr, ids)
        degrees = np.empty(len(ids), np.int64)
        for piece in work.ranges(len(ids)):
            degrees[piece] = _native.degrees(csr, ids[piece])
            yield
        return degrees

    def _induce(self, request: Induce, arrays: list[Array]) -> Steps:
        csr, relation, with_edge = self._csr(request.relation), request.relation, request.with_edge
        rows, rest = unpack_rows(request.rows, arrays)
        keys = ids_of(rest)
        work.check_count(len(keys), work.MOST_MEMBERS, "nodes among which it asks for edges")
        pairs = _excluded_of(rows)
        name = f"edges among {len(keys)} nodes"
        degrees = yield from self._degrees(relation, rows.ids)
        costs = work.costs_of_induced(degrees, len(keys))
        work.check_cost(int(costs.sum()), name)
        source, _ = self._part.relations[relation]
        num_nodes = self._part.meta.node_types[source].count
        members = _native.Members(num_nodes, rows.trees is not None)
        for piece in work.ranges(len(keys), 4 * work.ROWS_AT_ONCE):
            members.add(keys[piece])
            if piece.stop < len(keys):
                yield None
        stop, left, disk_rows = self.stop, self._reply_bytes, self._disk_rows[relation]

        def find_in(some: RowSet, csr: _native.Csr) -> Drawn:
            excluded = pairs if disk_rows is None else _excluded_of(some)
            ids, trees, times = some.ids, some.trees, some.times
            return _native.induce_rows(csr, ids, members, with_edge, trees, times, excluded, stop)

        def find(piece: slice) -> Waiting[Drawn]:
            nonlocal left
            some = RowSet(*_piece(rows, piece), rows.excluded)
            if disk_rows is None:
                drawn = find_in(some, csr)
            else:
                drawn = yield from disk_rows.by_rows(some, find_in, ["times"])
            left -= sum(array.nbytes for array in _reply(drawn))
            check_reply_bytes(self._reply_bytes - left, self._reply_bytes, name)
            return drawn

        # The number of a row's neighbours in the batch is known only afterwards. So a slice's reply
        # would fit if all neighbours were in the batch, or is of a single row.
        room = self._reply_bytes // _EDGE_BYTES[with_edge]
        if int(degrees.sum()) > room:
            costs = np.maximum(costs, degrees * work.SLICE // max(room, 1))
        return (yield from self._in_slices(find, costs, len(rows.ids)))

    def _in_slices(
        self, draw: Callable[[slice], Drawn | Waiting[Drawn]], costs: int | Int64Array, count: int
    ) -> Steps:
        """Call `draw` for slices of `count` rows of similar cost, and return the joined reply."""
        if isinstance(costs, int):
            parts = list(work.ranges(count, max(1, work.SLICE // costs)))
        else:
            parts = work.slices(costs)
        if len(parts) <= 1:
            return _reply((yield from _drawn(draw(slice(0, count)))))
        drawn = []
        for part in parts:
            drawn.append(_reply((yield from _drawn(draw(part)))))
            yield None
        return (yield from work.joined(drawn, self._pool.empty))

    def _has_edges(self, request: HasEdges, arrays: list[Array]) -> Steps:
        csr = self._csr(request.relation)
        rows, rest = unpack_rows(request.rows, arrays)
        neighbors = ids_of(rest)
        count = len(rows.ids)
        if len(neighbors) != count:
            raise ProtocolError("a question for edges names other numbers of rows and neighbours")
        degrees = yield from self._degrees(request.relation, rows.ids)
        costs = work.costs_of_edges(degrees)
        work.check_cost(int(costs.sum()), f"{count} questions for edges")
        exist, disk_rows = np.empty(count, np.bool_), self._disk_rows[request.relation]
        for piece in work.slices(costs):
            some, ends = rows.ids[piece], neighbors[piece]
            if disk_rows is None:
                exist[piece] = _native.has_edges(csr, some, ends)
            else:
                exist[piece] = yield from disk_rows.has_edges(some, ends)
            if piece.stop < count:
                yield None
        return [exist]

    def _answer_degrees(self, request: Degrees, arrays: list[Array]) -> Steps:
        return [(yield from self._degrees(request.relation, ids_of(arrays)))]

    def _csr(self, relation: int) -> _native.Csr:
        return self._part.csrs[check_index(relation, len(self._part.csrs), "relation")]

    @cached_property
    def _disk_rows(self) -> list[DiskRows | None]:
        """The rows of each edge type that are read past the page cache."""
        return DiskRows.of_part(self._part)

    def _fetch(self, request: Fetch, arrays: list[Array]) -> Steps:
        element, names = request.element, request.names
        types = self._part.meta.types(element)
        index = check_index(request.index, len(types), "index")
        original_ids = "id" if element == "node" else "edge_id"
        known = {**types[index].attrs, original_ids: AttrMeta.of("int64")}
        for name in names:
            if name not in known:
                raise KeyError(f"no attribute '{name[:100]}': there are {sorted(known)}")
        ids = ids_of(arrays)
        nbytes = len(ids) * sum(known[name].row_bytes for name in names)
        check_reply_bytes(nbytes, self._reply_bytes, f"{len(names)} attributes of {len(ids)}")
        rows = ids - types[index].bounds[self._part.part]
        replies: list[Array] = []
        cost = 0
        for name in names:
            feature = self._part.feature(element, index, name).as_stored
            row_bytes = known[name].row_bytes
            dtype = storage_dtype("int64" if name == original_ids else feature.dtype)
            if not feature.at_hand:
                out, ticket = feature.start(rows)
                if ticket is not None:
                    yield [ticket]
                    ticket.result()
                out = out.astype(dtype, copy=False)
            else:
                out = self._pool.empty((len(rows), *feature.row_shape), dtype)
                for piece in work.ranges(len(rows), work.rows_in_slice(row_bytes)):
                    if cost > work.SLICE:
                        yield None
                        cost = 0
                    feature.gather(rows[piece], out[piece])
                    cost += work.cost_of_rows(piece.stop - piece.start, row_bytes)
            replies += [out[of_frame] for of_frame in frame_slices(len(rows), row_bytes)]
        return replies


def _excluded_of(rows: RowSet) -> _native.ExcludedPairs | None:
    """Return the edges that must not be drawn from these rows, sorted once for all slices."""
    if rows.excluded is None:
        return None
    work.check_count(len(rows.excluded[0]), work.MOST_EXCLUDED, "excluded edges")
    return _native.ExcludedPairs(*rows.excluded)


def _drawn(drawn: Drawn | Waiting[Drawn]) -> Waiting[Drawn]:
    return (yield from drawn) if isinstance(drawn, Generator) else drawn


def _piece(rows: RowSet, piece: slice) -> tuple[Int64Array, Int32Array | None, Int64Array | None]:
    """Return ids, trees and times of the rows in a slice."""
    trees = None if rows.trees is None else rows.trees[piece]
    return rows.ids[piece], trees, None if rows.times is None else rows.times[piece]


def _reply(drawn: Drawn) -> list[Array]:
    counts, neighbors, edges = drawn
    return [counts, neighbors] if edges is None else [counts, neighbors, edges]
