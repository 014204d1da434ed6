"""What receivers refuse of a server's messages and batches, each by itself."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from khop.channel.arena import ArenaWriter, create_memory
from khop.channel.control import ControlLine, Op, socket_pair
from khop.channel.layout import Layout
from khop.codec import from_json, to_json
from khop.data.steps import run
from khop.distributed.remote.client import server_session
from khop.distributed.remote.client.batch_checks import BatchChecks, BatchSchema
from khop.distributed.remote.client.reassembly import BatchReassembler, Layouts
from khop.distributed.remote.client.server_session import OPEN, PendingBatch, ServerSession
from khop.distributed.remote.session_messages import Held, SessionSpec
from khop.distributed.rpc.connection import Connection
from khop.distributed.sampling.pipeline import Pipeline, PipelineSpec
from khop.errors import ProtocolError
from khop.partition import PartitionFolder
from khop.sampler.link_spec import LinkSpec
from khop.sampler.spec import SamplingSpec
from khop.storage.part import Part
from support.cluster import jobs
from support.cluster.receiving import collect_all

NUM_SEEDS = 24


class Made:
    """A batch as a sampler of a server makes it, and what checks it.

    Args:
        root: folder of one part.
        link: what links shall be; None: batches are of nodes.
        **options: for `SamplingSpec.create`.
    """

    def __init__(self, root, link=None, **options):
        folder = PartitionFolder(root)
        edge_types = [t.name for t in folder.meta.edge_types]
        sampling = SamplingSpec.create(jobs.FANOUTS, edge_types, **options)
        self.spec = PipelineSpec(sampling, collect_all(folder.meta, sampling), link=link)
        columns = np.arange(NUM_SEEDS if link is None else 2 * NUM_SEEDS).reshape(-1, NUM_SEEDS)

        def allocate(record):
            self.memory = bytearray(record.nbytes)
            return record.write(memoryview(self.memory))

        steps = Pipeline(Part(folder, 0), self.spec, None).make(columns, 7, 5, allocate)
        self.layout = run(steps, None).layout
        self.raw = np.frombuffer(self.memory, np.uint8)
        self.schema = BatchSchema.create(folder.meta, self.spec)
        self.checks = BatchChecks(self.schema, self.spec)

    @property
    def arrays(self):
        """{name: array}, writable."""
        return {n: array for n, (array, _) in self.layout.read(self.raw).named().items()}

    def counter(self, name):
        """A counter, writable."""
        numbers = self.raw[16 : 16 + 8 * self.layout.num_numbers].view(np.int64)
        return numbers[self.layout.slices[name]]

    def check(self):
        """As a receiver does."""
        self.checks.check_layout(self.layout)
        self.checks.check_batch(self.layout, self.raw, 5, NUM_SEEDS)


KINDS = {
    "nodes": {},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "disjoint": {"disjoint": True},
    "without edge ids": {"with_edge": False},
    "links": {"link": LinkSpec()},
    "pairs": {"link": LinkSpec(mode="binary", amount=1.5)},
    "triplets": {"link": LinkSpec(mode="triplet")},
    "many triplets": {"link": LinkSpec(mode="triplet", amount=3)},
    "trees of links": {"link": LinkSpec(disjoint=True, mode="binary"), "disjoint": True},
}


def test_valid_batches_of_all_kinds_pass(folder_of):
    """The schema travels as JSON; layouts are those that it foretells, of all kinds of batches."""
    for options in KINDS.values():
        made = Made(folder_of("random", 1), **options)
        made.check()
        content = json.loads(json.dumps(to_json(made.schema)))
        assert from_json(BatchSchema, content, "a schema") == made.schema


def test_values_out_of_range(folder_of):
    for kind, name, place, value in (
        ("nodes", "e0.edge_index", (0, 0), 10**9),
        ("nodes", "e0.edge_index", (1, -1), -1),
        ("nodes", "n0.id", 0, -5),
        ("nodes", "n0.id", -1, 500),
        ("nodes", "e0.edge_id", 3, 3000),
        ("disjoint", "t0", 2, NUM_SEEDS),
        ("disjoint", "t0", 2, -(2**63)),
        ("links", "s.edge_label_index", (0, 3), 10**6),
        ("pairs", "s.edge_label_index", (1, -1), -1),
        ("triplets", "s.dst_neg_index", 0, 500),
        ("many triplets", "s.dst_neg_index", (5, 2), 500),
        ("many triplets", "s.src_index", 0, -1),
        ("trees of links", "t0", -1, 4 * NUM_SEEDS),
    ):
        made = Made(folder_of("random", 1), **KINDS[kind])
        made.arrays[name][place] = value
        with pytest.raises(ProtocolError, match=f"'{name}' holds {value}"):
            made.check()


def test_booleans_of_other_bytes(folder_of):
    made = Made(folder_of("random", 1))
    made.arrays["n0.train_mask"].view(np.uint8)[4] = 7
    with pytest.raises(ProtocolError, match="train_mask"):
        made.check()


def test_counters_that_cannot_be(folder_of):
    for name, place, value in (
        ("n0.hops", 1, 10**6),
        ("n0.hops", 0, NUM_SEEDS - 1),
        ("e0.hops", 0, 0),
        ("nodes", 0, 1),
        ("edges", 0, -1),
        ("rows", 2, 9),
        ("batch", 0, 77),
        ("made", 3, -1),
        ("made", 4, 2**62),
    ):
        made = Made(folder_of("random", 1))
        made.counter(name)[place] = value
        with pytest.raises(ProtocolError, match=name if name != "made" else "was made with"):
            made.check()


def test_negative_counters_that_sum_up(folder_of):
    made = Made(folder_of("random", 1))
    made.counter("n0.hops")[1:3] += [-(10**6), 10**6]
    with pytest.raises(ProtocolError, match=r"n0\.hops"):
        made.check()


def test_a_batch_without_its_seeds(folder_of):
    made = Made(folder_of("random", 1), subgraph_type="induced")
    with pytest.raises(ProtocolError, match="without its seeds"):
        made.checks.check_batch(made.layout, made.raw, 5, 501)


def with_axes(content, change):
    arrays = [[n, d, [change if a < 0 else a for a in axes]] for n, d, axes in content["arrays"]]
    return {**content, "arrays": arrays}


def test_layouts_of_other_batches(folder_of):
    """A trainer puts batches together by names and axes: they are what it has asked for."""
    made = Made(folder_of("random", 1))
    content = json.loads(json.dumps(made.layout.to_json()))
    (first, *arrays), counters = content["arrays"], content["counters"]
    for other in (
        {**content, "arrays": arrays},
        {**content, "arrays": [first, *arrays, ["n0.more", "float32", [-1]]]},
        {**content, "arrays": [[first[0], "int32", first[2]], *arrays]},
        with_axes(content, -3),
        {**content, "counters": counters[:-1]},
        {**content, "counters": [["batch", 2], *counters[1:]]},
    ):
        with pytest.raises(ProtocolError, match="not as requested"):
            made.checks.check_layout(Layout.from_json(other))


def test_layouts_are_told_once_and_are_not_many(folder_of):
    """A server that calls them by ever other names costs the trainer no memory."""
    made = Made(folder_of("random", 1))
    ours, theirs = map(ControlLine, socket_pair())
    layouts = Layouts(ours, made.checks.check_layout)
    content = json.loads(json.dumps(made.layout.to_json()))
    try:
        first = layouts.add(content)
        assert layouts.add({**content, "id": 9}) is first
        with pytest.raises(ProtocolError, match="unknown field 'unknown'"):
            layouts.add({**content, "unknown": [1] * 100})
        content["arrays"].reverse()
        assert layouts.add(content).id == 1
        with pytest.raises(ProtocolError, match="more than 64"):
            for arrays in itertools.permutations(content["arrays"]):
                layouts.add({**content, "arrays": list(arrays)})
        told = 0
        while (message := theirs.receive()) is not None:
            Layout.read_shared(message.descriptor())
            told += 1
        assert told == 64
    finally:
        ours.close()
        theirs.close()


def test_extras_that_a_trainer_could_not_read():
    ring = ArenaWriter(memory := create_memory(1 << 16))
    jobs.os.close(memory)
    ours, theirs = map(ControlLine, socket_pair())
    layout = Layout(0, [], [])
    try:
        for extras in ("[1]", "3", "{", '{"a": "' + "x" * 40_000 + '"}', "[" * 5000):
            batch = BatchReassembler(ring, 64)
            with pytest.raises(ProtocolError, match="the extras of a batch"):
                batch.announce(ours, 1, 2, layout, extras)
            batch.abandon()
        BatchReassembler(ring, 64).announce(ours, 1, 2, layout, '{"a": 1}')
        assert theirs.receive().op is Op.BATCH
    finally:
        ours.close()
        theirs.close()


def test_chunks_that_do_not_follow():
    ring = ArenaWriter(memory := create_memory(1 << 16))
    jobs.os.close(memory)
    batch = BatchReassembler(ring, 64)
    for offset, size in ((0, 0), (1, 5), (0, 65), (2**62, 1), (-1, 5)):
        with pytest.raises(ProtocolError, match="of a batch of 64 bytes"):
            batch.write(offset, np.zeros(size, np.uint8))
    batch.abandon()


@pytest.fixture
def remote(folder_of):
    """A session that is open, of a server that is not there."""
    spec = Made(folder_of("random", 1)).spec
    options = {"num_workers": 1, "buffer_bytes": 1 << 20, "concurrency": 1, "depth": 4}
    options |= {"worker_devices": None, "max_restarts": 0, "timeout": 1.0, "credits": 1 << 20}
    named = {"session": "s", "secret": "x", "client": "c", "pipeline": spec}
    context = zmq.Context()
    session = ServerSession(SessionSpec(**named, **options), 0, Connection(context))
    session.state, session.opening = OPEN, 3
    yield session
    session.connection.close()
    context.term()


BYTES = np.zeros(8, np.uint8)
CHUNK = {"event": "chunk", "session": "s", "batch_id": 1, "offset": 0, "nbytes": 64}
CHUNK |= {"layout": 0, "extras": None}
FAILED = {"event": "failed", "session": "s", "batch_id": 1}
ERROR = {"type": "ValueError", "message": "no"}


def test_messages_that_no_server_sends(remote):
    """Whatever is missing or of another type: ProtocolError, never what Python happens to raise."""
    for header, arrays in (
        ({**CHUNK, "batch_id": [1]}, [BYTES]),
        ({**CHUNK, "nbytes": "many"}, [BYTES]),
        ({**CHUNK, "nbytes": 1 << 50}, [BYTES]),
        ({**CHUNK, "offset": 0.5}, [BYTES]),
        ({**CHUNK, "offset": -1}, [BYTES]),
        ({**CHUNK, "layout": None}, [BYTES]),
        ({**CHUNK, "extras": 3}, [BYTES]),
        ({**CHUNK, "session": "other"}, [BYTES]),
        ({**CHUNK, "more": 1}, [BYTES]),
        (CHUNK, []),
        (CHUNK, [BYTES, BYTES]),
        (CHUNK, [BYTES[:0]]),
        (CHUNK, [BYTES.reshape(2, 4)]),
        (CHUNK, [BYTES.view(np.float32)]),
        (CHUNK, [np.zeros((1 << 20) + 1, np.uint8)]),
        ({"event": "layout", "session": "s", "layout": -1}, [BYTES]),
        ({"event": "layout", "session": "s", "layout": 1}, []),
        ({**FAILED, "error": "no"}, []),
        ({**FAILED, "error": {**ERROR, "type": ["a"]}}, []),
        ({**FAILED, "error": ERROR}, [BYTES]),
        ({"event": "gift"}, []),
        ({"event": {"a": 1}}, []),
        ({"id": 0, "error": 5}, []),
        ({"id": 0, "error": "no"}, []),
        ({"id": 0, "error": {"message": "no"}}, []),
        ({"id": 99, "held": []}, []),
        ({"id": "3", "held": []}, []),
        ({"id": True, "held": []}, []),
        ({"id": 3, "held": []}, []),
        ({"id": 0, "session": "s", "made": "x", "waiting_for": None}, []),
        ({"id": 0, "session": "s", "made": 0, "waiting_for": [1]}, []),
        ({}, []),
    ):
        with pytest.raises(ProtocolError):
            remote.read(header, arrays)


def test_messages_that_servers_send(remote):
    assert remote.read(CHUNK, [BYTES]).nbytes == 64
    assert remote.read({**FAILED, "error": ERROR}, []).error.message == "no"
    assert remote.read({"id": 0, "error": ERROR, "session": "s"}, []).type == "ValueError"
    assert remote.read({"id": None, "error": ERROR}, []).message == "no"
    assert remote.read({"id": 2, "held": "late"}, []) is None
    said = {"id": 0, "session": "s", "made": 1, "waiting_for": "more"}
    assert remote.read(said, []).waiting_for == "more"


def test_only_new_bytes_and_one_opening_count_as_progress(remote, monkeypatch):
    """Opening does once; after a fault nothing does but a batch that is whole."""
    now = [100.0]
    monkeypatch.setattr(server_session, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def at(seconds, act, *arguments):
        now[0] = seconds
        act(*arguments)
        return remote.progress

    assert at(101.0, remote.opened, Held([])) == 101.0
    assert at(102.0, remote.opened, Held([])) == 101.0
    assert at(110.0, lambda: remote.note_fault(ProtocolError("a"))) == 110.0
    assert at(120.0, lambda: remote.note_fault(ProtocolError("b"))) == 110.0
    assert at(121.0, remote.opened, Held([])) == 110.0
    assert (remote.fault, remote.num_faults) == ("b", 2)


@pytest.mark.parametrize(
    ("nbytes", "step"), [(1 << 16, None), (1 << 22, 1 << 20), (1 << 26, 1 << 22)]
)
def test_a_few_bytes_are_no_progress(remote, monkeypatch, nbytes, step):
    """A byte now and then keeps no batch waiting: a sixteenth of it, and 1 MiB, are progress."""
    now = [100.0]
    monkeypatch.setattr(server_session, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ring = ArenaWriter(memory := create_memory(1 << 27))
    jobs.os.close(memory)
    pending = PendingBatch(1, 1, 0, None, 100.0, BatchReassembler(ring, nbytes))
    remote.pending[1] = pending
    remote.opened(Held([]))
    piece = np.zeros(1 << 14, np.uint8)
    last, arrived = 0, 0
    while not pending.incoming.write(arrived, piece):
        now[0] += 1.0
        arrived += len(piece)
        remote.arrived(pending)
        if remote.progress == now[0]:
            assert arrived - last == step
            last = arrived
    assert (last > 0) == (step is not None)
    now[0] += 1.0
    remote.completed(pending)
    assert remote.progress == now[0]
    pending.drop_incoming()
