"""Synthetic graphs: exact sizes, one graph whatever the chunks, degrees as asked for."""

import hashlib
import math
import tracemalloc

import numpy as np
import pytest
import torch

from khop.datasets import PowerLaw
from khop.datasets.powerlaw import _Permutation


def _edges(graph, chunk_size=2**18):
    return np.concatenate([np.empty((2, 0), np.int64), *graph.iter_edges(chunk_size)], axis=1)


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize(("num_nodes", "num_edges"), [(2, 10), (3, 0), (100, 2), (1000, 70_000)])
def test_number_and_range_of_edges_is_exact(num_nodes, num_edges, undirected):
    edges = _edges(PowerLaw(num_nodes, num_edges, undirected=undirected))
    assert edges.shape == (2, num_edges)
    assert edges.dtype == np.int64
    assert ((edges >= 0) & (edges < num_nodes)).all()
    assert (edges[0] != edges[1]).all()


def test_undirected_edges_come_in_pairs():
    edges = _edges(PowerLaw(500, 70_000, undirected=True))
    np.testing.assert_array_equal(edges[:, 0::2], edges[::-1, 1::2])
    # Which end comes first is left to chance.
    assert 0.45 < (edges[0, 0::2] < edges[1, 0::2]).mean() < 0.55


@pytest.mark.parametrize("undirected", [False, True])
def test_chunks_do_not_change_the_edges(undirected):
    """150,000 edges are several blocks of the generator; chunks cut within and across them."""
    graph = PowerLaw(1000, 150_000, undirected=undirected)
    whole = _edges(graph, 150_000)
    for size in (999, 32_768, 100_000, 10**9):
        chunks = list(graph.iter_edges(size))
        assert [c.shape[1] for c in chunks[:-1]] == [size] * (150_000 // size)
        np.testing.assert_array_equal(np.concatenate(chunks, axis=1), whole)


def test_equal_arguments_make_equal_graphs():
    graph = PowerLaw(1000, 5000, seed=3)
    np.testing.assert_array_equal(_edges(graph), _edges(PowerLaw(1000, 5000, seed=3)))
    assert graph == PowerLaw(1000, 5000, seed=3)
    assert (_edges(graph) != _edges(PowerLaw(1000, 5000, seed=4))).any()


def test_the_graph_is_the_same_on_every_machine():
    graph = PowerLaw(5000, 80_000, undirected=True, num_features=3, num_classes=7)
    data = graph.data()
    digest = hashlib.sha256(_edges(graph).astype("<i8").tobytes())
    digest.update(data.x.numpy().astype("<f4").tobytes())
    digest.update(data.y.numpy().astype("<i8").tobytes())
    digest.update(data.train_mask.numpy().tobytes())
    assert digest.hexdigest()[:16] == "fd20211cb0cbdc78"


def test_blocks_differ():
    """No block of edges or nodes repeats another one."""
    edges = _edges(PowerLaw(10**6, 2 * 32_768))
    assert (edges[:, :32_768] != edges[:, 32_768:]).mean() > 0.99
    x = PowerLaw(2 * 4096, 10, num_features=1).data().x
    assert (x[:4096] != x[4096:]).float().mean() > 0.99


def test_degrees_have_the_shape_of_products():
    graph = PowerLaw.products(0.02)
    degree = np.bincount(_edges(graph)[1], minlength=graph.num_nodes)
    assert degree.mean() == pytest.approx(50.5, abs=0.05)
    assert np.median(degree) == pytest.approx(22, abs=1)
    assert degree.max() == pytest.approx(math.isqrt(5 * graph.num_edges), rel=0.1)
    # A Poisson spread alone would put the 99th percentile at 70.
    assert np.percentile(degree, 99) > 300


def test_products_at_full_size_has_its_published_counts():
    graph = PowerLaw.products()
    assert (graph.num_nodes, graph.num_edges) == (2_449_029, 123_718_280)
    assert (graph.num_features, graph.num_classes, graph.undirected) == (100, 47, True)


@pytest.mark.parametrize("max_degree", [60, 200, 2000])
def test_maximum_is_as_asked_for(max_degree):
    """The heaviest node's degree is Poisson: within 5 standard deviations, other nodes' also."""
    degree = np.bincount(_edges(PowerLaw(10_000, 200_000, max_degree=max_degree))[1])
    assert abs(degree.max() - max_degree) < 5 * math.sqrt(max_degree)


def test_a_larger_exponent_has_a_lighter_tail():
    def median(exponent):
        graph = PowerLaw(20_000, 200_000, exponent=exponent)
        return np.median(np.bincount(_edges(graph)[1], minlength=graph.num_nodes))

    assert median(2.2) < median(3) < median(6)


def test_expected_in_and_out_degree_are_the_same():
    source, destination = _edges(PowerLaw(2000, 200_000))
    out_degree, in_degree = np.bincount(source), np.bincount(destination)
    assert np.corrcoef(out_degree, in_degree)[0, 1] > 0.99


def test_heavy_nodes_are_spread_over_the_ids():
    degree = np.bincount(_edges(PowerLaw(20_000, 300_000))[1], minlength=20_000)
    heavy = np.argsort(degree)[-1000:]
    counts = np.bincount(heavy // 2000, minlength=10)
    assert counts.min() > 60
    assert counts.max() < 140


@pytest.mark.parametrize("size", [2, 3, 4, 5, 64, 65, 1000, 4097])
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_permutation_is_one(size, seed):
    image = _Permutation(size, seed)(np.arange(size))
    np.testing.assert_array_equal(np.sort(image), np.arange(size))


def test_node_values():
    data = PowerLaw(20_000, 10, num_features=5, num_classes=4, train_fraction=0.3).data()
    assert data.x.dtype == torch.float32
    assert data.x.shape == (20_000, 5)
    assert data.x.min() >= -1
    assert data.x.max() < 1
    assert data.x.mean().abs() < 0.01
    assert data.y.bincount().tolist() == pytest.approx([5000] * 4, abs=5 * 61)
    assert data.train_mask.sum().item() == pytest.approx(6000, abs=5 * 65)


def test_node_values_are_not_there_unless_asked_for():
    data = PowerLaw(10, 20).data()
    assert set(data.keys()) == {"edge_index", "num_nodes", "train_mask"}
    assert data.num_nodes == 10


@pytest.mark.parametrize(("fraction", "count"), [(0, 0), (1, 5000)])
def test_train_fraction_at_its_bounds(fraction, count):
    assert PowerLaw(5000, 0, train_fraction=fraction).data().train_mask.sum() == count


def test_written_files_hold_the_same_graph(tmp_path):
    graph = PowerLaw(10_000, 300_001, num_features=3, num_classes=2)
    graph.write(tmp_path / "graph")
    data = graph.data()
    written = {p.stem: np.load(p, allow_pickle=False) for p in (tmp_path / "graph").iterdir()}
    assert written["edge_index"].dtype == np.int32
    assert set(written) == {"edge_index", "x", "y", "train_mask"}
    for name, array in written.items():
        np.testing.assert_array_equal(array, data[name].numpy())
    for name in ("x", "y", "train_mask"):
        assert written[name].dtype == data[name].numpy().dtype


def test_a_graph_without_edges_can_be_written(tmp_path):
    PowerLaw(5, 0).write(tmp_path)
    assert np.load(tmp_path / "edge_index.npy").shape == (2, 0)
    assert np.load(tmp_path / "train_mask.npy").shape == (5,)


def test_nothing_is_overwritten(tmp_path):
    PowerLaw(5, 10).write(tmp_path / "graph")
    with pytest.raises(FileExistsError, match="not empty"):
        PowerLaw(5, 10).write(tmp_path / "graph")


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(PowerLaw, "_node_block", fail)
    with pytest.raises(OSError, match="disk full"):
        PowerLaw(5, 10).write(tmp_path / "graph")
    assert not list(tmp_path.iterdir())


def test_writing_holds_a_small_part_of_the_graph(tmp_path):
    """4 M edges are 64 MB as int64, and the features 40 MB; blocks and chunks are a few MB."""
    graph = PowerLaw(100_000, 4_000_000, undirected=True, num_features=100)
    tracemalloc.start()
    try:
        graph.write(tmp_path / "graph")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": 1}, "num_nodes must be"),
        ({"num_nodes": 2**40 + 1}, "num_nodes must be"),
        ({"num_edges": -1}, "num_edges must be"),
        ({"num_edges": 7, "undirected": True}, r"even in an undirected graph \(got 7\)"),
        ({"exponent": 2.0}, "exponent must be above 2"),
        ({"exponent": math.nan}, "exponent must be above 2"),
        ({"max_degree": 2}, "at least 2.5 times the mean"),
        ({"num_features": -1}, "num_features must be"),
        ({"num_classes": -1}, "num_classes must be"),
        ({"train_fraction": 1.5}, r"in 0 ... 1 \(got 1.5\)"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        PowerLaw(**{"num_nodes": 10, "num_edges": 20, **arguments})


def test_chunk_size_is_checked_at_once():
    with pytest.raises(ValueError, match="chunk_size must be 1 or more"):
        PowerLaw(10, 20).iter_edges(0)
