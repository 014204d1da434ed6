"""The graph that graph servers serve, as a client's loaders see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from khop.distributed.graph import LoaderGraph
from khop.distributed.remote import messages
from khop.distributed.remote.answers import MAX_ROWS
from khop.errors import ProtocolError
from khop.partition.folder import FolderMeta
from khop.partition.folder.meta import meta_of
from khop.typing import EDGE, NODE, Array, EdgeType, Int64Array, IntArray, NodeType

if TYPE_CHECKING:
    from khop.distributed.remote.client import ClientContext

# A server that was silent for longer is passed over, if there is another.
_SILENT = 3.0


class ServedGraph(LoaderGraph):
    """What the servers of a client serve.

    Every server knows ids, times and splits of the whole graph; the client asks the server of its
    rank, or another while that is lost.

    Args:
        context: the client's.

    Raises:
        RendezvousError: servers have not registered in time, or a partition is nobody's.
        PartitionUnavailableError: a server does not answer.
        ProtocolError: what it answers is no description of a graph.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.node_labels = {}
        context.remote.wait_for_servers()
        reply = context.remote.request(self._server(), messages.DescribeGraph())
        content = messages.read_text(reply.arrays, self.where)
        try:
            self._meta = meta_of(content["meta"])
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"{self.where} does not say what it holds: {error!r}") from None
        self._splits: dict[tuple[NodeType, str], Int64Array] = {}

    @property
    def meta(self) -> FolderMeta:
        """What the folder holds; labels that servers add are attributes `y`."""
        return self._meta

    @property
    def where(self) -> str:
        """Where it lies, for error messages."""
        return f"the graph served at {self._context.servers.master}"

    @property
    def context(self) -> ClientContext:
        """The client's context."""
        return self._context

    def connect(self) -> None:
        """Makes sure that all servers have registered, and that every partition is somebody's."""
        self._context.remote.wait_for_servers()

    def _parts(self) -> dict[int, list[int]]:
        """{server: its partitions}."""
        servers = self._context.remote.wait_for_servers().servers
        return {rank: list(entry.parts) for rank, entry in servers.items()}

    def _server(self, part: int | None = None) -> int:
        """A server to ask: this client's, or another that has a partition, or that is heard of."""
        servers = self._context.remote.wait_for_servers().servers
        mine, count = self._context.rank, self._context.num_servers()
        turns = [(mine + i) % count for i in range(count)]
        if part is not None:
            turns = [rank for rank in turns if part in servers[rank].parts]
        for rank in turns:
            if servers[rank].silent < _SILENT:
                return rank
        return turns[0]

    @property
    def homes(self) -> list[int]:
        """Home partition of each client: clients take turns at servers and their partitions.

        Raises:
            ValueError: nobody knows how many clients there are.
        """
        num_clients, num_servers = self._context.num_clients(), self._context.num_servers()
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

    def home_edges(self, edge_type: EdgeType = EDGE) -> Int64Array:
        """This client's share of all edges; see `LoaderGraph`.

        Those of its home partition, and of partitions that are nobody's home, by turns; clients
        that have a partition in common take turns at its edges.
        """
        place, homes, rank = self.edge_place(edge_type), self.homes, self._context.rank
        shares = [np.empty((2, 0), np.int64)]
        for part in range(self.num_partitions):
            keepers = [client for client, home in enumerate(homes) if home == part]
            keepers = keepers or [part % len(homes)]
            if rank in keepers:
                shares += self._edges_of(place, part, keepers.index(rank), len(keepers))
        return np.concatenate(shares, axis=1)

    def _edges_of(self, place: int, part: int, first: int, step: int) -> list[Array]:
        """Every so-many-th edge of a part, in pieces of [2, n] original ids."""
        bounds = self._meta.edge_types[place].bounds
        count = bounds[part + 1] - bounds[part]
        server = self._server(part)
        waiting = [
            self._context.remote.submit(
                server,
                messages.HomeEdges(place, part, begin, min(begin + step * MAX_ROWS, count), step),
            )
            for begin in range(first, count, step * MAX_ROWS)
        ]
        return [future.result()[1][0] for future in waiting]

    def split(self, node_type: NodeType, name: str) -> Int64Array:
        """[n] int64 new ids, ascending, for which a boolean attribute holds; KeyError if none."""
        splits = self._meta.node_type(node_type).splits
        if name not in splits:
            raise KeyError(f"'{node_type}' has no boolean attribute '{name}': there are {splits}")
        if (node_type, name) not in self._splits:
            self._splits[node_type, name] = self._whole_split(self._place(node_type), name)
        return self._splits[node_type, name]

    def _whole_split(self, place: int, name: str) -> Int64Array:
        pieces: list[Int64Array] = []
        begin, total = 0, 1
        while begin < total:
            request = messages.Split(place, name, begin)
            arrays = self._context.remote.request(self._server(), request).arrays
            (total,), new_ids, _ = arrays
            if begin < total and not len(new_ids):
                raise ProtocolError(f"{self.where} sent nothing of split '{name}'")
            pieces.append(new_ids)
            begin += len(new_ids)
        return np.concatenate(pieces)

    def times_of(self, node_type: NodeType, new_ids: Int64Array) -> Int64Array | None:
        """[n] keys of the times of nodes, by new id; None if their type has no times."""
        if not self._meta.node_type(node_type).timed:
            return None
        return self._translated(messages.NodeTimes, new_ids, node_type)

    def to_original_ids(self, new_ids: IntArray, node_type: NodeType = NODE) -> Int64Array:
        """Original ids of ids of the folder's numbering; see `LoaderGraph`."""
        return self._translated(messages.ToOriginalIds, new_ids, node_type)

    def _new_ids_of(self, original: IntArray, node_type: NodeType) -> Int64Array:
        return self._translated(messages.ToNewIds, original, node_type)

    def _translated(self, kind: Any, ids: IntArray, node_type: NodeType) -> Int64Array:
        """What servers have for each of some ids, asked for in pieces."""
        given = np.ascontiguousarray(ids, np.int64)
        request, server = kind(self._place(node_type)), self._server()
        pieces = [given[i : i + MAX_ROWS] for i in range(0, len(given), MAX_ROWS)]
        waiting = [self._context.remote.submit(server, request, [piece]) for piece in pieces]
        answers = [future.result()[1][0] for future in waiting]
        if [len(answer) for answer in answers] != [len(piece) for piece in pieces]:
            raise ProtocolError(f"{self.where} answered '{request.op}' with another number of ids")
        return np.concatenate([np.empty(0, np.int64), *answers])

    def _place(self, node_type: NodeType) -> int:
        return [t.name for t in self._meta.node_types].index(node_type)
