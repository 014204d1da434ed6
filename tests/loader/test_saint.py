"""GraphSAINT in memory: the draws and norms of plain Python, and the paper's laws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import to_undirected

from khop.loader import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
)
from support.loaders import random_graphs
from support.reference import oracle, saint

GRAPH = random_graphs.homogeneous(40, 160)  # parallel edges, loops, isolated nodes
ROWS = saint.rows_of(GRAPH.edge_index[1], GRAPH.edge_index[0], 40)  # out-neighbours

SAMPLERS = {
    "node": (GraphSAINTNodeSampler, {}, lambda place: saint.sources_of(ROWS, 6, place)),
    "edge": (GraphSAINTEdgeSampler, {}, lambda place: saint.walks_of(ROWS, 6, 1, place)),
    "walk": (
        GraphSAINTRandomWalkSampler,
        {"walk_length": 3},
        lambda place: saint.walks_of(ROWS, 6, 3, place),
    ),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_batches_are_those_of_plain_python(kind):
    make, options, draw = SAMPLERS[kind]
    loader = make(GRAPH, 6, **options, num_steps=4, seed=3)
    assert len(loader) == 4
    for epoch in range(2):
        for number, batch in enumerate(loader):
            nodes = draw((oracle.run_key(3, epoch, 0), number))
            assert batch.n_id.tolist() == nodes
            assert torch.equal(batch.x, GRAPH.x[batch.n_id])
            induced = GRAPH.subgraph(batch.n_id)
            assert sorted(batch.e_id.tolist()) == sorted(induced.edge_attr.view(-1).tolist())
            assert torch.equal(batch.n_id[batch.edge_index], GRAPH.edge_index[:, batch.e_id])
            assert (batch.edge_index[0].diff() >= 0).all()  # sorted by source, as PyG's are
            assert "node_norm" not in batch


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("coverage", [1, 7])
def test_norms_are_those_of_plain_python(kind, coverage):
    make, options, draw = SAMPLERS[kind]
    loader = make(GRAPH, 6, **options, sample_coverage=coverage, log=False, seed=3, stream=4)
    want = saint.norms(GRAPH, draw, coverage, 3)
    assert torch.equal(loader.node_norm, torch.tensor(want.node, dtype=torch.float64).float())
    assert torch.equal(loader.edge_norm, torch.tensor(want.edge, dtype=torch.float64).float())
    (batch,) = loader
    assert torch.equal(batch.node_norm, loader.node_norm[batch.n_id])
    assert torch.equal(batch.edge_norm, loader.edge_norm[batch.e_id])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 5))
def test_walks_of_any_graph(seed, size, length):
    rng = np.random.default_rng(seed)
    edges = torch.from_numpy(rng.integers(0, size, (2, rng.integers(0, 12))))
    data = Data(edge_index=edges, num_nodes=size)
    rows = saint.rows_of(edges[1], edges[0], size)
    (batch,) = GraphSAINTRandomWalkSampler(data, 4, length, seed=seed)
    want = saint.walks_of(rows, 4, length, (oracle.run_key(seed, 0, 0), 0))
    assert batch.n_id.tolist() == want


@pytest.fixture(scope="module")
def undirected():
    """14 nodes, each with a neighbour, of degrees from 1 to 9."""
    star = torch.stack([torch.zeros(9, dtype=torch.long), torch.arange(1, 10)])
    path = torch.stack([torch.arange(5, 13), torch.arange(6, 14)])
    return Data(edge_index=to_undirected(torch.cat([star, path], 1)), num_nodes=14)


def test_edges_have_the_papers_law(undirected):
    """P(u, v) is proportional to 1 / d_u + 1 / d_v."""
    degree = undirected.edge_index[0].bincount().double()
    u, v = undirected.edge_index[:, undirected.edge_index[0] < undirected.edge_index[1]]
    count = 4000
    loader = GraphSAINTEdgeSampler(undirected, 1, count, seed=1)
    seen = {}
    for batch in loader:
        seen[tuple(batch.n_id.tolist())] = seen.get(tuple(batch.n_id.tolist()), 0) + 1
    observed = [seen.pop(pair, 0) for pair in zip(u.tolist(), v.tolist(), strict=True)]
    assert not seen
    expected = (1 / degree[u] + 1 / degree[v]) / 14 * count
    assert stats.chisquare(observed, expected.numpy()).pvalue > 1e-4


def test_nodes_are_sources_of_uniform_edges(undirected):
    count = 4000
    loader = GraphSAINTNodeSampler(undirected, 1, count, seed=1)
    observed = torch.cat([batch.n_id for batch in loader]).bincount(minlength=14)
    expected = undirected.edge_index[0].bincount().double()
    expected *= count / expected.sum()
    assert stats.chisquare(observed.numpy(), expected.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("kind", SAMPLERS)
def test_losses_are_unbiased(undirected, kind):
    """The sum of `node_norm` over a batch has mean 1; messages over `edge_norm` the row's mean."""
    make, options, _ = SAMPLERS[kind]
    given = {**options, "num_steps": 300, "sample_coverage": 600, "log": False, "seed": 2}
    loader = make(undirected, 2, **given)
    batches = list(loader)
    sums = torch.tensor([batch.node_norm.sum() for batch in batches])
    assert abs(sums.mean() - 1) < 3 * sums.std() / len(sums) ** 0.5
    # Of each edge (u, v): the mean of edge_norm over the batches that have v, without it 0.
    total, count = torch.zeros(undirected.num_edges), torch.zeros(14)
    for batch in batches:
        total[batch.e_id] += batch.edge_norm
        count[batch.n_id] += 1
    means = total / count[undirected.edge_index[1]]
    often = count[undirected.edge_index[1]] > 50
    assert abs(means[often].mean() - 1) < 0.1


