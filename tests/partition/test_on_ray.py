"""Partitioning on the machines of a Ray cluster: the folder of one machine, bit for bit.

The cluster is two node processes of this machine. What tasks run is tested without Ray in
`test_elsewhere.py`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import khop
from khop.cli.main import main
from khop.errors import TaskDiedError
from khop.partition import GraphSource, verify_folder
from khop.partition.out_of_core import on_ray
from khop.partition.writing import rows
from support import ray_cluster
from support.cut_graphs import CASES, files_of, graph
from support.held_features import DeadlyFeature, FaultyFeature, HeldFeature


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster.started() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def session(cluster):
    """A session of the user's own, whose processes serve one test after the other."""
    import ray

    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False)
    return ray


@pytest.mark.parametrize("case", CASES)
def test_the_folder_is_that_of_one_machine(tmp_path, case):
    """`memory` is so small that there are many pieces and blocks."""
    make, options = CASES[case]
    source = make()
    khop.partition_graph(source, tmp_path / "whole", 3, **options)
    khop.partition_graph(source, tmp_path / "ray", 3, on="ray", memory="10KB", **options)
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ray", "whole"]


def test_small_memory_makes_many_tasks(tmp_path, monkeypatch, session):
    """What the test above relies on. The user's own session goes on."""
    told, bounds = [], []
    cut = rows.block_bounds
    monkeypatch.setattr(rows, "block_bounds", lambda *args: bounds.append(cut(*args)) or bounds[0])
    khop.partition_graph(
        graph(200, 2000),
        tmp_path / "f",
        2,
        on="ray",
        memory="10KB",
        jobs=3,
        progress=lambda what, done, total: told.append((what, total)),
    )
    assert session.is_initialized()
    assert dict(told)["splitting edges of type ('node', 'to', 'node')"] >= 3
    assert len(bounds[0]) > 6


def test_the_command(tmp_path, capfd, session):
    """Mapped files: each task reads its share. The folder is cut again, from its own files."""
    session.shutdown()
    rng = np.random.default_rng(0)
    (tmp_path / "graph").mkdir()
    np.save(tmp_path / "graph/edge_index.npy", rng.integers(50, size=(2, 400)))
    np.save(tmp_path / "graph/x.npy", rng.random((50, 3), np.float32))
    np.save(tmp_path / "graph/edge_w.npy", rng.random(400))
    for name, further in (("whole", []), ("ray", ["--on", "ray", "--memory", "10KB"])):
        words = [str(tmp_path / "graph"), str(tmp_path / name), "--weight-attr", "edge_w"]
        assert main(["partition", *words, "--num-parts", "2", *further]) == 0
        again = [str(tmp_path / name), str(tmp_path / f"{name}-3"), "--num-parts", "3"]
        assert main(["repartition", *again, *further]) == 0
    assert capfd.readouterr().err == ""
    assert not session.is_initialized()
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "whole")
    assert files_of(tmp_path / "ray-3") == files_of(tmp_path / "whole-3")


def large(edge_attr=None, x=None):
    """A graph of which a block of a piece is too large for Ray to keep with the process's own."""
    rng = np.random.default_rng(2)
    source = GraphSource.from_arrays(
        5000,
        rng.integers(5000, size=(2, 300_000)),
        {"x": rng.random((5000, 4))},
        {"w": rng.random(300_000)},
    )
    for holder, attr in (
        (source.nodes["node"], x),
        (source.edges["node", "to", "node"], edge_attr),
    ):
        if attr is not None:
            (name,) = holder.attrs
            holder.attrs[name] = attr(holder.attrs[name].array)
    return source


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """Files of the folder of `large` in 3 parts."""
    root = tmp_path_factory.mktemp("wanted") / "f"
    khop.partition_graph(large(), root, 3)
    return files_of(root)


def kill_reporter(report: Path, killed: list[str]):
    """Waits for the report of a process, and kills it: a worker of Ray's."""
    while not (report.exists() and report.read_text().endswith("\n")):
        time.sleep(0.01)
    pid = int(report.read_text())
    killed.append(Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(pid, signal.SIGKILL)


@pytest.mark.fault
@pytest.mark.parametrize(("held", "task"), [("edge_attr", "khop split"), ("x", "khop write")])
def test_a_worker_is_killed_in_the_middle(tmp_path, wanted, held, task):
    """Its task is run again."""
    report, killed = tmp_path / "report", []
    killer = threading.Thread(target=kill_reporter, args=(report, killed), daemon=True)
    killer.start()
    source = large(**{held: lambda values: HeldFeature(values, report)})
    khop.partition_graph(source, tmp_path / "f", 3, on="ray", memory="8MB")
    killer.join()
    assert [line.strip("\0") for line in killed] == [f"ray::{task}"]
    assert files_of(tmp_path / "f") == wanted


@pytest.mark.fault
def test_a_machine_is_lost_with_its_blocks(tmp_path, wanted, cluster):
    """What it had split is split again. The whole node is killed."""
    (node,) = cluster.worker_nodes

    def lose(what, done, total):
        if what.startswith("splitting") and done == total:
            cluster.remove_node(node, allow_graceful=False)

    try:
        khop.partition_graph(large(), tmp_path / "f", 3, on="ray", memory="8MB", progress=lose)
    finally:
        ray_cluster.add_node(cluster)
    assert files_of(tmp_path / "f") == wanted
    assert verify_folder(tmp_path / "f") == []


@pytest.mark.fault
def test_a_task_that_ends_its_process_each_time(tmp_path):
    source = large(x=DeadlyFeature)
    with pytest.raises(TaskDiedError, match=r"more often than Ray runs it again \(WorkerCrashed"):
        khop.partition_graph(source, tmp_path / "f", 3, on="ray")
    assert list(tmp_path.iterdir()) == []


def bad_edge():
    return GraphSource.from_arrays(4, np.array([[0, 1], [1, 9]]))


def endless_weights():
    return GraphSource.from_arrays(
        4, np.zeros((2, 3), int), edge_attrs={"weight": np.full(3, 1e308)}
    )


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (bad_edge, {}, IndexError, r"edge_index of edge type .*: edge 1 joins node"),
        (endless_weights, {"weight_attr": "weight"}, ValueError, "^weights of edge type .*, part"),
        (lambda: large(x=FaultyFeature), {}, ValueError, "^row 5 is no number$"),
        (lambda: large(edge_attr=FaultyFeature), {}, ValueError, "^row 5 is no number$"),
    ],
)
def test_what_a_task_raises_is_raised_and_nothing_stays(tmp_path, make, options, error, message):
    with pytest.raises(error, match=message):
        khop.partition_graph(make(), tmp_path / "f", 2, on="ray", **options)
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_khop_on_a_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "__version__", "0.0.1")
    with pytest.raises(RuntimeError, match=r"machine .* has khop .*, but .* started by 0\.0\.1"):
        khop.partition_graph(graph(), tmp_path / "f", 2, on="ray")
