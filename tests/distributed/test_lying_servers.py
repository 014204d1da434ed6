"""A server that lies: batch or inference fails with ProtocolError, and nothing else happens."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

import numpy as np
import pytest

from khop.channel.control import ControlLine, socket_pair
from khop.data.steps import run
from khop.distributed.inference.files import (
    RowSpec,
    RowWriter,
    Share,
    ShareRows,
)
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.frame_handler import finish
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.partition_server import PartitionServer
from khop.distributed.rpc.protocol import rebuild_error
from khop.distributed.tensors import row_files
from khop.distributed.tensors.row_files import output_file
from khop.errors import ProtocolError
from khop.partition import PartitionFolder
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.view import GraphView
from khop.sampler.replies import check_drawn, check_found, check_rows
from khop.sampler.requests import SeedSet
from khop.sampler.rows.collect import Collector, CollectSpec, DrawnBatch
from khop.sampler.rows.row_fetcher import FetchedRows, PartRows
from khop.sampler.spec import SamplingSpec
from khop.storage.folder import AttrMeta
from khop.storage.part import Part
from support.cluster import twins


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("replies") / "parts"
    return PartitionFolder(twins.partitioned(twins.homogeneous(), root, 2))


def lying(handler, op, change):
    """The handler, which answers as it should but for what `change` makes of some arrays."""
    kind = handler._types[op]
    lie = lambda asked, arrays: change(list(finish(kind.answer(asked, arrays))))  # noqa: E731
    handler._types = {**handler._types, op: replace(kind, answer=lie)}
    return handler


@contextlib.contextmanager
def client_of_server(handler, tmp_path):
    """A client of a server, which is number 1."""
    ours, theirs = socket_pair()
    server = PartitionServer(handler, str(tmp_path / "s"), None, None)
    thread = threading.Thread(target=server.serve, args=(ControlLine(theirs),))
    thread.start()
    client = PartitionClient({1: Endpoint(server.addresses["ipc"])})
    try:
        yield client
    finally:
        client.close()
        ours.close()
        thread.join(10)
        server.close()
        theirs.close()


def client_of(folder, tmp_path, op, change):
    """A client of part 1, which lies."""
    return client_of_server(lying(RequestHandler(Part(folder, 1)), op, change), tmp_path)


def changed(place, change):
    """One of the arrays, changed."""

    def apply(arrays):
        arrays[place] = change(arrays[place].copy())
        return arrays

    return apply


def put(value):
    def change(array):
        array[len(array) // 2] = value
        return array

    return change


LIES = [
    changed(0, put(-1)),
    changed(0, put(2**31 - 1)),
    changed(0, lambda a: a[:-1]),
    changed(0, lambda a: a.astype(np.int64)),
    changed(0, lambda a: a + 1),
    changed(1, put(10**6)),
    changed(1, put(-1)),
    changed(1, put(150)),
    changed(1, lambda a: a.astype(np.float32)),
    changed(1, lambda a: a[:-1]),
    changed(1, lambda a: a.reshape(1, -1)),
    changed(2, put(10**9)),
    changed(2, put(0)),
    changed(2, lambda a: a[1:]),
    lambda arrays: arrays[:2],
    lambda arrays: [*arrays, arrays[0]],
    lambda arrays: [],
]


def sample(folder, client, subgraph_type="directional"):
    part = Part(folder, 0)
    spec = SamplingSpec([[4, 4]], with_edge=True, subgraph_type=subgraph_type)
    engine = Engine(GraphView.of_part(part), spec, client)
    seeds = np.arange(0, 150, 5)
    return run(engine.sample([SeedSet(0, seeds)], 7, 0), client)


@pytest.mark.parametrize("lie", LIES)
def test_neighbours_that_are_wrong(folder, tmp_path, lie):
    with (
        client_of(folder, tmp_path, "sample", lie) as client,
        pytest.raises(ProtocolError, match="partition 1 sent"),
    ):
        sample(folder, client)


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie is not LIES[7]])
def test_induced_edges_that_are_wrong(folder, tmp_path, lie):
    with (
        client_of(folder, tmp_path, "induce", lie) as client,
        pytest.raises(ProtocolError, match="partition 1 sent"),
    ):
        sample(folder, client, "induced")


@pytest.mark.parametrize(
    "lie",
    [
        changed(0, put(-1)),
        changed(0, put(150)),
        changed(0, lambda a: a.astype(np.int32)),
        changed(1, lambda a: a.astype(np.float64)),
        changed(1, lambda a: a[:, :1]),
        changed(1, lambda a: a.reshape(-1)),
        changed(1, lambda a: a[:-1]),
        lambda arrays: arrays[:1],
        lambda arrays: [*arrays, arrays[0]],
        lambda arrays: arrays[::-1],
    ],
)
def test_rows_that_are_wrong(folder, tmp_path, lie):
    part = Part(folder, 0)
    collector_spec = CollectSpec([["x"]], [[]], [False])
    with client_of(folder, tmp_path, "fetch", lie) as client:
        subgraph = sample(folder, client)
        collector = Collector(part, collector_spec, client)

        def allocate(record):
            return record.write(memoryview(bytearray(record.nbytes)))

        with pytest.raises(ProtocolError, match="partition 1 sent"):
            drawn = DrawnBatch(subgraph, 0, {})
            collector.locate(drawn)
            collector.announce(drawn)
            collector.request(drawn)
            run(collector.collect(drawn, allocate), client)


LIES_OF_ONE_ATTRIBUTE = [
    changed(0, lambda a: a.astype(np.float64)),
    changed(0, lambda a: a.view(np.int32)),
    changed(0, lambda a: a.reshape(len(a), 1, -1)),
    changed(0, lambda a: a.reshape(-1)),
    changed(0, lambda a: a[:-1]),
    changed(0, lambda a: np.concatenate([a, a])),
    lambda arrays: [],
    lambda arrays: arrays * 2,
]


@pytest.mark.parametrize("lie", LIES_OF_ONE_ATTRIBUTE)
def test_inputs_of_layers_that_are_wrong(folder, tmp_path, lie):
    """Layer-wise inference reads them with a reader of its own."""
    with client_of(folder, tmp_path, "fetch", lie) as client:
        reader = FetchedRows(PartRows(Part(folder, 0), "node", 0, ["x"], client), client)
        with pytest.raises(ProtocolError, match="partition 1 sent"):
            reader.gather(np.arange(0, 150, 5))


@pytest.mark.parametrize("lie", LIES_OF_ONE_ATTRIBUTE)
def test_outputs_of_layers_that_are_wrong(folder, tmp_path, lie):
    """The error names the trainer that has computed them."""
    share, spec = Share(1, 1, 0, 1, [(0, 9)]), RowSpec("float32", "float32", (3,))
    writer = RowWriter(output_file(tmp_path, 0, "node", share.file_name), spec, 9)
    writer.append(np.arange(27, dtype=np.float32).reshape(9, 3))
    writer.finish()
    types = row_files.request_types(Part(folder, 1), str(tmp_path))
    handler = lying(RequestHandler(Part(folder, 1), types=types), "rows", lie)
    with client_of_server(handler, tmp_path) as client:
        fetcher = ShareRows(tmp_path, [share], 0, (0, "node"), spec, [0], client)
        with pytest.raises(ProtocolError, match="trainer 1 sent"):
            FetchedRows(fetcher, client).gather(np.array([8, 0, 4]))


@pytest.mark.parametrize(
    "lie",
    [
        changed(0, lambda a: a[:-1]),
        changed(0, lambda a: a.astype(np.uint8)),
        changed(0, lambda a: np.full(len(a), 7, np.uint8).view(bool)),
        lambda arrays: [],
    ],
)
def test_answers_that_are_wrong(folder, tmp_path, lie):
    """Booleans of other bytes than 0 and 1 included."""
    with client_of(folder, tmp_path, "has_edges", lie) as client:
        engine = Engine(GraphView.of_part(Part(folder, 0)), SamplingSpec([[2]]), client)
        pairs = np.arange(60, 150), np.arange(90)
        with pytest.raises((ProtocolError, ConnectionError), match=r"partition 1 sent|malformed"):
            run(engine.rows.has_edges(0, *pairs), client)


def test_valid_replies_pass():
    counts, neighbors = np.array([2, 0], np.int32), np.array([3, 9], np.int32)
    edges = np.array([5, 6])
    assert check_drawn([counts, neighbors], 1, 2, False, 10, [5, 7])[2] is None
    assert check_drawn([counts, neighbors, edges], 1, 2, True, 10, [5, 7])[2] is edges
    none = [np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64)]
    check_drawn(none, 1, 0, True, 0, [0, 0])
    assert check_found([np.array([True])], 1, 1)
    check_rows(
        [np.zeros((2, 0), np.uint16)], "trainer 1", 2, {"x": AttrMeta.of("bfloat16", (0,))}, 0
    )


@pytest.mark.parametrize(
    "said",
    [
        None, [], "x", {}, {"type": 3}, {"type": "StopIteration", "message": "end"},
        {"type": "StopAsyncIteration"}, {"type": "KeyboardInterrupt"}, {"type": "SystemExit"},
        {"type": "UnicodeDecodeError"}, {"type": ["a"], "message": {}, "traceback": 5},
        {"type": "x" * 10**6, "message": "y" * 10**6, "traceback": "z" * 10**6},
    ],
)  # fmt: skip
def test_errors_of_servers_are_exceptions_that_end_nothing(said):
    """An iterator must not end, nor a process, because a server says so."""
    error = rebuild_error(said, "a server")
    assert isinstance(error, Exception)
    assert not isinstance(error, (StopIteration, StopAsyncIteration))
    assert len(str(error)) < 250_000


def test_errors_of_servers_do_not_control_a_terminal():
    """Escapes, bells and carriage returns of type, text and traceback are shown, not obeyed."""
    for said in (
        {"type": "OSError", "message": "a\n\x1b]0;b\a\r\x9b", "traceback": "\tc\x1b[2J\u202e"},
        {"type": "\x1b[1m", "message": "\x08", "traceback": ""},
    ):
        text = str(rebuild_error(said, "a server"))
        assert all(c.isprintable() or c in "\n\t" for c in text), ascii(text)
        assert "\\x1b" in text
