"""What members of a job send to a living graph server: it ends nothing, and others are served.

A member has a key of its own; on loopback without keys any local user is one. Each test asks a real
server over TCP, as the audit did, while another member is at work.
"""

import contextlib
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest
import zmq

from khop.channel.message import pack, unpack
from khop.codec import to_json
from khop.distributed.membership.members import Membership
from khop.distributed.remote import messages, session_messages
from khop.distributed.remote.client.client_context import DirectoryStore
from khop.distributed.remote.messages import Lookup, Ping, RegisterClient, read_table
from khop.distributed.rpc.keys import JobKeys
from khop.distributed.rpc.protocol import PROTOCOL, request_header
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import RendezvousError
from khop.partition import PartitionFolder
from khop.sampler.spec import SamplingSpec
from support.cluster.receiving import collect_all
from support.cluster.serving import client_of, raw_session, serving, sessions, wait_until


@pytest.fixture(scope="module")
def keys():
    """A pair for the one who is honest, and a pair for the other."""
    return JobKeys.new(["honest", "hostile"])


@pytest.fixture(scope="module")
def root(folder_of):
    return folder_of("random", 1)


@pytest.fixture(scope="module")
def served(root, keys):
    """A server with keys; it must outlive all of this file."""
    with serving(root, 1, keys) as graph:
        yield graph
        assert not graph.processes[0].has_ended


@pytest.fixture
def honest(served):
    """A client that is at work before and after."""
    with client_of(served, 0) as client:
        client.wait_for_servers()
        yield client
        assert client.request(0, Ping()).fields.rank == 0


class Member:
    """One with a key who says what he likes."""

    def __init__(self, served, name="hostile"):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        keys = served.keys.for_client(name)
        self.socket.curve_serverkey = keys.server_key.encode()
        self.socket.curve_publickey = keys.client.public.encode()
        self.socket.curve_secretkey = keys.client.secret.encode()
        self.socket.connect(served.addresses[0]["tcp"])

    def send(self, request, arrays=(), number=1):
        """A request: a message, or a header that is none."""
        if isinstance(request, dict):
            header = {"protocol": PROTOCOL, "id": number, **request}
        else:
            header = request_header(request, number)
        self.socket.send_multipart(pack(header, list(arrays)))

    def receive(self, seconds=20):
        """Header and arrays of a reply."""
        assert self.socket.poll(1000 * seconds), "no reply"
        return unpack(self.socket.recv_multipart())

    def ask(self, request, arrays=()):
        """What a request is answered with."""
        self.send(request, arrays)
        return self.receive()

    def register(self, rank, secret="h", **changes):
        """As a client."""
        request = RegisterClient(rank, secret, 1, 0, "hostile", 1)
        return self.ask({"op": "register_client", **to_json(request), **changes})[0]

    def close(self):
        self.context.destroy(0)


@pytest.fixture
def member(served):
    """The hostile one."""
    with contextlib.closing(Member(served)) as made:
        yield made


def test_nested_values(member, honest):
    """985 lists within each other are passed on, or refused; they end nothing."""
    member.register(5)
    own = {"rank": 5, "secret": "h", "name": "n"}
    for depth in (900, 985, 5000):
        text = np.frombuffer(b"[" * depth + b"1" + b"]" * depth, np.uint8)
        member.ask({"op": "publish", **own}, [text])
        reply, arrays = member.ask({"op": "wait_for", **own, "ranks": [5], "wait": 0.0})
        assert reply["ranks"] == [5]
        assert arrays[0].tobytes() == text.tobytes()
    nested = json.loads("[" * 900 + "]" * 900)
    for op in ("publish", "wait_for", "register_client", "open", "batch", "goodbye"):
        assert "error" in member.ask({"op": op, "name": nested})[0]
    assert honest.request(0, Ping()).fields.rank == 0


def pipeline_of(root, **changes):
    """Batches of a folder with all attributes; fields of `collect` may be others."""
    meta = PartitionFolder(root).meta
    sampling = SamplingSpec.create([2, 2], [t.name for t in meta.edge_types])
    content = PipelineSpec(sampling, collect_all(meta, sampling)).to_json()
    return {**content, "collect": {**content["collect"], **changes}}


@contextlib.contextmanager
def session_of(served, pipeline, name, **options):
    """A session of the hostile one."""
    keys = served.keys.for_client("hostile")
    with raw_session(served, pipeline, credentials=keys.credentials(), **options) as session:
        session.name = session.options["session"] = name
        yield session


def test_attributes_named_twice(served, root, honest):
    """A session that asks for an attribute twice is refused."""
    with session_of(served, pipeline_of(root, node_attrs=[["x", "x"]]), "twice") as session:
        error = session.open()["error"]
        assert error["type"] == "ProtocolError"
        assert "node_attrs[0] names something twice" in error["message"]


def test_registration_as_server_needs_the_servers_key(served, member, honest):
    """Nor do they go: whoever lacks the servers' key changes nothing about them."""
    before = honest.table.servers[0]
    server = {
        "op": "register_server", "rank": 0, "num_servers": 1, "num_clients": 0, "parts": [0],
        "addresses": {"tcp": before.addresses.tcp}, "host": before.host, "pid": 1,
        "fingerprint": honest.table.fingerprint, "gone": {"0": "a"},
    }  # fmt: skip
    for secret in ("mine", before.incarnation):
        reply, _ = member.ask({**server, "secret": secret})
        assert reply["error"]["type"] == "SecurityError"
        member.ask({"op": "goodbye", "role": "server", "rank": 0, "secret": secret})
    table = read_table(member.ask(Lookup())[1], "it")
    assert table.servers[0].incarnation == before.incarnation
    mine = table.clients[0].incarnation  # all that others are told of a client
    member.ask({"op": "goodbye", "role": "client", "rank": 0, "secret": mine})
    assert not read_table(member.ask(Lookup())[1], "it").clients[0].gone


