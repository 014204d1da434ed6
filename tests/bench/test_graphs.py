"""The cache of graphs: what is in it is whole, and made once."""

from __future__ import annotations

import fcntl
import threading

import numpy as np
import pytest
import torch

from khop.datasets import PowerLaw, PowerLawHetero
from khop.partition import PartitionFolder, verify_folder
from khop_bench.graphs import Graphs, SeedOrder, edge_weights, node_times

SCALE = 0.0005


@pytest.fixture
def said():
    return []


@pytest.fixture
def graphs(tmp_path, said):
    return Graphs(tmp_path, SCALE, said.append)


def names(folder):
    """Names in the cache, locks apart."""
    return sorted(
        p.name for p in folder.rglob("*") if p.parent.name == "v1" and p.suffix != ".lock"
    )


def test_graphs_are_those_of_the_generators(graphs):
    data, made = graphs.products(), PowerLaw.products(SCALE).data()
    assert set(data.keys()) == set(made.keys())
    for name in ("edge_index", "x", "y", "train_mask"):
        assert torch.equal(data[name], made[name])
        assert data[name].dtype == made[name].dtype
    academic, made = graphs.academic(), PowerLawHetero.academic(SCALE).data()
    assert academic.num_nodes_dict == made.num_nodes_dict
    for edge_type, pair in made.edge_index_dict.items():
        assert torch.equal(academic[edge_type].edge_index, pair)
    assert set(graphs.products(with_features=False).keys()) == {
        *("edge_index", "num_nodes", "train_mask")
    }


def test_existing_graph_is_reused(graphs, tmp_path, said):
    graphs.products()
    (folder,) = (tmp_path / "v1").glob("products*")
    before = (folder / "x.npy").stat().st_mtime_ns
    assert said == [f"making {folder}"]
    Graphs(tmp_path, SCALE, said.append).products()
    assert (folder / "x.npy").stat().st_mtime_ns == before
    assert len(said) == 1
    graphs.at(SCALE * 2).products()
    assert len(said) == 2


def test_partition_folders_are_sound(graphs, tmp_path):
    folder = graphs.products_parts(2)
    assert PartitionFolder(folder).num_parts == 2
    assert verify_folder(folder) == []
    assert names(tmp_path) == ["products-scale0.0005", "products-scale0.0005-parts2"]


def test_a_failed_making_leaves_nothing(graphs, tmp_path, monkeypatch):
    def fail(graph, folder):
        folder.mkdir()
        (folder / "half.npy").write_bytes(b"x")
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(PowerLaw, "write", fail)
        with pytest.raises(OSError, match="no space left"):
            graphs.products()
    assert names(tmp_path) == []
    assert graphs.products().num_nodes > 0


@pytest.mark.parametrize("name", [f"products-scale{SCALE:g}", "something-else0.5"])
def test_leftovers_of_a_killed_run_are_removed(graphs, tmp_path, name):
    left = tmp_path / "v1" / f".{name}.unfinished"
    left.mkdir(parents=True)
    (left / "half.npy").write_bytes(b"x")
    graphs.products()
    assert names(tmp_path) == [f"products-scale{SCALE:g}"]


def test_graph_in_the_making_by_another_run_is_kept(graphs, tmp_path):
    busy = tmp_path / "v1" / ".something-else.unfinished"
    busy.mkdir(parents=True)
    with busy.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        graphs.products()
        assert busy.is_dir()


def test_two_runs_make_one_graph(tmp_path, said):
    threads = [
        threading.Thread(target=Graphs(tmp_path, SCALE, said.append).products) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 1


def test_seeds_come_in_batches_that_every_case_shares():
    order = SeedOrder(torch.arange(100, 200), 30)
    first, second = order.of_turn(0, 2), order.of_turn(1, 2)
    assert [number for number, _ in first + second] == [0, 1, 2, 3]
    drawn = torch.cat([batch for _, batch in first + second[:1]])
    assert len(drawn.unique()) == 90  # 10 are left out: they make no whole batch
    assert ((drawn >= 100) & (drawn < 200)).all()
    assert torch.equal(second[1][1], first[0][1])  # they start over
    assert torch.equal(order.epoch(2), torch.cat([batch for _, batch in first]))
    again = SeedOrder(torch.arange(100, 200), 30)
    assert torch.equal(again.epoch(4), order.epoch(4))
    assert SeedOrder(torch.arange(5), 30).batch_size == 5


def test_weights_and_times_are_reproducible():
    assert torch.equal(edge_weights(50), edge_weights(50))
    assert (edge_weights(50) > 0).all()
    times = node_times(1000).numpy()
    assert np.array_equal(times, node_times(1000).numpy())
    assert times.min() >= 0
