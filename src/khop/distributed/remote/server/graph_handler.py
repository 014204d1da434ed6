"""Answers to requests about the graph, and to requests about each partition of a graph server.

Replies depend on no earlier request. Threads beside the server's loop run this, so requests do not
wait for batches in flight to clients. A reply has at most `MAX_ROWS` rows: clients request more in
pieces. Rows are read in slices, between which other requests have their turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from khop import _native
from khop.codec import to_json
from khop.data.tickets import Ticket
from khop.distributed.remote.messages import (
    MAX_ROWS,
    DescribeGraph,
    DeviceCount,
    GraphServerRequest,
    HomeEdges,
    NodeTimes,
    Split,
    ToNewIds,
    ToOriginalIds,
    json_array,
)
from khop.distributed.remote.server.counters import OTHER, ServerCounters
from khop.distributed.remote.server.job_stores import JobStores
from khop.distributed.rpc import work
from khop.distributed.rpc.frame_handler import Answer, FrameHandler, RequestType, Steps
from khop.distributed.rpc.identity import NOBODY, Source
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import check_index, ids_of, peek_op, peek_part
from khop.distributed.rpc.state_handler import users_requests
from khop.errors import ProtocolError
from khop.storage.folder import AttrMeta, FolderMeta, PartitionFolder
from khop.storage.part import Part
from khop.typing import Array, Int64Array


def with_labels(meta: FolderMeta, labels: Mapping[int, Array]) -> FolderMeta:
    """Return `meta`, metadata of a folder, with labels as an additional attribute `y`.

    `labels` has the labels of node types, [num_nodes, ...], by the index of the type.
    """
    types = list(meta.node_types)
    for i, rows in labels.items():
        attrs = {**types[i].attrs, "y": AttrMeta.of(rows.dtype.name, rows.shape[1:])}
        types[i] = replace(types[i], attrs=attrs)
    return replace(meta, node_types=types)


def by_new_id(folder: PartitionFolder, type_index: int, labels: Array) -> Array:
    """Return labels of a node type, which are by original id, in the folder's numbering."""
    node_type = folder.meta.node_types[type_index]
    if len(labels) != node_type.count:
        raise ValueError(
            f"{len(labels)} labels for {node_type.count} nodes of type '{node_type.name}'"
        )
    ordered = np.empty_like(labels)
    ordered[folder.id_map(node_type.name)] = labels
    return ordered


