"""Graph of a client's loaders, requested from graph servers. Runs in trainers."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeAlias

import numpy as np

from khop.codec import from_json
from khop.distributed.graph import PartitionedGraph
from khop.distributed.job.context import DistContext, TrainerContext
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import (
    MAX_ROWS,
    DescribeGraph,
    GraphServerRequest,
    HomeEdges,
    NodesRequest,
    NodeTimes,
    Split,
    ToNewIds,
    ToOriginalIds,
    read_json,
)
from khop.distributed.remote.server_client import Reply
from khop.errors import ProtocolError
from khop.storage.folder import FolderMeta
from khop.typing import EDGE, NODE, Array, EdgeType, Int64Array, IntArray, NodeType

# Seconds of silence after which another server is preferred, if there is one.
_SILENT = 3.0
# Requests in flight for pieces of one result.
_MAX_IN_FLIGHT = 8

_PieceRequest: TypeAlias = tuple[GraphServerRequest, list[Array], tuple[int, ...]]
"""A request, its arrays, and the shape of the array in the reply."""


class ServedGraph(PartitionedGraph):
    """The graph that a client's servers serve: its description, ids, times and splits.

    `context` is the client's, and `servers` has its connections. Every server has ids, times and
    splits of the whole graph. The client of rank r sends requests to server r modulo the number of
    servers. If this server is lost, another one gets them.

    Raises:
        RendezvousError: a server has not registered in time, or a partition is not served.
        PartitionUnavailableError: a server does not answer.
        ProtocolError: a server's reply is no description of a graph.
    """

    def __init__(self, context: DistContext, servers: DirectoryClient) -> None:
        self._context = context
        self._servers = servers
        self.node_labels = {}
        servers.wait_for_servers()
        server = self._server()
        reply = servers.request(server, DescribeGraph())
        where = servers.name_of(server)
        content = read_json(reply.arrays, where)
        try:
            self._meta = from_json(FolderMeta, content["meta"], "its description")
            table = servers.table
            if table is not None and self._meta.num_parts != table.num_parts:
                raise ValueError(f"{self._meta.num_parts} parts of {table.num_parts}")
        except Exception as error:  # any error of a malformed reply
            text = f"{where} sent a malformed description of its graph: {error!r:.500}"
            raise ProtocolError(text) from None
        self._splits: dict[tuple[NodeType, str], Int64Array] = {}

    @property
    def meta(self) -> FolderMeta:
        """Metadata of the folder: types, sizes, attributes. Servers' labels are attributes `y`."""
        return self._meta

    def __repr__(self) -> str:
        return f"ServedGraph({self._servers.master})"

    @property
    def where(self) -> str:
        return f"the graph served at {self._servers.master}"

    @property
    def context(self) -> TrainerContext:
        assert isinstance(self._context, TrainerContext), "a reader is no trainer"
        return self._context

    def connect(self) -> None:
        """Ensure that all servers have registered, and that every partition is served."""
        self._servers.wait_for_servers()

    def _server(self, part: int | None = None) -> int:
        """Return the rank of the server for a request: this client's own, or the next alive one.

        Args:
            part: partition that the server must have. If None, any server can be returned.
        """
        servers = self._servers.wait_for_servers().servers
        own, count = self._context.rank, self._context.num_servers()
        ranks = [(own + i) % count for i in range(count)]
        if part is not None:
            ranks = [rank for rank in ranks if part in servers[rank].parts]
        return next((rank for rank in ranks if servers[rank].silent < _SILENT), ranks[0])

    @property
    def homes(self) -> list[int]:
        """Home partition of each client, by rank. Servers' partitions are assigned round-robin.

        Raises:
            ValueError: the number of clients is not fixed.
        """
        num_clients, num_servers = self._context.num_clients(), self._context.num_servers()
        if num_clients == 0:
            raise ValueError(
                "clients that come and go (num_clients=0) cannot divide anything among them: pass "
                "seeds of this client's own, or rank= and homes= to node_split"
            )
        servers = self._servers.wait_for_servers().servers
        homes = []
        for client in range(num_clients):
            own = servers[client % num_servers].parts or [0]
            homes.append(own[client // num_servers % len(own)])
        return homes

    def owned_edges(self, edge_type: EdgeType = EDGE) -> Int64Array:
        """Return the edges that this client takes as links by default: [2, n] original ids.

        A partition that is no client's home goes to one client, chosen round-robin. Clients with
        the same home partition divide its edges round-robin.
        """
        type_index, homes, rank = self.edge_type_index(edge_type), self.homes, self._context.rank
        shares = [np.empty((2, 0), np.int64)]
        for part in range(self.num_partitions):
            owners = [client for client, home in enumerate(homes) if home == part]
            owners = owners or [part % len(homes)]
            if rank in owners:
                shares += self.edges_of_part(type_index, part, owners.index(rank), len(owners))
        return np.concatenate(shares, axis=1)

    def edges_of_part(self, type_index: int, part: int, first: int, step: int) -> list[Array]:
        """Return every `step`-th edge of a part, in pieces of [2, n] original ids.

        Args:
            type_index: index of the edge type.
            part: the part.
            first: index of the first returned edge in the part, in the folder's order.
            step: difference between the indices of one edge and the next.
        """
        edge_type = self._meta.edge_types[type_index]
        count = edge_type.bounds[part + 1] - edge_type.bounds[part]
        limits = [self._meta.node_type(edge_type.name[i]).count for i in (0, 2)]
        server = self._server(part)

        def requests() -> Iterator[_PieceRequest]:
            for begin in range(first, count, step * MAX_ROWS):
                end = min(begin + step * MAX_ROWS, count)
                request = HomeEdges(type_index, part, begin, end, step)
                yield request, [], (2, len(range(begin, end, step)))

        pieces = []
        for piece in self._pieces(server, requests()):
            for row, limit in zip(piece, limits, strict=True):
                self._check_ids(server, "home_edges", row, limit)
            pieces.append(piece)
        return pieces

    def _pieces(
        self, server: int, requests: Iterable[_PieceRequest], lost: float | None = None
    ) -> Iterator[Array]:
        """Send requests to a server, a few at once. Yield the arrays of each reply, in order.

        `lost`: see `ServerClient.request`.
        """
        waiting: deque[tuple[_PieceRequest, Future[Reply]]] = deque()
        rest = iter(requests)
        while True:
            for entry in itertools.islice(rest, _MAX_IN_FLIGHT - len(waiting)):
                waiting.append((entry, self._servers.submit(server, entry[0], entry[1])))
            if not waiting:
                return
            (request, _, shape), future = waiting.popleft()
            reply = self._servers.wait_for_reply(future, server, lost)
            yield self._checked(server, request.op, reply.arrays, [shape])[0]

    def _checked(
        self, server: int, op: str, arrays: list[Array], shapes: Sequence[tuple[int | None, ...]]
    ) -> list[Array]:
        """Check that a reply has int64 arrays of these shapes, and return them.

        `op` is the request's name, and `server` the rank, for errors. In a shape, None is any
        length.

        Raises:
            ProtocolError: they differ.
        """
        fits = len(arrays) == len(shapes) and all(
            array.dtype == np.int64
            and array.ndim == len(shape)
            and all(axis in (None, n) for n, axis in zip(array.shape, shape, strict=True))
            for array, shape in zip(arrays, shapes, strict=True)
        )
        if not fits:
            sent = [f"{array.dtype} {array.shape}" for array in arrays[:8]]
            raise ProtocolError(
                f"{self._servers.name_of(server)} answered '{op}' with {sent}, not with "
                f"int64 arrays of shapes {list(shapes)}"
            )
        return arrays

    def _check_ids(self, server: int, op: str, ids: Int64Array, below: int) -> None:
        """Raise ProtocolError unless the ids in a server's reply are in [0, `below`)."""
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < below:
            raise ProtocolError(
                f"{self._servers.name_of(server)} answered '{op}' with ids {ids.min()} to "
                f"{ids.max()} of {below} nodes"
            )

    def split(self, node_type: NodeType, name: str) -> Int64Array:
        """Return the nodes whose boolean attribute `name` is True: [n] int64 new ids, ascending.

        New ids are the folder's numbering.

        Raises:
            KeyError: no boolean attribute has this name.
        """
        splits = self._meta.node_type(node_type).splits
        if name not in splits:
            raise KeyError(f"'{node_type}' has no boolean attribute '{name}': there are {splits}")
        if (node_type, name) not in self._splits:
            self._splits[node_type, name] = self._whole_split(node_type, name)
        return self._splits[node_type, name]

    def _whole_split(self, node_type: NodeType, name: str) -> Int64Array:
        type_index, num_nodes = self._type_index(node_type), self._meta.node_type(node_type).count
        pieces = [np.empty(0, np.int64)]
        begin, total, last = 0, None, -1
        while total is None or begin < total:
            server = self._server()
            arrays = self._servers.request(server, Split(type_index, name, begin)).arrays
            (count,), ids, _ = self._checked(server, "split", arrays, [(1,), (None,), (None,)])
            total = int(count) if total is None else total
            # A piece must not be empty before the end, or this would not end.
            is_next = len(ids) > 0 or begin == total
            where = self._servers.name_of(server)
            if count != total or not is_next or not begin + len(ids) <= total <= num_nodes:
                raise ProtocolError(
                    f"{where} sent {len(ids)} ids of split '{name}' from {begin} on, of {count} "
                    f"of {num_nodes} nodes"
                )
            self._check_ids(server, "split", ids, num_nodes)
            if len(ids) and not (last < ids[0] and (ids[1:] > ids[:-1]).all()):
                raise ProtocolError(f"{where} sent ids of split '{name}' that do not ascend")
            pieces.append(ids)
            begin += len(ids)
            last = int(ids[-1]) if len(ids) else last
        return np.concatenate(pieces)

    def times_of(self, node_type: NodeType, new_ids: Int64Array) -> Int64Array | None:
        """Return the times of nodes by new id, [n] int64 keys. None if the type has no times."""
        if not self._meta.node_type(node_type).timed:
            return None
        return self._translated(NodeTimes, new_ids, node_type)

    def to_original_ids(
        self, new_ids: IntArray, node_type: NodeType = NODE, lost: float | None = None
    ) -> Int64Array:
        """Return the original ids, [n] int64, of nodes with these ids in the folder's numbering.

        `lost`: see `ServerClient.request`.
        """
        return self._translated(ToOriginalIds, new_ids, node_type, lost)

    def _new_ids_of(
        self, original: IntArray, node_type: NodeType, lost: float | None = None
    ) -> Int64Array:
        return self._translated(ToNewIds, original, node_type, lost)

    def _translated(
        self,
        request_class: type[NodesRequest],
        ids: IntArray,
        node_type: NodeType,
        lost: float | None = None,
    ) -> Int64Array:
        """Request one value for each id, [n] int64, from a server. `request_class` says which.

        A request has at most `MAX_ROWS` ids. `lost`: see `ServerClient.request`.
        """
        request, server = request_class(self._type_index(node_type)), self._server()
        ids, count = np.ascontiguousarray(ids, np.int64), self._meta.node_type(node_type).count

        def requests() -> Iterator[_PieceRequest]:
            for begin in range(0, len(ids), MAX_ROWS):
                piece = ids[begin : begin + MAX_ROWS]
                yield request, [piece], (len(piece),)

        pieces = [np.empty(0, np.int64)]
        for values in self._pieces(server, requests(), lost):
            if request_class is not NodeTimes:
                self._check_ids(server, request.op, values, count)
            pieces.append(values)
        return np.concatenate(pieces)

    def _type_index(self, node_type: NodeType) -> int:
        return [t.name for t in self._meta.node_types].index(node_type)
