"""Tensors of clients of graph servers: jobs, their steps, their ends, and who may write."""

import contextlib
import hashlib
import re
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop.distributed import (
    DistDataset,
    GraphStore,
    GraphStoreReader,
    request_server,
    shutdown_worker_group,
)
from khop.distributed.remote.messages import ClientEntry, incarnation_of
from khop.distributed.remote.server.job_stores import JobStores
from khop.distributed.remote.statistics import JobStoreState
from khop.distributed.rpc.frame_handler import finish
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.tensors.tensor_requests import (
    CloseStore,
    CreateTensor,
    DeleteTensor,
    EndStep,
    JobMember,
    OpenStore,
    PullRows,
    PushRows,
    Sender,
    SetVersion,
    ShareTensor,
    TensorSpec,
)
from khop.errors import (
    PartitionUnavailableError,
    ProtocolError,
    RendezvousError,
    StateLostError,
)
from khop.partition import PartitionFolder, RandomPartitioner
from khop.storage import aggregation
from khop.storage.part import Part
from support.cluster import jobs, store_jobs
from support.cluster.servers import cluster
from support.cluster.serving import wait_until

PARTS = {1: [[0, 1, 2]], 2: [[1], [0, 2]], 3: [[2], [0], [1]]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores") / "parts"
    RandomPartitioner.from_data(jobs.make_graph(), root, 3).partition()
    return root


def start(servers, job, stores, **arguments):
    """Start the clients of jobs: {name: ranks}."""
    arguments |= {"num_servers": len(servers.servers), "port": servers.port, "jobs": stores}
    return jobs.start_trainers(
        job, arguments, sum(map(len, stores.values())), program=store_jobs.__name__
    )


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_three_clients_give_the_bits_of_trainers_with_partitions(root, num_servers):
    digest = hashlib.sha256(store_jobs.expected(3).tobytes()).hexdigest()
    total = 2000 * store_jobs.PUSHES * (1 + 2 + 3)
    with cluster(root, PARTS[num_servers]) as servers:
        for result in jobs.finish_trainers(start(servers, "push", {"a": [0, 1, 2]})):
            assert result == {"digest": digest, "total": total, "before": 0.0, "version": 1}


@pytest.mark.parametrize("job", ["embed", "propagate"])
def test_embeddings_and_propagation_have_the_bits_of_trainers_with_partitions(tmp_path, job):
    graph = jobs.make_graph(100, 800) if job == "propagate" else jobs.make_graph()
    whole, cut = tmp_path / "1", tmp_path / "3"
    for path, num_parts in ((whole, 1), (cut, 3)):
        RandomPartitioner.from_data(graph, path, num_parts).partition()
    arguments = {"root": str(whole), "homes": [0, 0], "also_serve": {}}
    trainers = jobs.start_trainers(job, arguments, 2, program=store_jobs.__name__)
    expected = jobs.finish_trainers(trainers)
    with cluster(cut, PARTS[2]) as servers:
        assert jobs.finish_trainers(start(servers, job, {"a": [0, 1]})) == expected


HOPS = [
    {},
    {"reduce": "mean", "weight": "edge_attr"},
    {"reduce": "max", "weight": "edge_attr"},
    {"norm": "sym", "weight": "edge_attr", "hops": 3},
    {"norm": "row", "apply": lambda new, own: new * 2 + own},
]


def test_clients_propagate_and_save_as_trainers_with_partitions(tmp_path, monkeypatch):
    """The structure is requested in small pieces. Checkpoints are read in both modes."""
    for name, count in (("EDGES_AT_ONCE", 37), ("ROWS_AT_ONCE", 11)):
        monkeypatch.setattr(aggregation, name, count)
    edges, x = jobs.make_graph(100, 800).edge_index, torch.rand(100, 3)
    graph = Data(edge_index=edges, edge_attr=torch.rand(800), num_nodes=100)
    for num_parts in (1, 3):
        RandomPartitioner.from_data(graph, tmp_path / str(num_parts), num_parts).partition()

    def propagate(store, folder):
        store.create_node_tensor("x", shape=(3,), init=x)
        store.create_edge_tensor("w", init=graph.edge_attr)
        for i, options in enumerate(HOPS):
            store.create_node_tensor(f"out {i}", shape=(3,))
            store.update_all("x", f"out {i}", **options)
        store.save(folder)
        return values_of(store)

    def values_of(store):
        return {name: tensor.pull().numpy().tobytes() for name, tensor in store.tensors().items()}

    with GraphStore(DistDataset.from_folder(tmp_path / "1")) as store:
        expected = propagate(store, tmp_path / "of trainer")
    shutdown_worker_group()
    with cluster(tmp_path / "3", PARTS[2], 1) as servers, servers.client(0):
        with GraphStore(None) as store:
            assert propagate(store, tmp_path / "of client") == expected
            version = store.version
        with GraphStore(None) as store, store.reader() as reader:
            store.load(tmp_path / "of trainer")
            assert values_of(store) == expected and store.version == version
            assert len(reader["x"]) == len(reader["x"].pull()) and reader.version == version
    with GraphStore(DistDataset.from_folder(tmp_path / "1")) as store:
        store.load(tmp_path / "of client")
        assert values_of(store) == expected
    shutdown_worker_group()


def test_an_evaluator_sees_whole_steps_only(root):
    """All rows of all partitions are of one step, while two clients end hundreds of steps."""
    with cluster(root, PARTS[3]) as servers:
        clients = start(servers, "count", {"a": [0, 1]}, steps=150, stay=1.0)
        with servers.client(7), GraphStoreReader("a") as reader:
            wait_until(lambda: is_there(reader), 60)
            versions = []
            while not versions or versions[-1] < 151:
                (rows,) = reader.pull(["rows"])
                versions.append(reader.version)
                assert (rows == 2 * min(reader.version, 150)).all()
        assert versions == sorted(versions) and len(set(versions)) > 3
        assert jobs.finish_trainers(clients) == [{"version": 151}] * 2


def is_there(reader):
    with contextlib.suppress(KeyError):
        return "rows" in reader


def stores_of(servers):
    """The stores of jobs at each server."""
    with servers.client(2000):
        return [request_server(r, "statistics")["stores"] for r in range(len(servers.servers))]


def test_two_jobs_have_stores_of_their_own(root):
    """Each with a tensor of the same name, and the rows of its own clients only."""
    with cluster(root, PARTS[2]) as servers:
        results = jobs.finish_trainers(start(servers, "push", {"a": [0, 2], "b": [1]}))
        digests = [hashlib.sha256(store_jobs.expected(n).tobytes()).hexdigest() for n in (2, 1, 2)]
        assert [result["digest"] for result in results] == digests
        assert stores_of(servers) == [[], []]


@pytest.mark.fault
@pytest.mark.parametrize("victim", [0, 1])
def test_a_graph_server_that_is_killed_between_push_and_wait(root, victim):
    """All clients get an exception that names it, within seconds."""
    with cluster(root, PARTS[3]) as servers:
        pids = [server.process.pid for server in servers.servers]
        clients = start(servers, "lose", {"a": [0, 1, 2]}, how="server", pids=pids, victim=victim)
        for result in jobs.finish_trainers(clients):
            assert f"graph server {victim}" in result["error"] or "directory" in result["error"]
            assert result["seconds"] < 8, result


@pytest.mark.fault
def test_a_push_after_the_server_of_its_ids_was_killed(root):
    """The ids of rows come from a server, too: no wait for the timeout of the request."""
    with (
        cluster(root, PARTS[2]) as servers,
        servers.client(1),
        GraphStore(None, clients=[1]) as store,
    ):
        rows = store.create_node_tensor("rows")
        servers.kill(1)
        began = time.monotonic()
        with pytest.raises(PartitionUnavailableError, match="graph server 1"):
            rows.push([1], [2.0]).wait()
        assert time.monotonic() - began < 20
        with pytest.raises(RendezvousError, match="cannot be used any more"):
            store.step()


@pytest.mark.fault
def test_a_client_that_is_killed_in_a_step(root):
    """The others name it. The tensors stay until they have left, too."""
    with cluster(root, PARTS[2], lease=9.0) as servers:
        clients = start(servers, "lose", {"a": [0, 1, 2]}, how="client")
        for result in jobs.finish_trainers([clients[0], clients[2]]):
            assert "client 1" in result["error"] and result["seconds"] < 8, result
        assert clients[1].wait() == -9
        wait_until(lambda: stores_of(servers) == [[], []], 30)


# Who may do what --------------------------------------------------------------------------------


def token_of(member):
    return JobMember(0, member, incarnation_of(f"token of {member}"))


GUESS, OWN = Sender("honest", "a guess"), Sender("own", "token of liar")
ROW, VALUES = np.zeros(1, np.int64), np.ones((1, 3), np.float32)
WIDE = TensorSpec("node", 0, "float32", [2**31, 2**31, 2**31])


def push(sender, step=0, rank=0, name="rows"):
    return PushRows(name, "set", step, rank, 0, sender=sender)


LIES = [
    (push(None), [ROW, VALUES], "names no job"),
    (push(Sender("honest")), [ROW, VALUES], "no trainer of job 'honest'"),
    (push(GUESS, step=None), [ROW, VALUES], "no trainer"),
    (push(Sender("other", "x")), [ROW, VALUES], "has ended"),
    (EndStep(0, [], GUESS), [], "no trainer"),
    (SetVersion(9, GUESS), [], "no trainer"),
    (DeleteTensor("rows", GUESS), [], "no trainer"),
    (CreateTensor("new", TensorSpec("node", 0, "int8", []), GUESS), [], "no trainer"),
    (CloseStore(GUESS), [], "no trainer"),
    (OpenStore(GUESS, []), [], "no trainer"),
    (OpenStore(Sender("honest", OWN.token), [token_of("liar")]), [], "of clients .0. already"),
    (push(OWN), [ROW, VALUES], "no tensor .*rows"),
    (push(OWN, name="mine", rank=1), [ROW, VALUES], "trainer 0 of job 'own' pushes for 1"),
    (push(OWN, name="mine", step=5), [ROW, VALUES], "of step 5 came in step 0"),
    (push(OWN, name="mine"), [np.array([-1]), VALUES], "has 1.. rows"),
    (push(OWN, name="mine"), [np.array([2**62]), VALUES], "has 1.. rows"),
    (push(OWN, name="mine"), [ROW, VALUES.astype(np.float64)], "float32 values"),
    (push(OWN, name="mine"), [np.zeros(2, np.int64), VALUES], r"values \[\[1, 3\]\] for 2 rows"),
    (push(OWN, name="mine"), [np.zeros(1 << 20, np.int64)], "carries 8388608 bytes"),
    (CreateTensor("wide", WIDE, OWN), [], "at most 1 MiB"),
    (CreateTensor("large", TensorSpec("node", 0, "int8", [1 << 19]), OWN), [], "job 'own' at"),
    (EndStep(7, [], OWN), [], "cannot end in step 0"),
]  # fmt: skip


def test_a_liar_ends_nothing_but_its_own_requests(root):
    with (
        cluster(root, PARTS[2], lease=5.0, job_tensor_limit=1 << 20) as servers,
        servers.client(0),
        GraphStore(None, job="honest", clients=[0]) as store,
    ):
        rows = store.create_node_tensor("rows", shape=(3,))
        endpoints = store._client.access.endpoints
        with contextlib.closing(PartitionClient(endpoints, None, 10.0)) as liar:

            def send(message, arrays=()):
                is_read = isinstance(message, (PullRows, ShareTensor))
                ticket = (liar.read_state if is_read else liar.write)(1, message, arrays)
                liar.wait([ticket])
                return ticket.result()

            send(OpenStore(OWN, [token_of("liar")]))
            send(CreateTensor("mine", TensorSpec("node", 0, "float32", [3]), OWN))
            for message, arrays, text in LIES:
                with pytest.raises((ProtocolError, LookupError, RuntimeError, MemoryError)) as told:
                    send(message, arrays)
                assert re.search(text, str(told.value)), (message, told.value)
                if isinstance(told.value, StateLostError):
                    liar.accept_state_loss(1)
            with pytest.raises(ProtocolError, match="no trainer"):
                send(ShareTensor("rows", Sender("honest")))
            assert not send(PullRows("rows", False, Sender("honest")), [ROW])[0].any()
            rows.push([1, 2], torch.ones(2, 3))
            assert store.step() == 1 and rows.pull().sum() == 6
            stores = request_server(0, "statistics")["stores"]
            assert [described["job"] for described in stores] == ["honest", "own"]
        # Its client is not in the directory: its job ends when a lease is over.
        wait_until(lambda: len(request_server(0, "statistics")["stores"]) == 1)
        rows.push([1], torch.ones(1, 3), "add")
        assert store.step() == 2 and rows.pull().sum() == 9


def test_bytes_of_a_job_and_of_all_are_bounded(root):
    """Of rows, and of pushes until their step ends. What is deleted makes room."""
    limits = {"tensor_limit": 24_000, "job_tensor_limit": 16_000}
    with cluster(root, PARTS[1], **limits) as servers, servers.client(0):
        with GraphStore(None, job="a", clients=[0]) as a:
            a.create_node_tensor("x", shape=(4,))  # 8,000 bytes
            b = GraphStore(None, job="b", clients=[0])
            b.create_node_tensor("x", shape=(7,))  # 14,000 bytes
            with pytest.raises(MemoryError, match=r"job .b. at graph server 0 has 1\d,\d+ of"):
                b.create_node_tensor("y", shape=(2,))
            with pytest.raises(MemoryError, match=r"graph server 0 has 2\d,\d+ of 24,000 bytes"):
                a.create_node_tensor("y", shape=(3,))
            b.close()
        with GraphStore(None, job="a", clients=[0]) as a:
            rows = a.create_node_tensor("x", shape=(6,))
            for _ in range(2):
                rows.push(torch.arange(100), torch.ones(100, 6), "add").wait()  # 3,200 bytes
                a.step()
            rows.push(torch.arange(100), torch.ones(100, 6), "add").wait()
            with pytest.raises(MemoryError, match="the pushes of this step"):
                rows.push(torch.arange(100), torch.ones(100, 6), "add").wait()
        assert request_server(0, "statistics")["stores"] == []


@pytest.mark.unit
def test_a_job_ends_when_all_of_its_clients_have_gone(root):
    """Whether they say so, are gone in the directory, are replaced there, or are forgotten."""
    now = 0.0
    part = Part(PartitionFolder(root), 0)
    stores = JobStores(0, (1 << 20, 1 << 20), 30.0, lambda: now)
    answers = {t.message: t.answer for t in stores.types(part)}
    sender = Sender("job", "token of 0")
    members = [JobMember(r, f"life {r}", incarnation_of(f"token of {r}")) for r in range(4)]

    def alive(rank, life=None, **fields):
        return {rank: ClientEntry(life or f"life {rank}", "", 1, **fields)}

    answers[OpenStore](OpenStore(sender, members), [])
    finish(answers[CreateTensor](CreateTensor("t", TensorSpec("node", 0, "int8", []), sender), []))
    everybody = {rank: entry for r in range(4) for rank, entry in alive(r).items()}
    old_table = {**everybody, **alive(1, "earlier life")}
    stores.end_lost(old_table)
    stores.end_lost(everybody)
    assert replace(stores.states()[0], bytes=0) == JobStoreState("job", [0, 1, 2, 3], 1, 0, 0)
    answers[CloseStore](CloseStore(sender), [])
    stores.end_lost(alive(1, gone=True) | alive(2, "next life") | alive(3))
    now = 29.0
    stores.end_lost({})
    assert stores.states()
    now = 31.0
    stores.end_lost({})
    assert not stores.states()
    with pytest.raises(StateLostError, match="has ended"):
        answers[DeleteTensor](DeleteTensor("t", sender), [])
    answers[OpenStore](OpenStore(sender, members), [])
    assert stores.states()[0].bytes == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "name the ranks of those that make the store"),
        ({"clients": [1]}, "with this client's, 0"),
        ({"clients": [2, 0]}, "ascending ranks"),
        ({"clients": [0], "job": ""}, "1 to 128 printable"),
    ],
)
def test_bad_arguments_of_clients(root, options, text):
    with cluster(root, PARTS[1]) as servers, servers.client(0):
        with pytest.raises(ValueError, match=text):
            GraphStore(None, **options)
        with pytest.raises(KeyError, match="no store of job"):
            GraphStoreReader("x").names  # noqa: B018
