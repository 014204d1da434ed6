"""What clients cost a server: bounded buffers, turns, and nothing once they have gone."""

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import zmq
from torch_geometric.data import Data

from khop.channel.message import pack, unpack
from khop.distributed.processes.child import ChildProcess
from khop.distributed.remote.messages import CHUNK_BYTES
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.server.session_environment import SessionEnvironment
from khop.distributed.remote.server.session_table import Requester, SessionTable
from khop.distributed.remote.server.validation import SessionLimits, SessionValidator
from khop.distributed.remote.session_messages import Batch, Open, SessionSpec
from khop.distributed.rpc.frame_handler import pack_or_refuse
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.limits import SendBacklog
from khop.distributed.rpc.protocol import PROTOCOL
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.distributed.sampling.process_handle import start_sampler
from khop.loader import NeighborLoader
from khop.partition import PartitionFolder, RandomPartitioner
from khop.sampler.spec import SamplingSpec
from support.cluster import jobs, poisoned_worker
from support.cluster.receiving import check_same, collect_all, training
from support.cluster.serving import (
    client_of,
    raw_session,
    serving,
    sessions,
    statistics,
    wait_until,
)


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    """A folder whose batches have several chunks: 8 kB a node."""
    generator = torch.Generator().manual_seed(1)
    data = Data(
        x=torch.arange(500).view(-1, 1).repeat(1, 2000).float(),
        edge_index=torch.randint(0, 500, (2, 4000), generator=generator),
    )
    root = tmp_path_factory.mktemp("heavy") / "parts"
    RandomPartitioner.from_data(data, root, 1).partition()
    return root


def spec_of(root, fanouts=(4, 4)):
    """All attributes of neighbourhoods."""
    meta = PartitionFolder(root).meta
    sampling = SamplingSpec.create(list(fanouts), [t.name for t in meta.edge_types])
    return PipelineSpec(sampling, collect_all(meta, sampling))


def memory_of(pid):
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_stalled_client(heavy):
    """A client that does not acknowledge gets its credit and no more; its buffer is bounded."""
    pipeline, limit = spec_of(heavy).to_json(), 16 << 20
    with serving(heavy) as served, client_of(served) as watcher:
        options = {"buffer_bytes": limit, "credits": 2 << 20}
        with (
            raw_session(served, pipeline, name="stalled", **options) as stalled,
            raw_session(served, pipeline, name="lively", **options) as lively,
        ):
            assert stalled.open()["held"] == []
            for number in range(40):
                stalled.ask(number, np.arange(100) + number)
            lively.open()
            for number in range(20):
                lively.ask(number, np.arange(100) + number)
            lively.finish(20)

            def is_full():
                stalled.take(acknowledge=False)
                found = {s["session"]: s for s in sessions(watcher)}["stalled"]
                return found["buffered_bytes"] > limit // 2 and found["unsent_chunks"] and found

            state = wait_until(is_full)
            for _ in range(10):
                stalled.take(acknowledge=False)
                time.sleep(0.05)
            state = {s["session"]: s for s in sessions(watcher)}["stalled"]
            largest = max(batch_bytes(b) for b in lively.done.values())
            assert state["buffered_bytes"] <= limit + largest
            assert stalled.bytes <= (2 << 20) + CHUNK_BYTES
            stalled.send("ack", bytes=stalled.bytes)
            stalled.finish(40)
            for number, received in stalled.done.items():
                x, ids = (received.named()[f"n0.{name}"][0] for name in ("x", "id"))
                assert np.array_equal(x[:, 0], ids.astype(np.float32))
                assert np.array_equal(np.sort(ids[:100]), np.arange(100) + number)


def batch_bytes(received):
    """Size of a batch, as the sampler counted it."""
    return received.counter("made")[3]


class Mailbox(Requester):
    """A client's end: notes whose chunks are sent, in order."""

    __slots__ = ("sent",)

    def __init__(self, sent):
        super().__init__(Source((0, b"c"), "somebody"), 1, None)
        self.sent = sent

    def send(self, header, arrays=()):
        """Takes what a session sends."""
        if header.get("event") == "chunk":
            self.sent.append((header["session"], len(arrays[0])))


class Failures(Mailbox):
    """A client's end that keeps the errors of batches, by request id."""

    __slots__ = ()

    def send(self, header, arrays=()):
        """Takes what a session sends."""
        if header.get("event") == "failed":
            self.sent.append((header["batch_id"], header["error"]))