def test_replies_stay_small(member, honest):
    """What many have published comes in pieces of a mebibyte, whoever asks."""
    text = np.frombuffer(b'"' + b"x" * 60_000 + b'"', np.uint8)
    for rank in range(100, 140):
        member.register(rank)
        member.ask({"op": "publish", "rank": rank, "secret": "h", "name": "n"}, [text])
    ranks = list(range(100, 140))
    ask = {"op": "wait_for", "rank": 100, "secret": "h", "name": "n", "ranks": ranks, "wait": 0.0}
    reply, (found,) = member.ask(ask)
    assert 0 < len(reply["ranks"]) < 20
    assert found.nbytes <= 1 << 20
    assert len(honest.wait_for("n", ranks, 0.0)) == len(reply["ranks"])
    for rank in ranks:
        member.ask({"op": "publish", "rank": rank, "secret": "h", "name": "group/n"}, [text])
    agreement = Membership(DirectoryStore(honest, "group"), 0, 1, 20.0)
    assert len(agreement.wait_for("n", ranks, "publish")) == len(agreement.poll("n", ranks)) == 40


def test_values_that_are_not_published_yet_are_none(member, honest):
    """A client that is late is waited for again: the reply without values is no error."""
    member.register(100)
    assert honest.wait_for("late", [100], 0.1) == {}
    agreement = Membership(DirectoryStore(honest, "group"), 0, 2, 0.1)
    assert agreement.poll("late", [100]) == {}
    with pytest.raises(RendezvousError, match="100"):
        agreement.wait_for("late", [100], "publish")


def test_registrations_are_bounded(member, honest):
    """The table can be read by everybody, however many have registered under long names."""
    refused = [member.register(rank, name="\N{PILE OF POO}" * 64) for rank in range(2, 420)]
    assert "the limit" in refused[-1]["error"]["message"]
    assert "error" in member.register(9, name="x" * 257)
    assert len(read_table(honest.request(None, Lookup()).arrays, "it").clients) <= 300


def test_a_crowd_of_one_user(served, honest):
    """Forty connections with a hundred requests each keep nobody from being answered."""
    flood = [Member(served) for _ in range(40)]
    try:
        for number in range(100):
            for member in flood:
                member.send(Ping(), number=number)
        assert honest.request(0, Ping()).fields.rank == 0
        for member in flood:
            assert member.receive()[0]["rank"] == 0
    finally:
        for member in flood:
            member.close()


def test_sessions_are_their_owners(served, root, honest):
    """Who knows a session's name cannot take it over, ask it, or end it."""
    pipeline = pipeline_of(root)
    honest_keys = served.keys.for_client("honest").credentials()
    with (
        raw_session(served, pipeline, name="mine", credentials=honest_keys) as mine,
        session_of(served, pipeline, "mine", secret="another") as other,
    ):
        assert mine.open()["held"] == []
        assert other.open()["held"] == []  # one of its own
        assert len(sessions(honest)) == 2
        mine.ask(3, np.arange(4))
        mine.finish(1)
        other.send("cancel", ids=[3])
        other.send("close")
        assert "error" not in other.reply()
        wait_until(lambda: len(sessions(honest)) == 1)
        other.send("batch", [np.arange(4)[None]], batch_id=4, batch=0, run_key=1)
        assert other.reply()["error"]["type"] == "LookupError"
        mine.ask(5, np.arange(4))
        mine.finish(2)
        assert sorted(mine.done) == [3, 5]
        assert other.done == {}


def test_sampler_is_restarted_when_descriptors_are_free_again(root, keys):
    """A sampler that dies while no descriptor is left is started again when there are some."""
    with serving(root, 1, keys) as served, client_of(served) as client:
        pid = served.processes[0].pid
        pipeline = pipeline_of(root)
        with raw_session(
            served, pipeline, credentials=served.keys.for_client("honest").credentials()
        ) as session:
            session.open()
            session.ask(1, np.arange(4))
            session.finish(1)
            (sampler,) = sessions(client)[0]["samplers"]
            limit = resource_limit(pid, len(list(Path(f"/proc/{pid}/fd").iterdir())) + 1)
            os.kill(sampler["pid"], 9)
            wait_until(lambda: not sessions(client)[0]["samplers"])
            session.ask(2, np.arange(4))
            time.sleep(1.0)
            assert not served.processes[0].has_ended
            resource_limit(pid, limit)
            session.finish(2)
            assert sorted(session.done) == [1, 2]


def resource_limit(pid, number):
    """Sets how many descriptors a process may have; returns what it was."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    before, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE, (number, hard))
    return before


def test_every_request_gets_an_answer(served, member, honest):
    """Whatever is wrong with it; and the server goes on."""
    kinds = [
        kind
        for module in (messages, session_messages)
        for kind in vars(module).values()
        if isinstance(kind, type) and hasattr(kind, "op") and not kind.__name__.startswith("_")
    ]
    assert len(kinds) > 15
    for kind in kinds:
        for header in ({}, {"rank": None}, {"session": []}, {"x" * 1000: 1}, {"arrays": 5}):
            reply, _ = member.ask({"op": kind.op, **header, "secret": 5})
            assert "error" in reply, (kind.op, header)
            assert len(reply["error"]["message"]) < 1000
