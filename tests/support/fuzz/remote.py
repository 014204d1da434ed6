"""Targets of the fuzzer: graph servers, directory, sessions, batches. See `fuzz.targets`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import zmq

from khop.channel.arena import ArenaWriter, create_memory
from khop.channel.control import ControlLine, socket_pair
from khop.channel.layout import ArrayLayout, CounterLayout, Layout, Record
from khop.channel.message import pack, unpack
from khop.codec import to_json
from khop.distributed.remote.client.batch_checks import BatchChecks, BatchSchema
from khop.distributed.remote.client.reassembly import BatchReassembler, Layouts
from khop.distributed.remote.client.server_session import OPEN, ServerSession
from khop.distributed.remote.messages import (
    Addresses,
    ClientEntry,
    Goodbye,
    Lookup,
    Ping,
    Publish,
    RegisterClient,
    RegisterServer,
    ServerEntry,
    Table,
    WaitFor,
    json_array,
    read_json,
    read_reply,
    read_table,
)
from khop.distributed.remote.server.directory import Directory
from khop.distributed.remote.server.graph_handler import GraphRequestHandler
from khop.distributed.remote.server.validation import SessionValidator, columns_of
from khop.distributed.remote.session_messages import Alive, Chunk, LayoutEvent, Open, SessionSpec
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.protocol import PROTOCOL, read_request, request_header
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError, RendezvousError, SecurityError
from khop.sampler.link_spec import LinkSpec
from khop.sampler.rows.collect import CollectSpec
from khop.sampler.spec import SamplingSpec
from khop.storage.folder import PartitionFolder
from support.cluster.control_plane import CLIENTS, SOURCES, ControlPlane
from support.fuzz.mutations import bytes_changed, json_changed, text_changed

Run = Callable[[Random], None]

_REFUSALS = {"ProtocolError", "IndexError", "ValueError", "KeyError"}


def graph(root: Path) -> Run:
    """Return a target that sends requests about the whole graph."""
    folder = PartitionFolder(root)
    answer = GraphRequestHandler(folder, folder.meta, 0, [0, 1])
    common = {"protocol": PROTOCOL, "id": 5}
    ids = np.arange(8)
    edges = {"edge_type": 0, "partition": 0, "begin": 0, "end": 20, "step": 3}
    valid: list[tuple[dict[str, Any], list[Any]]] = [
        ({**common, "op": "graph"}, []),
        ({**common, "op": "to_new_ids", "node_type": 0}, [ids]),
        ({**common, "op": "to_original_ids", "node_type": 1}, [ids]),
        ({**common, "op": "node_times", "node_type": 0}, [ids]),
        ({**common, "op": "split", "node_type": 0, "name": "train_mask", "begin": 2}, []),
        ({**common, "op": "home_edges", **edges}, []),
        ({**common, "op": "device_count"}, []),
    ]

    def run(random: Random) -> None:
        header, arrays = random.choice(valid)
        for _ in range(random.choice((0, 1, 1, 2))):
            header = json_changed(random, header)
        if arrays and random.random() < 0.5:
            data = bytes_changed(random, arrays[0].tobytes(), [b"\xff" * 8])
            arrays = [np.frombuffer(data[: len(data) // 8 * 8], np.int64)]
        reply, _ = unpack(answer(pack(header if isinstance(header, dict) else {}, arrays)))
        assert "error" not in reply or reply["error"]["type"] in _REFUSALS, (reply, header)

    return run


def directory(root: Path) -> Run:
    """Return a target that sends registrations and requests to the directory."""
    del root
    addresses = Addresses("tcp://h:1", "ipc:///s")
    valid: list[Any] = [
        RegisterServer(1, "ab", 2, 2, [1], addresses, "h", 7, "f", {0: "x"}),
        RegisterClient(0, "c", 2, 2, "client 0", 8),
        Publish(0, "c", "a"),
        WaitFor(1, "d", "a", [0, 1], 1.0),
        Goodbye("client", 0, "c"),
        Goodbye("server", 1, "ab"),
    ]
    sources = [
        Source((0, b"s"), "server", is_server=True, is_proven=True),
        Source((0, b"a"), "a", has_own_key=True),
        Source((0, b"b"), "b", has_own_key=True),
    ]
    made = [Directory(2, 2, 3, "f")]

    def run(random: Random) -> None:
        if random.random() < 0.01:
            made[0] = Directory(2, 2, 3, "f")
        message, source = random.choice(valid), random.choice(sources)
        header = request_header(message, 1)
        for _ in range(random.choice((0, 1, 1, 2))):
            header = json_changed(random, header)
        header = json.loads(json.dumps(header))
        if not isinstance(header, dict):
            return
        try:
            request = read_request(type(message), header)
            if isinstance(request, WaitFor):
                made[0].values.wait_for(request, source, lambda reply, arrays: None)
            elif isinstance(request, Publish):
                made[0].values.publish(request, bytes_changed(random, b'{"b": [1]}', [b"["]))
            else:
                getattr(made[0], _NAMES[type(request)])(request, source)
        except (ProtocolError, RendezvousError, SecurityError):
            pass
        made[0].tick()
        table = made[0].lookup()
        assert read_table([json_array(to_json(table))], "it") == table

    return run


_NAMES = {
    RegisterServer: "register_server",
    RegisterClient: "register_client",
    Goodbye: "goodbye",
}


def session(root: Path) -> Run:
    """Return a target that opens sessions and requests batches of seeds."""
    meta = PartitionFolder(root).meta
    checks = SessionValidator(meta)
    sampling = SamplingSpec([[3, 2]] * len(meta.edge_types), with_edge=True)
    collect = CollectSpec(
        [list(t.attrs) for t in meta.node_types],
        [list(t.attrs) for t in meta.edge_types],
        [True] * len(meta.edge_types),
    )
    link = LinkSpec(mode="binary", amount=1.5, excluded=((0, True),))
    specs = [
        SessionSpec(
            "loader/0", "secret", "client 0", PipelineSpec(sampling, collect, link=of),
            1, 1 << 20, 2, 4, [None], 2, 60.0, 1 << 20,
        )
        for of in (None, link)
    ]  # fmt: skip
    seeds = np.arange(10).reshape(1, -1)

    def run(random: Random) -> None:
        changed: Any = request_header(Open(random.choice(specs), [1], []), 1)
        for _ in range(random.choice((0, 1, 1, 2, 3, 5))):
            changed = json_changed(random, changed)
        changed = json.loads(json.dumps(changed))
        if not isinstance(changed, dict):
            return
        data = bytes_changed(random, seeds.tobytes(), [b"\xff" * 8])
        columns = np.frombuffer(data[: len(data) // 8 * 8], np.int64)
        shape = random.choice(((1, -1), (-1,), (1, 1, -1), (-1, 1)))
        try:
            request = read_request(Open, changed)
            pipeline = request.spec.pipeline
            checks.pipeline(pipeline)
            checks.arrays(pipeline, request.names, [])
            checks.columns(pipeline, columns_of([columns.reshape(shape)]))
        except (ProtocolError, IndexError):
            return

    return run


def plane(root: Path) -> Run:
    """Return a target for directory and sessions of many users, one step each.

    `cluster.control_plane` describes it.
    """
    planes: list[ControlPlane] = []
    logging.getLogger("khop").setLevel(logging.CRITICAL)  # who is lost is no news here

    def run(random: Random) -> None:
        if not planes or random.random() < 1e-4:
            for old in planes:
                old.close()
            planes[:] = [ControlPlane(root, random.choice((0, 3)))]
        kind = random.random()
        if kind < 0.6:
            source = random.choice(SOURCES)
            planes[0].say(source, *planes[0].request(random))
        elif kind < 0.9:
            planes[0].say_nonsense(random, random.choice(CLIENTS))
        else:
            planes[0].pass_time(random.choice((0.01, 0.1, 0.1, 1.6, 11.0, 31.0, 200.0)))

    return run


class _Receiving:
    """State of a receiver for one server, and valid messages of this server."""

    def __init__(self) -> None:
        sampling = SamplingSpec([[3, 2]])
        self.spec = PipelineSpec(sampling, CollectSpec([["x"]], [[]], [True]))
        arrays = [
            ("n0.id", "int64", [-1]), ("n0.x", "float32", [-1, 3]),
            ("e0.edge_index", "int64", [2, -2]), ("e0.edge_id", "int64", [-2]),
        ]  # fmt: skip
        counters = [("batch", 1), ("nodes", 1), ("edges", 1), ("rows", 3), ("made", 11)]
        counters += [("n0.hops", 3), ("e0.hops", 2)]
        self.checks = BatchChecks(BatchSchema([60], [300], [(0, 0)], arrays, counters), self.spec)
        layout = Layout(
            3,
            [ArrayLayout(name, dtype, tuple(axes)) for name, dtype, axes in arrays],
            [CounterLayout(*counter) for counter in counters],
        )
        record = Record(layout, [50, 80])
        self.raw = np.zeros(record.nbytes, np.uint8)
        views = record.write(self.raw.data)
        views["n0.id"][:], views["e0.edge_id"][:] = np.arange(50), np.arange(80)
        views["e0.edge_index"][:] = np.arange(160).reshape(2, 80) % 50
        for name, values in {
            "batch": 1, "nodes": 50, "edges": 80, "rows": [50, 0, 0], "n0.hops": [8, 22, 20],
            "e0.hops": [40, 40],
        }.items():  # fmt: skip
            record.note(name, values)
        session = SessionSpec(
            "s", "secret", "c", self.spec, 1, 1 << 20, 1, 4, None, 0, 1.0, 1 << 20
        )
        self.remote = ServerSession(session, 0, Connection(zmq.Context.instance()))
        self.remote.state, self.remote.opening = OPEN, 2
        described = [json_array(json.loads(json.dumps(layout.to_json())))]
        chunk = {"session": "s", "batch_id": 1, "offset": 0, "nbytes": len(self.raw), "layout": 0}
        error = {"type": "ValueError", "message": "no", "traceback": ""}
        progress = {"session": "s", "made": 3, "waiting_for": None}
        self.said: list[tuple[dict[str, Any], list[Any]]] = [
            ({"event": "layout", "session": "s", "layout": 0}, described),
            ({"event": "chunk", **chunk, "extras": None}, [self.raw]),
            ({"event": "chunk", **chunk, "extras": "{}"}, [self.raw]),
            ({"event": "failed", "session": "s", "batch_id": 1, "error": error}, []),
            ({"id": 0, **progress}, []),
            ({"id": 0, "error": error, "session": "s"}, []),
            ({"id": 1, "held": [1]}, []),
        ]


def incoming(root: Path) -> Run:
    """Return a target that reads a graph server's messages to receivers, with batches."""
    del root
    server = _Receiving()
    ring = ArenaWriter(create_memory(1 << 20, "khop-fuzz"))
    ours, theirs = socket_pair()
    line = ControlLine(ours)
    reader = ControlLine(theirs)
    layouts = [Layouts(line, server.checks.check_layout)]

    def drain() -> None:
        while (message := reader.receive()) is not None:
            for descriptor in message.descriptors:
                os.close(descriptor)

    def take_chunk(random: Random, chunk: Chunk, raw: Any) -> None:
        layout = server.remote.layouts.get(chunk.layout)
        batch = BatchReassembler(ring, chunk.nbytes)  # MemoryError: it says that it is very large
        try:
            step, at = random.choice((64, 500, len(raw))), chunk.offset
            while layout is not None and at < len(raw):
                if batch.write(at, raw[at : at + step]):
                    server.checks.check_batch(layout, batch.raw, 1, 8)
                    check_sound(layout, batch.raw)
                    batch.announce(line, 0, 1, layout, chunk.extras)
                at += step if random.random() < 0.95 else random.choice((0, 1, 2**62))
        finally:
            batch.abandon()

    def check_sound(layout: Layout, raw: Any) -> None:
        arrays = {name: array for name, (array, _) in layout.read(raw).named().items()}
        nodes, edges = arrays["n0.id"], arrays["e0.edge_index"]
        assert not nodes.size or (nodes.min() >= 0 and nodes.max() < 60)
        assert not edges.size or (edges.min() >= 0 and edges.max() < len(nodes))

    def run(random: Random) -> None:
        if random.random() < 0.05:
            layouts[0] = Layouts(line, server.checks.check_layout)
            server.remote.layouts.clear()
        header, arrays = random.choice(server.said)
        for _ in range(random.choice((0, 0, 1, 1, 2))):
            header = json_changed(random, header)
        if arrays and random.random() < 0.5:
            data = bytes_changed(random, arrays[0].tobytes(), [b"\xff" * 8])
            arrays = [np.frombuffer(data, np.uint8)]
        elif random.random() < 0.05:
            arrays = random.choice(([], [*arrays, *arrays], [a.view(np.int8) for a in arrays]))
        try:
            header = json.loads(json.dumps(header))
            message = server.remote.read(header if isinstance(header, dict) else {}, arrays)
            if isinstance(message, LayoutEvent):
                layout = layouts[0].add(read_json(arrays, "a server"))
                server.remote.add_layout(message.layout, layout)
            elif isinstance(message, Chunk):
                take_chunk(random, message, arrays[0])
        except (ProtocolError, MemoryError):
            pass
        drain()

    return run