@contextlib.contextmanager
def session_table(root, program=start_sampler):
    """The sessions of a server, without the server: nothing is sent before `stream` is called."""
    counters = ServerCounters(0, [0], "", lambda: table.states())  # noqa: PLW0108
    sampler = {"root": str(root), "credentials": None, "graph_mode": "CPU", "feature_mode": "CPU"}
    callbacks = counters.batch, counters.sampler_restarted
    sampler |= {"pin_memory": False, "methods": []}
    host = SessionEnvironment(sampler, [0], 1, {}, None, *callbacks, program)
    table = SessionTable(
        SessionValidator(PartitionFolder(root).meta), host, counters, SessionLimits()
    )
    try:
        yield table
    finally:
        table.close()


def test_batch_that_kills_samplers(heavy):
    """Sampler after sampler dies at one batch: the session fails, whatever restarts are allowed."""
    program = partial(ChildProcess, poisoned_worker.__name__)
    errors, numbers = [], range(poisoned_worker.VICTIM, poisoned_worker.VICTIM + 3)
    asker = Failures(errors)
    with session_table(heavy, program) as table:
        spec = SessionSpec(
            "s", "secret", "s", spec_of(heavy), 2, 1 << 24, 2, 64, None, 1000, 30.0, 1 << 30
        )
        table.answers[Open](Open(spec, [], []), [], asker)
        for number in numbers:
            table.answers[Batch](Batch("s", number, number, 7), [np.arange(50)[None]], asker)

        def has_failed():
            table.start()
            for session, sampler in table.samplers():
                table.listen(session, sampler)
            return errors

        wait_until(has_failed)
        assert table.states()[0].restarts == 3
    assert poisoned_worker.VICTIM in dict(errors)
    for error in dict(errors).values():
        assert error["type"] == "SamplerDiedError"
        assert f"4 samplers have died at work on batch {poisoned_worker.VICTIM}" in error["message"]


def test_turns(heavy):
    """Of clients that have something to be sent each is sent a chunk, and then each the next."""
    names, sent = [f"c{i}" for i in range(8)], []
    asker = Mailbox(sent)
    with session_table(heavy) as table:
        for name in names:
            spec = SessionSpec(
                name, "secret", name, spec_of(heavy), 1, 1 << 24, 2, 64, None, 3, 30.0, 1 << 30
            )
            table.answers[Open](Open(spec, [], []), [], asker)
            for number in range(12):
                table.answers[Batch](Batch(name, number, number, 7), [np.arange(50)[None]], asker)

        def all_have_made_some():
            table.start()
            for session, sampler in table.samplers():
                table.listen(session, sampler)
            return all(s.unsent_chunks >= 12 for s in table.states())

        wait_until(all_have_made_some, 60)
        assert sent == []
        while len(sent) < 10 * len(names):
            table.stream()
        for begin in range(0, 10 * len(names), len(names)):
            assert {name for name, _ in sent[begin : begin + len(names)]} == set(names)
        assert sent[0][1] == CHUNK_BYTES


def test_turns_of_those_that_may_send(heavy):
    """Who has no credit left waits; the others go on, and it comes back when it acknowledges."""
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(heavy))
        slow, fast = (
            stack.enter_context(
                raw_session(served, spec_of(heavy).to_json(), name=name, credits=credits)
            )
            for name, credits in (("slow", 1 << 16), ("fast", 8 << 20))
        )
        for client in (slow, fast):
            client.open()
            for number in range(6):
                client.ask(number, np.arange(50))
        slow.take(acknowledge=False)
        fast.finish(6)
        slow.take(acknowledge=False)
        assert slow.bytes <= CHUNK_BYTES
        slow.send("ack", bytes=slow.bytes)
        slow.finish(6)


def test_killed_client_leaves_nothing(heavy):
    """A client that is killed leaves no session, process, memory or descriptor on the server."""
    with serving(heavy, lease=2.0) as served, client_of(served) as watcher:

        def descriptors():
            return statistics(watcher)["descriptors"]

        found = []
        for _ in range(3):
            with training(served, spec_of(heavy)) as trainer:
                epoch, _ = trainer.open(np.arange(400)[None])
                trainer.ask(epoch, range(4))
                trainer.take(epoch, 0)
                pids = [s["pid"] for s in sessions(watcher)[0]["samplers"]]
                os.kill(trainer.receiver.process.pid, signal.SIGKILL)
                wait_until(lambda: not sessions(watcher))
                assert jobs.wait_for_ends(pids) == []
            if not found:  # what ZeroMQ opens once stays
                time.sleep(1.0)
                found.append(descriptors())
        wait_until(lambda: descriptors() <= found[0])
        counted = statistics(watcher)
        assert counted["sessions_total"]["expired"] == 3
        assert counted["ring_bytes"] == 0


