"""A graph server that lies to receivers: its batches fail by `timeout`, or come from others."""

import time
from functools import partial

import numpy as np
import pytest

from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError
from khop.loader import NeighborLoader
from khop.partition import PartitionFolder
from khop.sampler.spec import SamplingSpec
from support.cluster import jobs
from support.cluster.lying import contents, scripted
from support.cluster.receiving import check_same, collect_all, training

SEEDS = jobs.seeds_of_rank(0)


@pytest.fixture
def root(folder_of):
    return folder_of("random", 1)


@pytest.fixture
def spec(root):
    """All attributes, two hops."""
    meta = PartitionFolder(root).meta
    sampling = SamplingSpec.create(jobs.FANOUTS, [t.name for t in meta.edge_types])
    return PipelineSpec(sampling, collect_all(meta, sampling))


def columns(root):
    """[1, n] new ids of seeds."""
    return PartitionFolder(root).id_map("node")[SEEDS.numpy()].astype(np.int64)[None]


def reference(graph):
    """The in-memory loader."""
    options = {"batch_size": 32, "shuffle": True, "seed": 3, "stream": 0}
    return NeighborLoader(graph, jobs.FANOUTS, SEEDS, **options)


NO_LAYOUT = np.frombuffer(b'{"id": 0}', np.uint8)


def of(op, change):
    """Changes the messages that answer one request."""
    return lambda server, name, messages: change(messages) if name == op else messages


def header_of_last(**fields):
    """A batch whose last chunk says something else."""
    return of("batch", lambda m: [*m[:-1], ({**m[-1][0], **fields}, m[-1][1])])


def arrays_of_last(change):
    """A batch whose last chunk carries something else."""
    return of("batch", lambda m: [*m[:-1], (m[-1][0], change(m[-1][1]))])


def instead(op, *messages):
    """Other messages."""
    return of(op, lambda _: list(messages))


def edge_index_of(value):
    """A batch with an edge from another place."""

    def lie(server, name, messages):
        if name == "batch":
            arrays, _ = contents(server, messages)
            arrays["e0.edge_index"][0, 0] = value
        return messages

    return lie


LIES = [
    ("a size that is text", header_of_last(nbytes="many")),
    ("a chunk without bytes", arrays_of_last(lambda _: [])),
    ("an error that is a text", instead("batch", ({"id": 0, "error": "no"}, []))),
    ("an offset beyond the batch", header_of_last(offset=1 << 30)),
    ("a layout of nothing", of("batch", lambda m: [(m[0][0], [NO_LAYOUT]), *m[1:]])),
    ("frames without a header", instead("batch", [b"\xff\xff"])),
    ("an edge beyond the batch", edge_index_of(10**9)),
    ("an edge below 0", edge_index_of(-1)),
]


def test_lies_are_protocol_errors_of_that_server(graph, root, spec):
    """Each fails a batch, by name; a server that tells the truth again makes the next one."""
    expected = list(reference(graph))
    with scripted(root, spec) as server, training(server, spec, timeout=0.3) as trainer:
        epoch, _ = trainer.open(columns(root))
        pattern = rf"graph server 0 at tcp://127.0.0.1:{server.port} has not made batch 1 "
        for name, lie in LIES:
            server.change = lambda op, messages, lie=lie: lie(server, op, messages)
            trainer.ask(epoch, [1])
            with pytest.raises(ProtocolError, match=pattern):
                trainer.take(epoch, 1, 5.0)
            server.change = lambda op, messages: messages
            end = time.monotonic() + 10
            while True:  # it is not asked again at once
                trainer.ask(epoch, [2])
                try:
                    check_same(trainer.take(epoch, 2, 5.0), expected[2])
                    break
                except ProtocolError:
                    assert time.monotonic() < end, name


def test_a_batch_that_is_claimed_to_be_huge_fails_at_once(graph, root, spec):
    """A terabyte is no batch of this loader: no memory is taken, and the next batch is made."""
    with scripted(root, spec) as server, training(server, spec, batch_limit=1 << 20) as trainer:
        server.change = partial(header_of_last(nbytes=1 << 40), server)
        epoch, _ = trainer.open(columns(root))
        trainer.ask(epoch, [1])
        with pytest.raises(
            ProtocolError, match=rf"announces {1 << 40} bytes for batch 1.*batch_limit"
        ):
            trainer.take(epoch, 1)
        server.change = lambda op, messages: messages
        trainer.ask(epoch, [2])
        check_same(trainer.take(epoch, 2), list(reference(graph))[2])


def test_a_lying_server_is_asked_less_and_less_often(root, spec):
    """The time that a batch may take counts from the first lie on, however it goes on."""
    with scripted(root, spec) as server, training(server, spec, timeout=4.0) as trainer:
        server.change = partial(header_of_last(offset=-1), server)
        epoch, _ = trainer.open(columns(root))
        trainer.ask(epoch, [0])
        with pytest.raises(ProtocolError, match=r"[3-6] invalid messages without a batch.*offset"):
            trainer.take(epoch, 0, 12.0)
        assert 2 < server.count("open") <= 7


def test_a_session_that_is_never_known_is_no_progress(root, spec):
    """A server that answers each order with LookupError is not asked at full speed for ever."""
    unknown = {"id": 0, "error": {"type": "LookupError", "message": "no session"}, "session": "s"}
    with scripted(root, spec) as server, training(server, spec, timeout=2.5) as trainer:
        server.change = partial(instead("batch", (unknown, [])), server)
        epoch, _ = trainer.open(columns(root))
        trainer.ask(epoch, [0])
        with pytest.raises(Exception, match="has not made batch 0"):
            trainer.take(epoch, 0, 12.0)
        assert 1 < server.count("open") <= 5


def test_others_take_the_batches_of_a_lying_server(graph, root, spec):
    """Those that any server may make: none fails, none is changed."""
    with (
        scripted(root, spec) as honest,
        scripted(root, spec, others={1: honest.port}) as liar,
        training(liar, spec, servers=[0, 1], timeout=20.0) as trainer,
    ):
        liar.change = partial(header_of_last(nbytes="many"), liar)
        epoch, plan = trainer.open(columns(root))
        for ours, theirs in zip(trainer.run(epoch, plan), reference(graph), strict=True):
            check_same(ours, theirs)
        assert liar.count("batch") > 0


@pytest.mark.parametrize(
    "answer",
    [
        lambda table: {**table, "servers": {"0": {"addresses": {"tcp": "ftp://x"}}}},
        lambda table: {name: value for name, value in table.items() if name != "directory"},
        lambda table: {**table, "servers": []},
        lambda table: [table],
    ],
    ids=["address", "without directory", "servers", "list"],
)
def test_a_hostile_directory_ends_its_own_connection(graph, root, spec, answer):
    """The receiver lives, and goes on when the directory is sane again."""
    with scripted(root, spec) as server, training(server, spec) as trainer:
        table = server.table()
        server.table = lambda: answer(table)
        epoch, _ = trainer.open(columns(root))
        trainer.ask(epoch, [0])
        end = time.monotonic() + 10
        while server.count("lookup") < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        server.table = lambda: table
        check_same(trainer.take(epoch, 0, 10.0), next(iter(reference(graph))))