def client(root: Path) -> Run:
    """Return a target that reads servers' answers to clients: tables and replies."""
    del root
    entry = ServerEntry("a" * 32, [0, 1], Addresses("tcp://h:1", "ipc:///s"), "h", 7, 0.5)
    told = Table("d" * 32, 2, 0, 2, "f", {0: entry, 1: entry}, {3: ClientEntry("c", "n", 8)})
    table = json.loads(json.dumps(to_json(told)))
    replies: list[tuple[Any, dict[str, Any]]] = [
        (Ping(), {"id": 1, "rank": 3}),
        (Open, {"id": 1, "held": [1, 2]}),
        (WaitFor, {"id": 1, "ranks": [0, 2], "ends": [4, 9]}),
        (Alive, {"id": 1, "session": "s", "made": 1, "waiting_for": "x"}),
        (Lookup(), {"id": 1}),
    ]

    def run(random: Random) -> None:
        try:
            if random.random() < 0.6:
                text = text_changed(random, table, [b"[" * 2000])
                found = read_table([np.frombuffer(text, np.uint8)], "the directory")
                assert all(0 <= rank < 512 for rank in found.servers)
                for each in found.servers.values():
                    assert each.addresses.tcp.startswith("tcp://")
            else:
                request, header = random.choice(replies)
                for _ in range(random.choice((0, 1, 1, 2))):
                    header = json_changed(random, header)
                header = json.loads(json.dumps(header))
                if isinstance(header, dict):
                    read_reply(request, header, "a server")
        except ProtocolError:
            return

    return run
