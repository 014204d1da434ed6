"""Every public class and function has a short example in its docstring, and it runs."""

import os
import threading

import pytest

from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import Ping, RegisterClient
from support import examples
from support.cluster import jobs, servers

PUBLIC = examples.public()
MAX_LINES = 5
OF_SERVERS = {
    f"khop.distributed.{n}" for n in ("init_server", "wait_and_shutdown_server", "ServerContext")
}
OF_CLIENTS = {
    "khop.metrics.of_server",
    *(
        f"khop.distributed.{name}"
        for name in (
            *("ClientContext", "RemoteDistSamplingWorkerOptions", "async_request_server"),
            *("init_client", "store_inference"),
            *("request_server", "shutdown_client"),
        )
    ),
}
OF_METIS = {"khop.partition.ClusterMetisPartitioner", "khop.partition.MetisPartitioner"}
OF_WORKERS = {"khop.distributed.MpDistSamplingWorkerOptions", "khop.distributed.Worker"}
OF_STORES = {
    *("khop.distributed.GraphStore", "khop.distributed.GraphStoreReader"),
    *("khop.distributed.GraphTensor", "khop.distributed.Pull", "khop.distributed.Push"),
    *("khop.distributed.ReadOnlyTensor", "khop.distributed.StoreFeatures"),
    *("khop.nn.DistEmbedding", "khop.nn.History"),
    *(f"khop.optim.{name}" for name in ("RowwiseAdagrad", "SparseAdagrad", "SparseAdam")),
    "khop.optim.GradScaler",
    "khop.optim.SparseSGD",
}
WITH_PROCESSES = OF_WORKERS | OF_METIS | OF_STORES
ALONE = sorted(PUBLIC.keys() - OF_SERVERS - OF_CLIENTS - WITH_PROCESSES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The partition folder of the examples' graph."""
    root = tmp_path_factory.mktemp("examples") / "folder"
    examples.partition(root)
    return root


@pytest.fixture(scope="module")
def port(folder):
    """Port of a graph server for any number of clients."""
    with servers.cluster(folder, [[0]]) as cluster:
        yield cluster.port


@pytest.fixture
def run(tmp_path, folder):
    """run(name, port=0): runs an example, and undoes what lasts."""

    def run(name, port=0):
        with examples.undone():
            examples.run(PUBLIC[name], examples.names(tmp_path, folder, port))

    return run


def lines_of(name):
    """Lines of code of an example; 0 if there is none."""
    found = examples.of(PUBLIC[name])
    return sum(e.source.count("\n") for e in found.examples) if found else 0


def be_the_only_client(port):
    """Joins a server's job, and leaves it at once."""

    def registration(secret):
        return RegisterClient(0, secret, 1, 1, "the only client", os.getpid())

    client = DirectoryClient(Servers(f"127.0.0.1:{port}"), registration, timeout=20.0)
    client.request(0, Ping())
    client.close()


@pytest.mark.unit
def test_all_public_names_have_a_short_example():
    assert {name: lines for name in PUBLIC if not 0 < (lines := lines_of(name)) <= MAX_LINES} == {}


@pytest.mark.unit
def test_examples_with_processes_are_of_public_names():
    assert PUBLIC.keys() >= OF_SERVERS | OF_CLIENTS | WITH_PROCESSES


@pytest.mark.unit
@pytest.mark.parametrize("name", ALONE)
def test_an_example_runs(name, run):
    run(name)


@pytest.mark.parametrize("name", sorted(WITH_PROCESSES))
def test_an_example_with_processes_runs(name, run):
    if name in OF_METIS:
        pytest.importorskip("pymetis")
    run(name)


@pytest.mark.parametrize("name", sorted(OF_CLIENTS))
def test_a_clients_example_runs(name, run, port):
    run(name, port)


@pytest.mark.parametrize("name", sorted(OF_SERVERS))
def test_a_servers_example_runs(name, run):
    """It waits for its only client, a thread here."""
    port = jobs.free_port()
    client = threading.Thread(target=be_the_only_client, args=[port], daemon=True)
    client.start()
    run(name, port)
    client.join(20)
    assert not client.is_alive()
