"""Reader of a partitioned graph: rows of attributes, whole attributes, and edges.

Runs in trainers and their worker processes. Rows come from the home part, from its copies of hot
rows, and from the servers of the other parts. Whole attributes and edge lists are read from files
of parts that are on this machine, and over the network from other parts. They are in the order of
original ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import NamedTuple

import numpy as np

from khop.data import Feature
from khop.data.arrays import check_range, narrowest_int, storage_dtype
from khop.data.steps import run
from khop.distributed.partitions.shared_client import SharedClient
from khop.distributed.rpc.partition_client import PartitionClient
from khop.sampler.replies import check_drawn
from khop.sampler.requests import HopRequest, RowSet
from khop.sampler.rows.row_fetch import write_rows
from khop.sampler.rows.row_fetcher import PartRows
from khop.storage.folder import PartitionFolder, edge_array
from khop.storage.part import Part
from khop.typing import Array, Int64Array, IntArray

# Limits of one request when everything is read, in bytes and rows, and requests in flight.
_CHUNK_BYTES = 8 << 20
_MAX_CHUNK = 1 << 18
_IN_FLIGHT = 4


class Table(NamedTuple):
    """Attributes `names` of the node or edge type (`element`) with index `type_index`."""

    element: str  # 'node' or 'edge'
    type_index: int
    names: list[str]


class PartitionReader:
    """Reader of all parts of a folder, for a trainer at home in one.

    Args:
        folder: the folder.
        home: the home part.
        connected_part: returns the home part with the parts that are read from files beside it.
            Called once the trainers are connected.
    """

    def __init__(
        self, folder: PartitionFolder, home: int, connected_part: Callable[[], Part]
    ) -> None:
        self._connected_part = connected_part
        self._folder = folder
        self._meta = folder.meta
        self._home = home
        self._positions: dict[int, IntArray] = {}

    @cached_property
    def part(self) -> Part:
        return Part(self._folder, self._home)

    def rows(
        self, tables: Sequence[tuple[Table, Int64Array]], peers: Callable[[], SharedClient]
    ) -> list[dict[str, Array]]:
        """Read rows of attributes. All requests to other partitions are sent together.

        Args:
            tables: attributes, and the new ids of nodes or positions of edges.
            peers: returns the connections to other partitions.

        Returns:
            {name: rows} for each table. 'id' and 'edge_id' are original ids.
        """
        with self.session(peers) as client:
            return self.rows_with(tables, client)

    def rows_with(
        self, tables: Sequence[tuple[Table, Int64Array]], client: PartitionClient | None
    ) -> list[dict[str, Array]]:
        """Read rows of `tables`, as `rows` does, with the caller's client. None: all are local."""
        fetches = []
        for table, ids in tables:
            fetcher = PartRows(self._connected_part(), *table, client)
            fetches.append((fetcher.fetch(ids), fetcher.empty(len(ids))))
        run(write_rows(fetches), client)
        return [
            dict(zip(table.names, arrays, strict=True))
            for (table, _), (_, arrays) in zip(tables, fetches, strict=True)
        ]

    def session(
        self, peers: Callable[[], SharedClient]
    ) -> AbstractContextManager[PartitionClient | None]:
        """Return a context that yields a client, from `peers()`, or None without other parts."""
        return nullcontext() if self._meta.num_parts == 1 else peers().client()

    def attribute(
        self, element: str, index: int, name: str, peers: Callable[[], SharedClient]
    ) -> Array:
        """Read a whole attribute in its stored dtype, with one row per node or edge by original id.

        Args:
            element: 'node' or 'edge'.
            index: index of the type.
            name: name of the attribute.
            peers: returns the connections to other partitions.
        """
        meta = self._meta.types(element)[index]
        attr = meta.attrs[name]
        # Zeros: rows that damaged ids leave out must not hold earlier contents of the memory.
        out = np.zeros((meta.count, *attr.shape), storage_dtype(attr.dtype))
        for _, values, ids in self._all_rows(element, index, name, peers):
            out[ids] = values
        return out

    def positions(
        self, index: int, edge_ids: Int64Array, peers: Callable[[], SharedClient]
    ) -> Int64Array:
        """Return the positions of edges of type `index` in the folder, by their original ids.

        The first call builds a table of all edges of the type, and keeps it: 4 bytes per edge below
        2^31 edges, else 8. If the folder has no original ids, positions are the ids. `peers`
        returns the connections to other partitions.
        """
        if not self._meta.edge_types[index].edge_ids:
            check_range(edge_ids, self._meta.edge_types[index].count, "edge ids")
            return edge_ids.astype(np.int64)
        if index not in self._positions:
            count = self._meta.edge_types[index].count
            table = np.full(count, -1, narrowest_int(count))
            with self._folder.complete(table, self._edge_ids(index)):
                for first, ids, _ in self._all_rows("edge", index, "edge_id", peers):
                    table[ids] = np.arange(first, first + len(ids))
            self._positions[index] = table
        return self._positions[index][edge_ids].astype(np.int64)

    def edge_list(
        self, index: int, peers: Callable[[], SharedClient]
    ) -> tuple[Int64Array, Int64Array]:
        """Read the whole edge list of a type: sources and destinations, [num_edges] int64 each.

        They are original ids, in the order of original edge ids. `index` is the index of the edge
        type. `peers` returns the connections to other partitions.
        """
        rows_type, columns_type = self._ends(index)
        row_ids, column_ids = (
            self._folder.original_ids(self._meta.node_types[t].name)
            for t in (rows_type, columns_type)
        )
        count = self._meta.edge_types[index].count
        rows, columns = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        with self._folder.complete(rows, self._edge_ids(index)):
            for owners, neighbors, edge_ids in self._all_edges(index, peers):
                rows[edge_ids] = row_ids[owners]
                columns[edge_ids] = column_ids[neighbors]
        return (columns, rows) if self._meta.edge_dir == "in" else (rows, columns)

    def _ends(self, index: int) -> tuple[int, int]:
        """Return the indices of an edge type's node types: of rows, and of their neighbours."""
        neighbors, rows = self.part.relations[index]
        return rows, neighbors

    def _edge_ids(self, index: int) -> str:
        return f"list of original ids of edge type {self._meta.edge_types[index].name}"

    def _all_rows(
        self, element: str, index: int, name: str, peers: Callable[[], SharedClient]
    ) -> Iterator[tuple[int, Array, Array]]:
        """Yield (first row, values, original ids) of an attribute in all parts, piece by piece.

        `element` is 'node' or 'edge', `index` the type, and `peers` returns the connections.
        """
        id_name = "id" if element == "node" else "edge_id"
        names = [name] if name == id_name else [name, id_name]
        bounds = self._meta.types(element)[index].bounds
        for part, (first, last) in enumerate(itertools.pairwise(bounds)):
            if first == last:
                continue
            if self._folder.has_part(part):
                opened = self.part if part == self._home else Part(self._folder, part)
                tables = [opened.feature(element, index, n) for n in names]
                if all(isinstance(table, Feature) for table in tables):
                    yield first, tables[0].array, tables[-1].array
                    continue
                for start in range(first, last, _MAX_CHUNK):
                    rows = np.arange(start - first, min(start + _MAX_CHUNK, last) - first)
                    arrays = [table.gather(rows) for table in tables]
                    yield start, arrays[0], arrays[-1]
                continue
            with peers().client() as client:
                fetcher = PartRows(self.part, element, index, names, client)
                chunk = max(1, min(_MAX_CHUNK, _CHUNK_BYTES // fetcher.row_bytes))
                all_starts = range(first, last, chunk)
                for i in range(0, len(all_starts), _IN_FLIGHT):
                    starts = all_starts[i : i + _IN_FLIGHT]
                    pieces = [np.arange(a, min(a + chunk, last)) for a in starts]
                    requests = [fetcher.requested(part, ids) for ids in pieces]
                    client.wait([request.ticket for request in requests])
                    for start, request in zip(starts, requests, strict=True):
                        arrays = request.result()
                        yield start, arrays[0], arrays[-1]

    def _all_edges(
        self, index: int, peers: Callable[[], SharedClient]
    ) -> Iterator[tuple[Array, Array, Array]]:
        """Yield (rows, neighbours, original edge ids) of edges of type `index`, piece by piece.

        Rows and neighbours are new ids of nodes. `peers` returns the connections to other parts.
        """
        row_bounds = self._meta.node_types[self._ends(index)[0]].bounds
        edge_bounds = self._meta.edge_types[index].bounds
        for part in range(self._meta.num_parts):
            rows = np.arange(row_bounds[part], row_bounds[part + 1])
            if edge_bounds[part] == edge_bounds[part + 1]:
                continue
            if self._folder.has_part(part):
                edge_type = self._meta.edge_types[index].name
                indptr, neighbors, ids = (
                    edge_array(self._folder, part, edge_type, name)
                    for name in ("indptr", "indices", "edge_id")
                )
                yield np.repeat(rows, np.diff(indptr)), neighbors, ids
                continue
            with peers().client() as client:
                num_edges = edge_bounds[part + 1] - edge_bounds[part]
                chunk = max(1, min(_MAX_CHUNK, _CHUNK_BYTES * len(rows) // (16 * num_edges)))
                for start in range(0, len(rows), chunk):
                    chunk_rows = rows[start : start + chunk]
                    yield self._edges_of_server(client, part, index, chunk_rows)

    def _edges_of_server(
        self, client: PartitionClient, part: int, index: int, rows: Int64Array
    ) -> tuple[Array, Array, Array]:
        """Request all edges of `rows` of another part: (rows, neighbours, original edge ids)."""
        edge_type = self._meta.edge_types[index]
        every = HopRequest(fanout=-1, replace=False, with_edge=True, key=0)
        drawn = client.sample(part, index, RowSet(rows), every)
        client.wait([drawn])
        counts, neighbors, positions = check_drawn(
            drawn.result(),
            part,
            len(rows),
            True,
            self._meta.neighbor_type(edge_type).count,
            edge_type.bounds[part : part + 2],
        )
        assert positions is not None
        (fetched,) = self.rows_with([(Table("edge", index, ["edge_id"]), positions)], client)
        return np.repeat(rows, counts), neighbors, fetched["edge_id"]
