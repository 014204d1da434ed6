"""Partitioned graphs, jobs of several trainers, and the check that nothing is left behind."""

import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import jobs

from khop.distributed import shutdown_worker_group
from khop.partition import FrequencyPartitioner, RandomPartitioner


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
                partitioner = RandomPartitioner.from_data(graph, root, num_parts, strategy)
            else:
                partitioner = FrequencyPartitioner.from_data(
                    graph,
                    root,
                    num_parts,
                    strategy,
                    probs=jobs.make_probs(graph.num_nodes, num_parts),
                    cache_ratio=0.1,
                )
            partitioner.partition()
            made[key] = root
        return made[key]

    return folder_of


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
    left = jobs.wait_for_resources(before)
    assert left == before
