"""Targets of the fuzzer: graph servers, directory, sessions, batches. See `fuzz_targets`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz_mutations import bytes_changed, json_changed
from khop.channel.control import ControlLine, socket_pair
from khop.channel.layout import ArrayLayout, CounterLayout, Layout, Record
from khop.channel.message import pack, unpack
from khop.channel.ring import RingWriter, create_memory
from khop.codec import to_json
from khop.distributed.pipeline import PipelineSpec
from khop.distributed.remote.answers import GraphAnswers
from khop.distributed.remote.checks import SessionChecks, columns_of
from khop.distributed.remote.directory import Directory
from khop.distributed.remote.incoming import Incoming, Layouts
from khop.distributed.remote.messages import (
    Addresses,
    Goodbye,
    Open,
    Publish,
    RegisterClient,
    RegisterServer,
    SessionSpec,
    WaitFor,
    read_table,
    text_array,
)
from khop.distributed.remote.source import Source
from khop.distributed.wire import PROTOCOL, read_request, request_header
from khop.errors import ProtocolError, RendezvousError, SecurityError
from khop.partition.folder import PartitionFolder
from khop.sampler.collect import CollectSpec
from khop.sampler.link_spec import LinkSpec
from khop.sampler.spec import SamplingSpec

Run = Callable[[Random], None]

_REFUSALS = {"ProtocolError", "IndexError", "ValueError", "KeyError"}


def graph(root: Path) -> Run:
    """Requests about the graph as a whole."""
    folder = PartitionFolder(root)
    answer = GraphAnswers(folder, folder.meta, 0, [0, 1])
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
    """What the directory is told, and asked."""
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
                made[0].wait_for(request, source, lambda reply, arrays: None)
            elif isinstance(request, Publish):
                made[0].publish(request, bytes_changed(random, b'{"b": [1]}', [b"["]))
            else:
                getattr(made[0], _NAMES[type(request)])(request, source)
        except (ProtocolError, RendezvousError, SecurityError):
            pass
        made[0].tick()
        table = made[0].lookup()
        assert read_table([text_array(to_json(table))], "it") == table

    return run


_NAMES = {
    RegisterServer: "register_server",
    RegisterClient: "register_client",
    Goodbye: "goodbye",
}


def session(root: Path) -> Run:
    """What a client asks for when it opens a session, and the seeds of its batches."""
    meta = PartitionFolder(root).meta
    checks = SessionChecks(meta)
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
            checks.arrays(request.names, [])
            checks.columns(pipeline, columns_of([columns.reshape(shape)]))
        except (ProtocolError, IndexError):
            return

    return run


def incoming(root: Path) -> Run:
    """Layouts and chunks of batches, as a graph server sends them."""
    del root
    layout = Layout(
        3,
        [ArrayLayout("n0.x", "float32", (-1, 3)), ArrayLayout("n0.id", "int64", (-1,))],
        [CounterLayout("batch", 1), CounterLayout("made", 11)],
    )
    content = json.loads(json.dumps(layout.to_json()))
    record = Record(layout, [50])
    memory = bytearray(record.nbytes)
    record.write(memoryview(memory))
    data = np.frombuffer(memory, np.uint8)
    ring = RingWriter(create_memory(1 << 20, "khop-fuzz"))
    ours, theirs = socket_pair()
    line = ControlLine(ours)
    reader = ControlLine(theirs)
    layouts = [Layouts(line)]

    def drain() -> None:
        while (message := reader.receive()) is not None:
            for descriptor in message.descriptors:
                os.close(descriptor)

    def run(random: Random) -> None:
        if random.random() < 0.05:
            layouts[0] = Layouts(line)
        try:
            changed = content if random.random() < 0.7 else json_changed(random, content)
            learned = layouts[0].learn(json.loads(json.dumps(changed)))
        except (ProtocolError, TypeError) as error:
            assert isinstance(error, ProtocolError) or not isinstance(changed, dict)
            drain()
            return
        nbytes = random.choice((len(data), len(data), len(data) + 1, 16, 64, 0, -1, 2**41, 2**20))
        try:
            batch = Incoming(ring, nbytes)
        except ProtocolError:
            drain()
            return
        try:
            at = 0
            while at < len(data):
                step = random.choice((64, 500, len(data)))
                offset = at if random.random() < 0.9 else random.choice((0, at + 1, -1, 2**62))
                if batch.write(offset, data[at : at + step]):
                    batch.announce(line, 0, 1, learned, None)
                    break
                at += step
        except ProtocolError:
            pass
        drain()
        batch.abandon()

    return run