def test_stopped_client_goes_on(graph, folder_of):
    """A client that is stopped for longer than its lease finds its place again."""
    root = folder_of("random", 1)
    folder, seeds = PartitionFolder(root), jobs.seeds_of_rank(0)
    columns = folder.id_map("node")[seeds.numpy()].astype(np.int64)[None]
    with (
        serving(root, lease=1.0) as served,
        client_of(served) as watcher,
        training(served, spec_of(root, jobs.FANOUTS)) as trainer,
    ):
        epoch, plan = trainer.open(columns)
        twin = NeighborLoader(
            graph, jobs.FANOUTS, seeds, batch_size=32, shuffle=True, seed=3, stream=0
        )
        running = trainer.run(epoch, plan)
        for i, theirs in enumerate(twin):
            check_same(next(running), theirs)
            if i == 1:
                os.kill(trainer.receiver.process.pid, signal.SIGSTOP)
                wait_until(lambda: not sessions(watcher))
                os.kill(trainer.receiver.process.pid, signal.SIGCONT)


def test_requests_to_a_session_that_has_ended(graph, folder_of):
    """Several are on their way when the receiver hears of it: it opens the session again, once."""
    root = folder_of("random", 1)
    folder, seeds = PartitionFolder(root), jobs.seeds_of_rank(0)
    columns = folder.id_map("node")[seeds.numpy()].astype(np.int64)[None]
    with (
        serving(root, lease=1.0) as served,
        client_of(served) as watcher,
        training(served, spec_of(root, jobs.FANOUTS)) as trainer,
    ):
        epoch, _ = trainer.open(columns)
        trainer.ask(epoch, [0])
        found = [trainer.take(epoch, 0)]
        os.kill(trainer.receiver.process.pid, signal.SIGSTOP)
        wait_until(lambda: not sessions(watcher))
        for batch in (1, 2, 3):
            trainer.ask(epoch, [batch])
        os.kill(trainer.receiver.process.pid, signal.SIGCONT)
        found += [trainer.take(epoch, batch) for batch in (1, 2, 3)]
        twin = NeighborLoader(
            graph, jobs.FANOUTS, seeds, batch_size=32, shuffle=True, seed=3, stream=0
        )
        for ours, theirs in zip(found, twin, strict=False):
            check_same(ours, theirs)
        del found, ours


def test_slow_client_keeps_its_session(heavy):
    """Who says that it lives is not forgotten, however long it asks for nothing."""
    with (
        serving(heavy, lease=1.0) as served,
        raw_session(served, spec_of(heavy).to_json()) as session,
    ):
        session.open()
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            session.send("alive")
            assert "made" in session.reply()
            time.sleep(0.2)
        session.ask(1, np.arange(10))
        session.finish(1)


def test_taking_over(heavy):
    """A session that is opened again goes on there; what its client forgot is dropped."""
    pipeline, options = spec_of(heavy).to_json(), {"credits": 1 << 16, "buffer_bytes": 1 << 26}
    with serving(heavy) as served, client_of(served) as watcher:
        with raw_session(served, pipeline, **options) as first:
            first.open()
            for number in range(6):
                first.ask(number, np.arange(50) + number)
            wait_until(lambda: sessions(watcher)[0]["samplers"][0]["made"] == 6)
        with raw_session(served, pipeline, outstanding=[2, 3, 77], **options) as second:
            held = second.open()["held"]
            assert set(held) <= {2, 3}
            for number in {2, 3} - set(held):
                second.ask(number, np.arange(50) + number)
            second.finish(2)
            assert sorted(second.done) == [2, 3]
            assert sessions(watcher)[0]["buffered_bytes"] == 0


def test_buffer_limit(heavy):
    """All sessions together hold no more than the server's limit; who comes late is told so."""
    pipeline = spec_of(heavy).to_json()
    with (
        serving(heavy, buffer_limit=30 << 20) as served,
        raw_session(served, pipeline, name="a") as first,
        raw_session(served, pipeline, name="b") as second,
    ):
        assert "error" not in first.open()
        error = second.open()["error"]
        assert error["type"] == "MemoryError"
        assert "--buffer-limit" in error["message"]
        first.send("close")
        assert "error" not in first.reply()
        assert "error" not in second.open()


def test_sampler_limit(heavy):
    """Nor do they have more processes than that."""
    pipeline = spec_of(heavy).to_json()
    with (
        serving(heavy, sampler_limit=2) as served,
        raw_session(served, pipeline, name="a", num_workers=2) as first,
        raw_session(served, pipeline, name="b") as second,
    ):
        assert "error" not in first.open()
        assert "sampler processes" in second.open()["error"]["message"]


