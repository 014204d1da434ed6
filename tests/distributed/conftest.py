"""Partitioned graphs, jobs of several trainers, and the check that nothing is left behind."""

import os
import shutil
import subprocess
import tempfile

import pytest

from khop.distributed import shutdown_worker_group
from khop.partition import FrequencyPartitioner, RandomPartitioner
from support.cluster import jobs, twins


@pytest.fixture(scope="session")
def graph():
    """A graph with isolated nodes, parallel edges and self-loops, whose features are its ids."""
    return jobs.make_graph()


@pytest.fixture(scope="session")
def folder_of(graph, tmp_path_factory):
    """Returns folder_of(method, num_parts, strategy='by_dst'): the root of such a partitioning."""
    made = {}

    def folder_of(method, num_parts, strategy="by_dst"):
        key = (method, num_parts, strategy)
        if key not in made:
            root = tmp_path_factory.mktemp("parts") / "-".join(map(str, key))
            if method == "random":
                partitioner = RandomPartitioner.from_data(
                    graph, root, num_parts, edge_dir="in" if strategy == "by_dst" else "out"
                )
            else:
                partitioner = FrequencyPartitioner.from_data(
                    graph,
                    root,
                    num_parts,
                    edge_dir="in" if strategy == "by_dst" else "out",
                    probs=jobs.make_probs(graph.num_nodes, num_parts),
                    cache_ratio=0.1,
                )
            partitioner.partition()
            made[key] = root
        return made[key]

    return folder_of


@pytest.fixture(scope="session")
def twin_root(tmp_path_factory):
    """Returns twin_root(graph, num_parts, kind, strategy): a partitioning of a graph of `twins`."""
    return twins.partitions_in(tmp_path_factory.mktemp("twins"))


@pytest.fixture
def two_hosts():
    """Two network namespaces joined by a cable: prefixes of commands, and the first's address."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"khop-{os.getpid()}-{i}" for i in (0, 1)]
    cable = [f"kh{os.getpid() % 100000}{i}" for i in "ab"]
    addresses = ["10.213.77.1", "10.213.77.2"]

    def ip(*words, check=True):
        return subprocess.run(["ip", *words], check=check, capture_output=True)

    if ip("netns", "add", names[0], check=False).returncode != 0:
        pytest.skip("this system does not allow network namespaces")
    try:
        ip("netns", "add", names[1])
        ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for name, end, address in zip(names, cable, addresses, strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name] for name in names], addresses[0]
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch, tmp_path_factory):
    """After each test: no process of khop, no shared memory and no socket that was not there."""
    tmp_path_factory.getbasetemp()  # is made where temporary files go before that changes
    with tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield from _check_what_is_left()


def _check_what_is_left():
    before = jobs.resources()
    yield
    shutdown_worker_group()
    assert jobs.wait_for_end_of_resources(before) == (set(), 0, set())