def test_norms_are_kept(tmp_path, monkeypatch):
    def make(data=GRAPH, length=3, **options):
        given = {"sample_coverage": 5, "save_dir": str(tmp_path), "log": False, **options}
        return GraphSAINTRandomWalkSampler(data, 6, length, **given)

    first = make(seed=1)
    (path,) = tmp_path.iterdir()
    assert path.name == "graphsaintrandomwalksampler_3_5.pt"  # as PyG calls it
    with monkeypatch.context() as patch:
        patch.setattr(GraphSAINTRandomWalkSampler, "_counted", None)
        again = make(seed=2)
        assert torch.equal(first.node_norm, again.node_norm)
        assert torch.equal(first.edge_norm, again.edge_norm)
    with pytest.raises(ValueError, match="another graph, or to other options: remove it"):
        make(random_graphs.homogeneous(40, 160, seed=1))
    whole = path.read_bytes()
    torch.save((first.node_norm, first.edge_norm), path)  # PyG's form
    with pytest.raises(ValueError, match=r"is no file of khop's loaders.*: remove it"):
        make()
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match="is no file of khop's loaders"):
        make()
    for damaged in (whole[:-1], whole.replace(b"<f4", b"<f8"), whole.replace(b"(160,)", b"(1,)  ")):
        assert damaged != whole
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is damaged.*: remove it"):
            make()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": HeteroData()}, TypeError, "takes a homogeneous graph"),
        ({"data": Data(num_nodes=0)}, ValueError, "the graph has none"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"num_steps": 0}, ValueError, "num_steps must be at least 1"),
        ({"walk_length": 0}, ValueError, "walk_length must be an integer from 1"),
        ({"walk_length": 1001}, ValueError, "walk_length must be an integer from 1"),
        ({"sample_coverage": -1}, ValueError, "sample_coverage must be a number"),
        ({"batch_sampler": [[0]]}, TypeError, "draws its nodes by itself"),
        ({"replace": True}, TypeError, "has no arguments"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        GraphSAINTRandomWalkSampler(
            **{"data": GRAPH, "batch_size": 2, "walk_length": 2, **arguments}
        )


def test_sources_need_edges():
    with pytest.raises(ValueError, match="draws edges, but the graph has none"):
        GraphSAINTNodeSampler(Data(num_nodes=3, edge_index=torch.empty(2, 0).long()), 2)