GARBAGE = [
    [b"{"],
    [b"[]"],
    [b'{"op": "open", "arrays": []}'],
    [b'{"op": "batch", "arrays": [["int64", [2]]]}', b"12"],
    [b'{"op": "register_client", "arrays": "' + b"x" * 1000 + b'"}'],
    [b"\xff" * 5000],
    [b"{}"] * 50,
]
BAD = [
    ("open", {}),
    ("open", {"session": "s", "num_workers": 10**9}),
    ("open", {"session": ["s"]}),
    ("batch", {"session": "nobody", "batch_id": 1, "batch": 1, "run_key": 1}),
    ("ack", {"session": "nobody", "bytes": 5}),
    ("cancel", {"session": None, "ids": [1]}),
    ("register_server", {"rank": 0}),
    ("wait_for", {"rank": 0, "secret": "", "name": "n", "ranks": [-1], "wait": 1}),
    ("wait_for", {"rank": 0, "secret": "", "name": "n", "ranks": [1], "wait": 1e9}),
    ("wait_for", {"rank": -1, "secret": "", "name": "n", "ranks": [1], "wait": 1}),
    ("publish", {"rank": 0, "secret": "", "name": 5}),
    ("to_new_ids", {"node_type": 5}),
    ("split", {"node_type": 0, "name": "../../etc/passwd", "begin": 0}),
    ("home_edges", {"edge_type": 0, "partition": 9, "begin": 0, "end": 1, "step": 1}),
    ("home_edges", {"edge_type": 0, "partition": 0, "begin": 0, "end": 10**12, "step": 1}),
    ("shutdown", {}),
    ("sample", {"part": 7}),
    ("graph", {"part": 0}),
]


def test_replies_of_the_loop_count_as_unread():
    """What the directory and sessions send counts as what threads send does; until it is read."""
    with zmq.Context() as context:
        router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        router.linger = dealer.linger = 0
        router.sndhwm, dealer.rcvhwm = 0, 10  # what is read early would not wait
        dealer.setsockopt(zmq.ROUTING_ID, b"peer")
        router.bind("ipc://@khop-test-unread")
        dealer.connect("ipc://@khop-test-unread")
        dealer.send(b"")
        router.recv_multipart()
        unread = SendBacklog()
        source = Source((0, b"peer"), "somebody")
        peer = Requester(source, 1, lambda _, name, frames: unread.send(router, name, frames))
        sent = 0
        while unread.of(b"peer") < 8 << 20:
            peer.send({"id": 1, "told": "x" * 10_000})
            sent += 10_000
            assert sent < 64 << 20, "small messages do not count"
        peer.send({"id": 2}, [np.zeros(1 << 20, np.uint8)])
        while dealer.poll(1000):
            dealer.recv_multipart()
        wait_until(lambda: unread.of(b"peer") < 1 << 20)
        router.close()
        dealer.close()


def test_a_reply_that_no_client_accepts_becomes_an_error():
    """The asker learns of it; nothing is raised where the reply is sent."""
    for header in ({"id": 7, "told": "x" * (2 << 20)}, {"id": "x" * (2 << 20)}):
        reply, _ = unpack(pack_or_refuse(header, []))
        assert reply["id"] == (7 if header["id"] == 7 else None)
        assert reply["error"]["type"] == "ProtocolError" and "longer" in reply["error"]["message"]
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    assert "error" in unpack(pack_or_refuse({"id": 7, "told": deep}, []))[0]


def test_nonsense_is_refused(heavy):
    """Frames and requests that make no sense get an error; the server goes on as before."""
    pipeline = spec_of(heavy).to_json()
    with (
        serving(heavy) as served,
        raw_session(served, pipeline) as session,
    ):
        session.open()
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(served.addresses[0]["tcp"])
        for frames in ([b""], *GARBAGE):  # a greeting gets no answer
            socket.send_multipart(frames)
        for op, header in BAD:
            frames = pack({"op": op, "protocol": PROTOCOL, "id": 5, **header}, [])
            socket.send_multipart(frames)
        socket.send_multipart(pack({"op": "ping", "protocol": 1, "id": 3}, []))
        answers = []
        while len(answers) < len(GARBAGE) + len(BAD) + 1:
            assert socket.poll(5000), len(answers)
            answers.append(socket.recv_multipart()[0])
        assert all(b'"error": {' in answer for answer in answers)
        socket.close()
        context.term()
        for change in (
            {"batch_id": -1},
            {"batch_id": 1.5},
            {"run_key": 2**64},
            {"batch": "x"},
        ):
            header = {"batch_id": 1, "batch": 1, "run_key": 1, **change}
            session.send("batch", [np.zeros((1, 4), np.int64)], **header)
            assert session.reply()["error"]["type"] == "ProtocolError"
        for array in (np.zeros((2, 4), np.int64), np.zeros(4, np.int64), np.zeros((1, 4))):
            session.send("batch", [array], batch_id=5, batch=1, run_key=1)
        session.ask(6, [0, 500])
        session.ask(7, [-1])
        session.ask(8, [0, 499])
        session.finish(4)
        assert sorted(session.failed) == [5, 6, 7]
        assert list(session.done) == [8]
