"""Graph of a client's loaders, requested from graph servers. Runs in trainers."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from khop.codec import from_json
from khop.distributed.graph import PartitionedGraph
from khop.distributed.job.context import TrainerContext
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.encoding import read_text
from khop.distributed.remote.graph_messages import (
    DescribeGraph,
    HomeEdges,
    NodeTimes,
    Split,
    ToNewIds,
    ToOriginalIds,
)
from khop.distributed.remote.message_fields import MAX_ROWS
from khop.errors import ProtocolError
from khop.storage.folder import FolderMeta
from khop.typing import EDGE, NODE, Array, EdgeType, Int64Array, IntArray, NodeType

# Seconds of silence after which another server is preferred, if there is one.
_SILENT = 3.0
# Pieces of a reply in flight.
_MOST_ASKED = 8


class ServedGraph(PartitionedGraph):
    """The graph that the servers of a client serve.

    Every server has ids, times and splits of the whole graph. The client sends its requests to the
    server of its rank (modulo their number), or to another while that one is lost.

    Args:
        context: the client's context.
        servers: connections to the servers.
        num_servers: number of servers.
        num_clients: number of clients; 0: any number.

    Raises:
        RendezvousError: a server has not registered in time, or a partition is not served.
        PartitionUnavailableError: a server does not answer.
        ProtocolError: its reply is no description of a graph.
    """

    def __init__(
        self, context: TrainerContext, servers: DirectoryClient, num_servers: int, num_clients: int
    ) -> None:
        self._context = context
        self._servers = servers
        self._num_servers = num_servers
        self._num_clients = num_clients
        self.node_labels = {}
        servers.wait_for_servers()
        server = self._server()
        reply = servers.request(server, DescribeGraph())
        where = servers.name_of(server)
        content = read_text(reply.arrays, where)
        try:
            self._meta = from_json(FolderMeta, content["meta"], "its description")
            table = servers.table
            if table is not None and self._meta.num_parts != table.num_parts:
                raise ValueError(f"{self._meta.num_parts} parts of {table.num_parts}")
        except Exception as error:  # any error of a malformed reply
            raise ProtocolError(f"{where} does not say what it holds: {error!r:.500}") from None
        self._splits: dict[tuple[NodeType, str], Int64Array] = {}

    @property
    def meta(self) -> FolderMeta:
        """Metadata of the folder; labels that servers add are attributes `y`."""
        return self._meta

    @property
    def where(self) -> str:
        """Location of the graph, for error messages."""
        return f"the graph served at {self._servers.master}"

    @property
    def context(self) -> TrainerContext:
        """The client's context."""
        return self._context

    def connect(self) -> None:
        """Ensure that all servers have registered, and that every partition is served."""
        self._servers.wait_for_servers()

    def _parts(self) -> dict[int, list[int]]:
        """Return {server: its partitions}."""
        servers = self._servers.wait_for_servers().servers
        return {rank: list(entry.parts) for rank, entry in servers.items()}

    def _server(self, part: int | None = None) -> int:
        """Return the rank of a server for a request: this client's, or the next that is alive.

        Args:
            part: partition that it must serve. If None, any.
        """
        servers = self._servers.wait_for_servers().servers
        mine, count = self._context.rank, self._num_servers
        turns = [(mine + i) % count for i in range(count)]
        if part is not None:
            turns = [rank for rank in turns if part in servers[rank].parts]
        for rank in turns:
            if servers[rank].silent < _SILENT:
                return rank
        return turns[0]

    @property
    def homes(self) -> list[int]:
        """Home partition of each client: the servers' partitions, assigned round-robin.

        Raises:
            ValueError: the number of clients is not fixed.
        """
        num_clients, num_servers = self._num_clients, self._num_servers
        if num_clients == 0:
            raise ValueError(
                "clients that come and go (num_clients=0) cannot divide anything among them: pass "
                "seeds of this client's own, or rank= and homes= to node_split"
            )
        parts = self._parts()
        homes = []
        for client in range(num_clients):
            own = parts[client % num_servers] or [0]
            homes.append(own[client // num_servers % len(own)])
        return homes

    def owned_edges(self, edge_type: EdgeType = EDGE) -> Int64Array:
        """Return this client's share of all edges, as `PartitionedGraph.owned_edges` describes.

        Partitions that are no client's home are assigned to clients round-robin. Clients of the
        same partition divide its edges round-robin.
        """
        place, homes, rank = (
            self.edge_type_index(edge_type),
            self.homes,
            self._context.rank,
        )
        shares = [np.empty((2, 0), np.int64)]
        for part in range(self.num_partitions):
            owners = [client for client, home in enumerate(homes) if home == part]
            owners = owners or [part % len(homes)]
            if rank in owners:
                shares += self.edges_of_part(place, part, owners.index(rank), len(owners))
        return np.concatenate(shares, axis=1)

    def edges_of_part(self, place: int, part: int, first: int, step: int) -> list[Array]:
        """Return edges first, first + step, ... of a part, in pieces of [2, n] original ids.

        Args:
            place: index of the edge type.
            part: the part.
            first: place of the first edge among the part's, in the folder's order.
            step: distance of one edge to the next.
        """
        edge_type = self._meta.edge_types[place]
        count = edge_type.bounds[part + 1] - edge_type.bounds[part]
        ends = [self._meta.node_type(edge_type.name[i]).count for i in (0, 2)]
        server = self._server(part)
        begins = iter(range(first, count, step * MAX_ROWS))
        waiting: deque[tuple[int, Any]] = deque()
        pieces: list[Array] = []
        while True:
            for begin in itertools.islice(begins, _MOST_ASKED - len(waiting)):
                end = min(begin + step * MAX_ROWS, count)
                request = HomeEdges(place, part, begin, end, step)
                wanted = len(range(begin, end, step))
                waiting.append((wanted, self._servers.submit(server, request)))
            if not waiting:
                return pieces
            wanted, future = waiting.popleft()
            (piece,) = self._checked(server, "home_edges", future.result().arrays, [(2, wanted)])
            for row, below in zip(piece, ends, strict=True):
                self._check_ids(server, "home_edges", row, below)
            pieces.append(piece)

    def _checked(
        self, server: int, op: str, arrays: list[Array], shapes: Sequence[tuple[int | None, ...]]
    ) -> list[Array]:
        """Check that a reply's arrays are int64, of these shapes (None: any length); return them.

        Raises:
            ProtocolError: they are not; names the server.
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
        """Raise ProtocolError if an id is out of range."""
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < below:
            raise ProtocolError(
                f"{self._servers.name_of(server)} answered '{op}' with ids {ids.min()} to "
                f"{ids.max()} of {below} nodes"
            )

    def split(self, node_type: NodeType, name: str) -> Int64Array:
        """Return the new ids, [n] int64 ascending, with a boolean attribute; KeyError if none."""
        splits = self._meta.node_type(node_type).splits
        if name not in splits:
            raise KeyError(f"'{node_type}' has no boolean attribute '{name}': there are {splits}")
        if (node_type, name) not in self._splits:
            self._splits[node_type, name] = self._whole_split(self._place(node_type), name)
        return self._splits[node_type, name]

    def _whole_split(self, place: int, name: str) -> Int64Array:
        node_type = self._meta.node_types[place]
        pieces = [np.empty(0, np.int64)]
        begin, total, last = 0, None, -1
        while total is None or begin < total:
            server, request = self._server(), Split(place, name, begin)
            arrays = self._servers.request(server, request).arrays
            (count,), ids, _ = self._checked(server, "split", arrays, [(1,), (None,), (None,)])
            total = int(count) if total is None else total
            # A piece must not be empty before the end, or this would not end.
            is_next = len(ids) > 0 or begin == total
            if count != total or not is_next or not begin + len(ids) <= total <= node_type.count:
                raise ProtocolError(
                    f"{self._servers.name_of(server)} sent {len(ids)} ids of split '{name}' "
                    f"from {begin} on, of {count} of {node_type.count} nodes"
                )
            self._check_ids(server, "split", ids, node_type.count)
            if len(ids) and not (last < ids[0] and (ids[1:] > ids[:-1]).all()):
                raise ProtocolError(
                    f"{self._servers.name_of(server)} sent ids of split '{name}' that do not ascend"
                )
            pieces.append(ids)
            begin += len(ids)
            last = int(ids[-1]) if len(ids) else last
        return np.concatenate(pieces)

    def times_of(self, node_type: NodeType, new_ids: Int64Array) -> Int64Array | None:
        """Return the times of nodes, as [n] int64 keys; None if their type has no times."""
        if not self._meta.node_type(node_type).timed:
            return None
        return self._translated(NodeTimes, new_ids, node_type)

    def to_original_ids(self, new_ids: IntArray, node_type: NodeType = NODE) -> Int64Array:
        """Return the original ids, [n] int64, of ids of the folder's numbering."""
        return self._translated(ToOriginalIds, new_ids, node_type)

    def _new_ids_of(self, original: IntArray, node_type: NodeType) -> Int64Array:
        return self._translated(ToNewIds, original, node_type)

    def _translated(self, kind: Any, ids: IntArray, node_type: NodeType) -> Int64Array:
        """Return the servers' value for each id, requested in pieces."""
        given = np.ascontiguousarray(ids, np.int64)
        request, server = kind(self._place(node_type)), self._server()
        pieces = deque(given[i : i + MAX_ROWS] for i in range(0, len(given), MAX_ROWS))
        waiting: deque[tuple[Int64Array, Any]] = deque()
        answers = []
        while pieces or waiting:
            while pieces and len(waiting) < _MOST_ASKED:
                piece = pieces.popleft()
                waiting.append((piece, self._servers.submit(server, request, [piece])))
            piece, future = waiting.popleft()
            arrays = future.result().arrays
            (answer,) = self._checked(server, request.op, arrays, [(len(piece),)])
            if kind is not NodeTimes:
                self._check_ids(server, request.op, answer, self._meta.node_type(node_type).count)
            answers.append(answer)
        return np.concatenate([np.empty(0, np.int64), *answers])

    def _place(self, node_type: NodeType) -> int:
        return [t.name for t in self._meta.node_types].index(node_type)