class GraphRequestHandler(FrameHandler):
    """Handler of clients' requests about the graph: description, ids, times, splits, edges.

    Args:
        meta: metadata of the folder, with additional labels.
        rank, parts: rank and partitions of the server.
    """

    def __init__(
        self, folder: PartitionFolder, meta: FolderMeta, rank: int, parts: Sequence[int]
    ) -> None:
        self._opened: dict[int, Part] = {}
        self._described: Array | None = None
        self._devices: int | None = None
        answers: dict[type[GraphServerRequest], Answer] = {
            DescribeGraph: self._graph,
            ToNewIds: self._to_new_ids,
            ToOriginalIds: self._to_original_ids,
            NodeTimes: self._node_times,
            Split: self._split,
            HomeEdges: self._home_edges,
            DeviceCount: self._device_count,
        }
        types = [
            RequestType(request, "read", answer, request.carries, int(request.carries > 0))
            for request, answer in answers.items()
        ]
        super().__init__(f"graph server {rank}, of partitions {list(parts)}", None, types)
        self._folder = folder
        self._meta = meta
        self._rank = rank
        self._parts = list(parts)

    def _graph(self, request: DescribeGraph, arrays: list[Array]) -> list[Array]:
        if self._described is None:  # it does not change, and can have megabytes
            content = {
                "meta": to_json(self._meta),
                "fingerprint": self._folder.fingerprint,
                "root": str(self._folder.root),
                "rank": self._rank,
                "parts": self._parts,
            }
            self._described = json_array(content)
        return [self._described]

    def _to_new_ids(self, request: ToNewIds, arrays: list[Array]) -> Steps:
        name, ids = self._nodes(request.node_type, arrays)
        new_ids = self._folder.id_map(name)
        return [(yield from _in_slices(len(ids), lambda piece: new_ids[ids[piece]]))]

    def _to_original_ids(self, request: ToOriginalIds, arrays: list[Array]) -> Steps:
        name, ids = self._nodes(request.node_type, arrays)
        return [(yield from self._original(name, ids))]

    def _node_times(self, request: NodeTimes, arrays: list[Array]) -> Steps:
        name, ids = self._nodes(request.node_type, arrays)
        times = self._folder.node_times(name)
        if times is None:
            raise KeyError(f"nodes of type '{name}' have no times of their own")
        return [(yield from _in_slices(len(ids), lambda piece: times[ids[piece]]))]

    def _split(self, request: Split, arrays: list[Array]) -> Steps:
        types = self._meta.node_types
        node_type = types[check_index(request.node_type, len(types), "node_type")]
        new_ids = self._folder.split(node_type.name, request.name)
        begin = check_index(request.begin, len(new_ids) + 1, "begin")
        piece = new_ids[begin : begin + MAX_ROWS].astype(np.int64)
        total = np.array([len(new_ids)], np.int64)
        return [total, piece, (yield from self._original(node_type.name, piece))]

    def _home_edges(self, request: HomeEdges, arrays: list[Array]) -> Steps:
        types = self._meta.edge_types
        edge_type = check_index(request.edge_type, len(types), "edge_type")
        part, step = request.partition, request.step
        if part not in self._parts:
            raise ProtocolError(f"this server serves partitions {self._parts}, not {part}")
        count = types[edge_type].bounds[part + 1] - types[edge_type].bounds[part]
        begin = check_index(request.begin, count + 1, "begin")
        end = check_index(request.end, count + 1, "end")
        if (end - begin) // step > MAX_ROWS:
            raise ProtocolError(f"edges {begin} to {end} by {step} are more than {MAX_ROWS}")
        edges = np.arange(begin, end, step)
        if part not in self._opened:
            self._opened[part] = Part(self._folder, part)
        ends = np.empty((2, len(edges)), np.int64)
        for piece in work.ranges(len(edges)):
            ends[:, piece] = self._opened[part].edge_ends(edge_type, edges[piece])
            if piece.stop < len(edges):
                yield None
        return [ends]

    def _device_count(self, request: DeviceCount, arrays: list[Array]) -> list[Array]:
        if self._devices is None:  # the driver takes a moment to count them
            # There is no 'devices' if khop was built without CUDA.
            self._devices = int(_native.cuda_status().get("devices", 0))
        return [np.array([self._devices], np.int64)]

    def _nodes(self, type_index: int, arrays: list[Array]) -> tuple[str, Int64Array]:
        """Check a request's node ids. Return the name of their type, and the ids."""
        types = self._meta.node_types
        node_type = types[check_index(type_index, len(types), "node_type")]
        ids = ids_of(arrays)
        if len(ids) > MAX_ROWS:
            raise ProtocolError(f"a request names {len(ids)} nodes, more than {MAX_ROWS}")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < node_type.count:
            raise IndexError(
                f"ids {int(ids.min())} to {int(ids.max())} of node type '{node_type.name}', "
                f"which has {node_type.count} nodes"
            )
        return node_type.name, ids

    def _original(self, node_type: str, new_ids: Array) -> Generator[None, None, Int64Array]:
        ids = self._folder.original_ids(node_type)
        return (yield from _in_slices(len(new_ids), lambda piece: ids[new_ids[piece]]))


def _in_slices(count: int, read: Callable[[slice], Array]) -> Generator[None, None, Int64Array]:
    """Read `count` values slice by slice, and return them: [count] int64.

    `read` returns the values of a slice.
    """
    values = np.empty(count, np.int64)
    for piece in work.ranges(count):
        values[piece] = read(piece)
        if piece.stop < count:
            yield
    return values


def part_handlers(
    parts: Sequence[Part], stores: JobStores, modules: Sequence[str]
) -> dict[int, RequestHandler]:
    """Return the handler of the requests to each partition, by number.

    `stores` has the tensors of jobs. `modules` have users' requests, see `users_requests`.
    """
    handlers = {}
    for part in parts:
        types = [*stores.types(part), *users_requests(modules, part)]
        handlers[part.part] = RequestHandler(part, types=types)
    return handlers


class ServerHandler:
    """Handler of requests about the graph and of requests about the server's partitions.

    It needs no state of the server's loop, so threads run it. It counts the requests. `graph` and
    `parts`, by number of the partition, make the replies.
    """

    def __init__(
        self,
        graph: GraphRequestHandler,
        parts: Mapping[int, RequestHandler],
        counters: ServerCounters,
    ) -> None:
        self._graph = graph
        self._parts = dict(parts)
        self._counters = counters
        self.stop = graph.stop
        for part in self._parts.values():
            part.stop = graph.stop  # one ends all
        self._known = {*graph.names, *next(iter(self._parts.values())).names}

    def steps(
        self, frames: list[Any], source: Source = NOBODY
    ) -> Generator[list[Ticket] | None, None, list[Any]]:
        """Return the frames of the reply. Between slices of it, yield as `Steps`. Never raises."""
        began = time.monotonic()
        op = peek_op(frames[0]) if frames else ""
        part = peek_part(frames[0]) if frames else None
        handler = self._graph if part is None else self._parts.get(part, self._graph)
        reply: list[Any] = yield from handler.steps(frames, source)
        self._counters.count_request(
            op if op in self._known else OTHER,
            time.monotonic() - began,
            sum(map(len, frames)),
            sum(map(len, reply)),
            b'"error": {' in reply[0],
        )
        return reply
