"""`adj_t` in place of `edge_index`: the same draws, in batches with an `adj_t` of the same kind."""

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv
from torch_geometric.transforms import ToSparseTensor

from khop.loader import NeighborLoader

KINDS = ("SparseTensor", torch.sparse_csr, torch.sparse_coo)


def to_sparse(data, kind, **options):
    """The graph with `adj_t`, whose values are `edge_weight`."""
    if kind == "SparseTensor":
        pytest.importorskip("torch_sparse")
        return ToSparseTensor(**options)(data)
    return ToSparseTensor(layout=kind, **options)(data)


def entries(adj_t):
    """(row, column, value) of each entry, in its order."""
    if hasattr(adj_t, "storage") and not isinstance(adj_t, torch.Tensor):
        row, col, value = adj_t.coo()
    else:
        adj_t = adj_t.to_sparse_coo()
        (row, col), value = adj_t._indices(), adj_t._values()
    value = torch.zeros(len(row)) if value is None else value
    return list(zip(row.tolist(), col.tolist(), value.tolist(), strict=True))


def simple_graph(data):
    """The graph without parallel edges, which torch's matrices add up; weights are ids."""
    data.edge_index = data.edge_index[:, : 1600 - 1600 % 2].unique(dim=1)
    count = data.edge_index.size(1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    data.edge_index = data.edge_index[:, order]
    data.edge_weight = torch.arange(count, dtype=torch.float32)
    data.edge_attr = torch.arange(count)
    return data


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("fanouts", [[3, 2], [-1, -1]])
def test_homogeneous(data, kind, fanouts):
    """Equal to the loader of the edge list, in the order of the matrix; values go with edges."""
    plain = simple_graph(data)
    sparse = to_sparse(plain.clone(), kind)
    assert "edge_index" not in sparse and "edge_weight" not in sparse
    listed = plain.clone()  # by destination, then source: the order of entries
    order = (plain.edge_index[1] * 200 + plain.edge_index[0]).argsort()
    listed.edge_index, listed.edge_weight = plain.edge_index[:, order], plain.edge_weight[order]
    listed.edge_attr = plain.edge_attr[order]
    options = {"batch_size": 32, "seed": 3, "shuffle": True}
    loaders = NeighborLoader(sparse, fanouts, **options), NeighborLoader(listed, fanouts, **options)
    for a, b in zip(*loaders, strict=True):
        assert set(a.keys()) - {"adj_t"} == set(b.keys()) - {"edge_index", "edge_weight"}
        for name in ("n_id", "e_id", "x", "y", "edge_attr", "input_id"):
            assert torch.equal(a[name], b[name]), name
        assert a.num_sampled_edges == b.num_sampled_edges
        assert type(a.adj_t) is type(sparse.adj_t)
        sizes = a.adj_t.sizes() if kind == "SparseTensor" else a.adj_t.shape
        assert list(sizes) == [a.num_nodes, a.num_nodes]
        wanted = zip(
            b.edge_index[1].tolist(), b.edge_index[0].tolist(), b.edge_weight.tolist(), strict=True
        )
        assert entries(a.adj_t) == sorted(wanted)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_heterogeneous(kind):
    """[num_dst, num_src] of the batch for each edge type, empty ones included."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["a"].x = torch.arange(30.0).view(-1, 1)
    data["b"].num_nodes = 20
    data["a", "to", "b"].edge_index = torch.randint(20, (2, 60), generator=generator).unique(dim=1)
    data["b", "to", "a"].edge_index = torch.randint(20, (2, 60), generator=generator).unique(dim=1)
    data["a", "never", "a"].edge_index = torch.empty((2, 0), dtype=torch.int64)
    options = {"input_nodes": ("a", torch.arange(25)), "batch_size": 8, "seed": 3}
    sparse = to_sparse(data.clone(), kind)
    listed = to_sparse(data.clone(), kind, remove_edge_index=False)  # in the matrix's order
    for edge_type in data.edge_types:
        del listed[edge_type].adj_t
    loaders = NeighborLoader(sparse, [2, -1], **options), NeighborLoader(listed, [2, -1], **options)
    for a, b in zip(*loaders, strict=True):
        for t in data.node_types:
            assert torch.equal(a[t].n_id, b[t].n_id)
        for t in data.edge_types:
            assert torch.equal(a[t].e_id, b[t].e_id)
            adj_t = a[t].adj_t
            sizes = adj_t.sizes() if kind == "SparseTensor" else list(adj_t.shape)
            assert list(sizes) == [a[t[2]].num_nodes, a[t[0]].num_nodes]
            ends = b[t].edge_index.flip(0).t().tolist()
            assert [[row, col] for row, col, _ in entries(adj_t)] == sorted(ends)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_layers_see_the_same_neighbours(data, kind):
    """A layer's output over `adj_t` equals that over `edge_index`."""
    plain = simple_graph(data)
    listed = to_sparse(plain.clone(), kind, remove_edge_index=False, attr=None)
    batch = next(iter(NeighborLoader(listed, [3, 3], batch_size=20, seed=1)))
    torch.manual_seed(0)
    layer = SAGEConv(5, 4)
    x = batch.x / 200
    assert torch.allclose(layer(x, batch.adj_t), layer(x, batch.edge_index), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_edges_that_are_drawn_twice(kind, aggr):
    """With replacement: an entry for each draw, so that sums and means weigh them."""
    if kind == torch.sparse_coo and aggr == "mean":
        pytest.skip("torch adds up entries of coordinate matrices, which then count once")
    data = Data(edge_index=torch.tensor([[1, 2], [0, 0]]), x=torch.tensor([[0.0], [1.0], [4.0]]))
    listed = to_sparse(data, kind, remove_edge_index=False)
    loader = NeighborLoader(listed, [5], [0], replace=True, seed=2)
    batch = next(iter(loader))
    assert batch.e_id.numel() == 5
    torch.manual_seed(0)
    layer = SAGEConv(1, 1, aggr=aggr)
    assert torch.allclose(layer(batch.x, batch.adj_t), layer(batch.x, batch.edge_index))


def test_values_of_several_columns():
    """Multi-dimensional values, which PyG puts into coordinate matrices."""
    data = Data(edge_index=torch.tensor([[1, 2, 0], [0, 0, 1]]), num_nodes=3)
    data.edge_weight = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    sparse = ToSparseTensor(layout=torch.sparse_coo)(data)
    batch = next(iter(NeighborLoader(sparse, [-1], [0])))
    assert batch.n_id.tolist() == [0, 1, 2]
    assert batch.adj_t._values().tolist() == [[1.0, 10.0], [2.0, 20.0]]
    assert batch.adj_t.shape == (3, 3, 2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_equal_to_pygs(data, num_workers):
    """PyG's own loader, of all neighbours: attribute for attribute, `adj_t` too."""
    pytest.importorskip("torch_sparse")
    sparse = to_sparse(simple_graph(data), "SparseTensor")
    options = {"batch_size": 32, "input_nodes": torch.arange(0, 200, 3)}
    ours = NeighborLoader(sparse, [-1, -1], num_workers=num_workers, **options)
    theirs = torch_geometric.loader.NeighborLoader(sparse, [-1, -1], **options)
    for a, b in zip(ours, theirs, strict=True):
        assert set(a.keys()) == set(b.keys()) | {"num_sampled_nodes", "num_sampled_edges"}
        for name in ("n_id", "e_id", "x", "y", "edge_attr", "input_id"):
            assert torch.equal(a[name], b[name]), name
        assert a.adj_t == b.adj_t


def test_bad_matrices(data):
    """Kinds that nothing makes, dense ones, and two that contradict each other."""
    graph = Data(x=data.x, adj_t=torch.eye(200))
    with pytest.raises(TypeError, match=r"'adj_t' of the data object must be .* 'torch.strided'"):
        NeighborLoader(graph, [2])
    graph.adj_t = torch.eye(200).to_sparse_csc()
    with pytest.raises(TypeError, match=r"torch.sparse_csc"):
        NeighborLoader(graph, [2])
    with pytest.raises(ValueError, match="transpose it into an 'adj_t'"):
        NeighborLoader(Data(x=data.x, adj=torch.eye(200).to_sparse_csr()), [2])
    graph.adj_t, graph.edge_index = torch.eye(200).to_sparse_csr(), data.edge_index
    with pytest.raises(ValueError, match="in another order"):
        NeighborLoader(graph, [2])
