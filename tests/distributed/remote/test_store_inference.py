"""Layer-wise inference of clients of graph servers: a forward pass over the whole graph."""

import pytest
import torch

from khop.distributed import DistDataset, GraphStore, shutdown_worker_group, store_inference
from khop.distributed.remote.client.served_access import ServedAccess
from khop.partition import RandomPartitioner
from support.cluster import inference_jobs, jobs, store_jobs
from support.cluster.inference_jobs import CLOSE, Case
from support.cluster.servers import cluster

PARTS = [[1], [0, 2]]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("parts")
    graphs = {"node": inference_jobs.make_graph, "hetero": inference_jobs.make_hetero}
    for name, make in graphs.items():
        RandomPartitioner.from_data(make(), made / name, 3).partition()
    return lambda kind: made / ("hetero" if kind == "hetero" else "node")


@pytest.fixture(scope="module")
def servers(root):
    with cluster(root("sage"), PARTS, lease=5.0) as made:
        yield made


@pytest.fixture(params=["shared", "requested"])
def store(request, servers, monkeypatch):
    """A store of one client, which maps its servers' memory, or may not."""
    if request.param == "requested":
        monkeypatch.setattr(ServedAccess, "is_near", lambda *_: False)
    with servers.client(), GraphStore(None, timeout=30, clients=[0]) as store:
        yield store


@pytest.mark.parametrize("kind", ["sage", "gat", "pna", "rgcn", "edge_attrs"])
def test_one_client(store, kind):
    """Three layers, pairs of rows or not, edge attributes. Only the last tensor stays."""
    case = Case(kind)
    outputs = store_inference(store, case.model, "out", **case.options)
    assert list(outputs) == ["node"] and list(store.tensors()) == ["out"]
    torch.testing.assert_close(store["out"].pull(), case.expected["node"], **CLOSE)
    assert outputs["node"] is store["out"]


def test_dtypes_disk_and_embeddings(store):
    """Ids become rows. Outputs are stored as bfloat16, and on disk."""

    def double(x, edge_index):
        return 2 * x

    outputs = store_inference(
        store, [double, double], "out", x=lambda ids: ids[:, None].float(), dtype="bfloat16",
        on_disk=1 << 14, batch_size=50,
    )  # fmt: skip
    rows = outputs["node"]
    assert rows.dtype == torch.bfloat16 and rows.spec.cache_bytes == 1 << 14
    assert torch.equal(rows.pull().float()[:, 0], torch.arange(300.0).bfloat16().float() * 4)
    with pytest.raises(ValueError, match=r"\['out'\] already"):
        store_inference(store, [double], "out")
    with pytest.raises(KeyError, match="no node type has an attribute 'y'"):
        store_inference(store, [double], "more", x="y")
    assert store.step() == 1  # nothing has been begun


@pytest.mark.parametrize("kind", ["sage", "hetero"])
def test_two_clients(root, kind):
    """Client 1 has one part, client 0 two. Types have fewer nodes than there are parts."""
    with cluster(root(kind), PARTS) as servers:
        results = jobs.finish_trainers(start(servers, kind))
    expected = Case(kind).expected
    for result in results:
        assert result["names"] == (
            ["out"] if kind == "sage" else ["out/author", "out/paper", "out/venue"]
        )
        assert set(result["outputs"]) == set(expected)
        for name, rows in result["outputs"].items():
            torch.testing.assert_close(torch.tensor(rows), expected[name], **CLOSE)


@pytest.mark.fault
def test_a_layer_that_fails_ends_the_store_of_all(root):
    with cluster(root("sage"), PARTS) as servers:
        results = jobs.finish_trainers(start(servers, "rgcn", fails=1))
    assert "ValueError: layer 0 must return a row for each" in results[1]["error"]
    assert "RendezvousError" in results[0]["error"] and "client 1" in results[0]["error"]


def start(servers, kind, fails=None):
    arguments = {"num_servers": 2, "port": servers.port, "jobs": {"a": [0, 1]}}
    arguments |= {"kind": kind, "fails": fails}
    return jobs.start_trainers("infer", arguments, 2, program=store_jobs.__name__)


def test_trainers_with_partitions_have_a_call_of_their_own(root):
    with (
        GraphStore(DistDataset().load(root("sage"), 0, also_serve=[1, 2])) as store,
        pytest.raises(TypeError, match="call layerwise_inference"),
    ):
        store_inference(store, [torch.nn.Identity()], "out")
    shutdown_worker_group()
