"""Peers: who is here, that they draw what they are asked for, and that nothing stays switched."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import torch
import torch_geometric.typing
from torch_geometric.data import Data, HeteroData

from khop.data import Graph, Topology
from khop_bench import peers as module
from khop_bench.kernels import KhopKernel, as_columns, one_thread
from khop_bench.peers import HeteroKernels, Peers, pyg_kernel, tensors_of, touch


def test_a_peer_that_is_not_there_is_left_out_with_a_line(monkeypatch):
    # None in sys.modules makes an import fail as if the package were not installed.
    for name in ("pyg_lib", "torch_sparse", "graphlearn_torch", "dgl", "dgl.graphbolt"):
        monkeypatch.setitem(sys.modules, name, None)
    found = Peers()
    assert found.versions == {}
    assert found.pyg_kernels == []
    assert [line.split(" is left out: ")[0] for line in found.left_out] == list(module.PEERS)
    assert "GLT" not in found


def test_a_peer_that_does_not_fit_is_left_out(monkeypatch, tmp_path):
    (tmp_path / "graphlearn_torch.py").write_text("raise OSError('undefined symbol: x\\nmore')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "graphlearn_torch", raising=False)
    importlib.invalidate_caches()
    assert "GLT is left out: OSError: undefined symbol: x" in Peers().left_out


@pytest.mark.parametrize("before", [True, False])
def test_the_kernel_of_pyg_is_switched_for_a_while(monkeypatch, before):
    monkeypatch.setattr(torch_geometric.typing, "WITH_PYG_LIB", before)
    with pytest.raises(KeyError), pyg_kernel("torch-sparse"):
        assert not torch_geometric.typing.WITH_PYG_LIB
        raise KeyError
    assert torch_geometric.typing.WITH_PYG_LIB is before
    with pyg_kernel("pyg-lib"):
        assert torch_geometric.typing.WITH_PYG_LIB
    assert torch_geometric.typing.WITH_PYG_LIB is before


def test_all_tensors_of_a_batch_are_touched():
    data = Data(x=torch.zeros(3, 2), y=torch.zeros(3, dtype=torch.bool), edge_index=None)
    assert touch(data) == 24 + 3
    hetero = HeteroData()
    hetero["a"].x = torch.zeros(4, 1, dtype=torch.float16)
    hetero["a", "to", "a"].edge_index = torch.zeros(2, 5, dtype=torch.int64)
    assert touch(hetero) == 8 + 80
    parts = [torch.zeros(1), {"k": (torch.zeros(0), None)}, "text"]
    assert len(list(tensors_of(parts))) == 2
    assert touch(torch.zeros(4, 3).t()) == 48  # not contiguous


def test_one_thread_is_given_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def _topology(power_law, **options):
    edges = power_law(200, 3000)
    return edges, Topology(edges, num_src=200, num_dst=200, **options)


def test_khop_writes_whole_batches_to_arrays_that_it_keeps(power_law):
    """Every edge that is written is one of the graph, as its place says."""
    _, topology = _topology(power_law)
    kernel = KhopKernel(Graph(topology), [5, 3])
    for number in (0, 1):
        seeds = np.arange(10 * number, 10 * number + 10)
        count = kernel.draw(seeds, None, number)
        nodes, edges = kernel.written(0)
        assert len(edges) == count
        row, col = (kernel._arrays[name][:count] for name in ("row0", "col0"))
        assert nodes[:10].tolist() == seeds.tolist()
        np.testing.assert_array_equal(topology.indices[edges], nodes[row])
        owner = np.repeat(np.arange(200), np.diff(topology.indptr))
        np.testing.assert_array_equal(owner[edges], nodes[col])
        np.testing.assert_array_equal(kernel.nodes(seeds, number), nodes)


@pytest.mark.parametrize("disjoint", [False, True])
def test_the_floor_is_told_what_khop_draws(power_law, disjoint):
    """Rows in the order in which they were expanded, each with its edges, one after the other."""
    _, topology = _topology(power_law)
    kernel = KhopKernel(Graph(topology), [5, 3], disjoint=disjoint)
    seeds = np.arange(20, 40)
    rows, counts, edges, num_nodes = kernel.drawn(seeds, None, 3)
    assert kernel.draw(seeds, None, 3) == len(edges) == counts.sum()
    assert rows[:20].tolist() == seeds.tolist()
    assert len(rows) == len(counts) <= num_nodes
    degrees = np.diff(topology.indptr)[rows]
    np.testing.assert_array_equal(counts[:20], np.minimum(degrees[:20], 5))
    np.testing.assert_array_equal(counts[20:], np.minimum(degrees[20:], 3))
    begin = topology.indptr[np.repeat(rows, counts)]
    assert (edges >= begin).all()
    assert (edges < begin + np.repeat(degrees, counts)).all()


def test_kernels_of_peers_draw_as_many_edges(power_law):
    """With fan-outs above all degrees every kernel draws all edges."""
    found = Peers()
    if not found.pyg_kernels:
        pytest.skip("neither pyg-lib nor torch-sparse")
    edges, topology = _topology(power_law)
    seeds = torch.arange(200)
    data = HeteroData()
    data["a"].num_nodes = 200
    columns = as_columns(topology)
    both = HeteroKernels(data, {("a", "to", "a"): columns}, [3000], "a")
    if "pyg-lib" in found:
        weights = torch.ones(edges.shape[1])
        times = torch.zeros(200, dtype=torch.int64)
        for options in ({}, {"node_time": times}, {"edge_weight": weights}, {"disjoint": True}):
            draw = module.pyg_lib_kernel(*columns, [3000], **options)
            assert draw(seeds) == 3000
        assert both.draw_by_pyg_lib(seeds) == 3000
    if "torch-sparse" in found:
        assert module.torch_sparse_kernel(*columns, [3000])(seeds) == 3000
        assert both.draw_by_torch_sparse(seeds) == 3000
