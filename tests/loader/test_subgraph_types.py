"""Induced and bidirectional batches, and the enclosing subgraphs of seeds."""

import warnings

import networkx
import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GraphConv
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType

from khop.loader import NeighborLoader, SubGraphLoader
from khop.sampler import NeighborSampler
from support.loaders import random_graphs
from support.reference import walks

pytestmark = pytest.mark.filterwarnings("ignore:.* reverse:UserWarning")  # some types have none
HETERO = pytest.mark.parametrize("hetero", [False, True], ids=["homogeneous", "heterogeneous"])


def triples(batch, edge_type=None):
    store = walks.Stores(batch)(edge_type)
    return list(zip(*store.edge_index.tolist(), store.e_id.tolist(), strict=True))


def pairs(batch, edge_type=None):
    return list(zip(*walks.Stores(batch)(edge_type).edge_index.tolist(), strict=True))


def test_by_hand():
    """Edges 0 to 5; from node 0, one hop takes edges 0 and 1:

    0 <-0- 1    0 <-1- 2    1 <-2- 2    2 <-3- 0    3 <-4- 1    1 <-5- 2
    """
    data = Data(edge_index=torch.tensor([[1, 2, 2, 0, 1, 2], [0, 0, 1, 2, 3, 1]]), num_nodes=4)
    data.edge_attr = torch.arange(6) * 10
    wanted = {
        "directional": [(1, 0, 0), (2, 0, 1)],
        "bidirectional": [(1, 0, 0), (2, 0, 1), (0, 1, 0), (0, 2, 1)],
        "induced": [(1, 0, 0), (2, 0, 1), (2, 1, 2), (2, 1, 5), (0, 2, 3)],
    }
    for kind, edges in wanted.items():
        for given in (kind, SubgraphType(kind)):
            (batch,) = NeighborLoader(data, [-1], torch.tensor([0]), subgraph_type=given)
            assert batch.n_id.tolist() == [0, 1, 2]
            assert triples(batch) == edges
            assert batch.edge_attr.tolist() == [10 * e for _, _, e in edges]
            assert ("num_sampled_nodes" in batch) == (kind == "directional")
            assert ("num_sampled_edges" in batch) == (kind == "directional")


OPTIONS = [
    {},
    {"disjoint": True},
    {"replace": True},
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"time_attr": "edge_time"},
    {"weight_attr": "edge_weight"},
]


def graphs(options, hetero):
    """A graph that has what the options name, its view, and arguments of a loader."""
    times = {None: None, "time": "node", "edge_time": "edge"}[options.get("time_attr")]
    kind = random_graphs.heterogeneous if hetero else random_graphs.homogeneous
    data = kind(times=times, weights="weight_attr" in options)
    ids = [3, 0, 8, 3, 11, 21, 1]
    seeds = ("a", ids) if hetero else ids
    given = torch.tensor([3, 1, 5, 3, 2, 4, 0]) if times == "edge" else None
    common = {"input_nodes": seeds, "input_time": given, "batch_size": 7, **options}
    view = walks.View(data, options.get("time_attr"), options.get("weight_attr"))
    return data, view, common


@HETERO
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 2], []], ids=str)
def test_same_draws_other_edges(options, hetero, fanouts):
    """The nodes of the directional batch of the same seed, and what edges follow from it."""
    data, view, common = graphs(options, hetero)
    seeds, given = common["input_nodes"], common["input_time"]
    given = None if given is None else given.tolist()
    (drawn,) = NeighborLoader(data, fanouts, seed=5, **common)
    out = walks.check(view, drawn, fanouts, seeds, given, **options)
    seed_type = seeds[0] if hetero else None
    for kind in ("induced", "bidirectional"):
        (batch,) = NeighborLoader(data, fanouts, seed=5, subgraph_type=kind, **common)
        walks.assert_nodes(view, batch, out, seed_type, 7, given)
        with_ids = None
        if kind == "induced":  # weights play no part in it
            for t, edges in walks.induced(view, out).items():
                assert triples(batch, t) == edges
                walks.assert_edge_attributes(view, batch, t)
        else:
            for t, edges in walks.bidirectional(view, out).items():
                assert pairs(batch, t) == edges
            with_ids = {t: not hetero or t == ("b", "never", "c") for t in view.edge_types}
            with_ids["c", "to", "a"] = hetero  # nothing leads back
        names = walks.expected_names(
            view, seed_type, given, directional=False, edge_ids=with_ids, **options
        )
        assert walks.names(batch) == names


def test_ids_of_bidirectional_edges():
    """Each is that of a drawn edge between the same nodes, in this direction if there is one."""
    data = random_graphs.homogeneous(count=600)
    options = {"batch_size": 20, "seed": 1}
    loaders = [
        NeighborLoader(data, [2, 2], subgraph_type=kind, **options)
        for kind in ("directional", "bidirectional")
    ]
    for drawn, batch in zip(*loaders, strict=True):
        here = {}
        for row, col, edge in triples(drawn):
            here.setdefault((row, col), set()).add(edge)
        for row, col, edge in triples(batch):
            assert edge in here.get((row, col), here.get((col, row)))
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


@pytest.mark.parametrize("fanouts", [[-1, -1], [2, 2]], ids=str)
@pytest.mark.parametrize("disjoint", [False, True])
def test_induced_is_networkx_subgraph(fanouts, disjoint):
    """Edges, parallel ones too, of networkx's subgraph of the batch's (a tree's) nodes."""
    data = random_graphs.homogeneous()
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(range(40))
    for edge, (src, dst) in enumerate(data.edge_index.t().tolist()):
        graph.add_edge(src, dst, key=edge)
    loader = NeighborLoader(data, fanouts, batch_size=8, subgraph_type="induced", disjoint=disjoint)
    for batch in loader:
        row, col = batch.edge_index
        trees = batch.batch if disjoint else torch.zeros_like(batch.n_id)
        assert torch.equal(trees[row], trees[col])
        for tree in trees.unique():
            wanted = graph.subgraph(batch.n_id[trees == tree].tolist()).edges(keys=True)
            mine = trees[col] == tree
            ends = batch.n_id[batch.edge_index[:, mine]]
            got = zip(*ends.tolist(), batch.e_id[mine].tolist(), strict=True)
            assert sorted(got) == sorted(wanted)


@HETERO
@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 2]], ids=str)
@pytest.mark.parametrize("disjoint", [False, True])
def test_bidirectional_is_what_pyg_makes_of_directional(hetero, fanouts, disjoint):
    """PyG's own conversion of what khop's sampler drew: edges, their order, and what has ids."""
    data = random_graphs.heterogeneous() if hetero else random_graphs.homogeneous()
    seeds = torch.tensor([3, 0, 8, 11, 21])
    index = NodeSamplerInput(None, seeds, input_type="a" if hetero else None)
    drawn, ours = (
        NeighborSampler(
            data, fanouts, subgraph_type=kind, disjoint=disjoint, seed=2
        ).sample_from_nodes(index)
        for kind in ("directional", "bidirectional")
    )
    theirs = drawn.to_bidirectional()
    assert ours.num_sampled_nodes is theirs.num_sampled_nodes is None
    assert ours.num_sampled_edges is theirs.num_sampled_edges is None
    if not hetero:
        assert torch.equal(ours.node, theirs.node)
        assert torch.equal(torch.stack([ours.row, ours.col]), torch.stack([theirs.row, theirs.col]))
        ends, nodes = data.edge_index[:, ours.edge], torch.stack([ours.row, ours.col])
        fits = (ours.node[nodes] == ends).all(0) | (ours.node[nodes.flip(0)] == ends).all(0)
        assert fits.all()
        return
    assert all(torch.equal(ours.node[t], theirs.node[t]) for t in data.node_types)
    for t in data.edge_types:
        assert torch.equal(ours.row[t], theirs.row[t]) and torch.equal(ours.col[t], theirs.col[t])
        assert (ours.edge[t] is None) == (theirs.edge[t] is None)
        assert theirs.edge[t] is None or torch.equal(ours.edge[t], theirs.edge[t])


@pytest.mark.parametrize(
    "edge_types",
    [
        [("a", "to", "b"), ("b", "back", "a")],
        [("a", "to", "b"), ("b", "back", "a"), ("b", "also", "a")],
        [("a", "to", "b"), ("b", "rev_to", "a"), ("b", "back", "a")],
        [("a", "to", "a"), ("a", "rev_to", "a"), ("a", "other", "a")],
        [("b", "rev_to", "a"), ("a", "to", "b")],
        [("a", "rev_x", "b"), ("b", "rev_y", "a")],
        [("a", "to", "b")],
    ],
    ids=lambda ts: "+".join(t[1] for t in ts),
)
def test_reverse_edge_types_are_those_of_pyg(edge_types):
    """As PyG has it: by name, in the type itself, or the only one that leads back; else warned."""
    counts = dict.fromkeys(edge_types, 60)
    data = random_graphs.heterogeneous({"a": 12, "b": 9}, counts)
    index = NodeSamplerInput(None, torch.arange(5), input_type="a")
    drawn = NeighborSampler(data, [2, 2], seed=2).sample_from_nodes(index)
    with warnings.catch_warnings(record=True) as ours_said:
        warnings.simplefilter("always")
        sampler = NeighborSampler(data, [2, 2], subgraph_type="bidirectional", seed=2)
    ours = sampler.sample_from_nodes(index)
    with warnings.catch_warnings(record=True) as they_said:
        warnings.simplefilter("always")
        theirs = drawn.to_bidirectional()
    assert len(ours_said) == len([w for w in they_said if "Cannot convert" in str(w.message)])
    assert all("has no reverse that is unique" in str(w.message) for w in ours_said)
    for t in data.edge_types:
        assert torch.equal(ours.row[t], theirs.row[t]) and torch.equal(ours.col[t], theirs.col[t])
        assert (ours.edge[t] is None) == (theirs.edge[t] is None)


@HETERO
def test_induced_equals_torch_sparse(hetero):
    """PyG's own induced batches, all neighbours: nodes in order, edges and their ids."""
    pytest.importorskip("torch_sparse")
    data = random_graphs.heterogeneous() if hetero else random_graphs.homogeneous()
    options = {"input_nodes": "a" if hetero else None, "batch_size": 8, "subgraph_type": "induced"}
    ours = NeighborLoader(data, [-1, -1], **options)
    theirs = torch_geometric.loader.NeighborLoader(data, [-1, -1], **options)
    for a, b in zip(ours, theirs, strict=True):
        assert walks.names(a) == walks.names(b)
        for t in data.node_types if hetero else [None]:
            ids = [walks.Stores(x)(t).n_id.sort().values for x in (a, b)]
            assert torch.equal(*ids)
        for t in data.edge_types if hetero else [None]:
            found = []
            for batch in (a, b):
                of = walks.Stores(batch)
                row, col = of(t).edge_index
                ends = of(t and t[0]).n_id[row], of(t and t[2]).n_id[col]
                found.append(sorted(zip(*(e.tolist() for e in (*ends, of(t).e_id)), strict=True)))
            assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["directional", "bidirectional", "induced"])
def test_a_gnn_sees_the_whole_graph(kind):
    """Two layers over all neighbours of an undirected graph, with edge weights: as on all of it."""
    data = KarateClub()[0]
    generator = torch.Generator().manual_seed(0)
    pair = data.edge_index.sort(0).values
    weight = torch.rand(34, 34, generator=generator)
    data.edge_weight = weight[pair[0], pair[1]]
    torch.manual_seed(0)
    layers = [GraphConv(34, 8), GraphConv(8, 4)]

    def net(x, edge_index, weight):
        return layers[1](layers[0](x, edge_index, weight).relu(), edge_index, weight)

    with torch.no_grad():
        whole = net(data.x, data.edge_index, data.edge_weight)
        loader = NeighborLoader(data, [-1, -1], batch_size=5, subgraph_type=kind, shuffle=True)
        for batch in loader:
            got = net(batch.x, batch.edge_index, batch.edge_weight)[: batch.batch_size]
            torch.testing.assert_close(got, whole[batch.input_id], rtol=1e-4, atol=1e-5)


@HETERO
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("fanouts", [None, [], [-1], [2, 2]], ids=str)
def test_enclosing_subgraphs(hetero, disjoint, fanouts):
    """SubGraphLoader's are the induced batches, with the places of the seeds."""
    data = random_graphs.heterogeneous() if hetero else random_graphs.homogeneous()
    seeds = ("a", [4, 4, 0, 9, 17]) if hetero else [4, 4, 0, 9, 17]
    common = {"batch_size": 3, "seed": 1, "disjoint": disjoint}
    loader = SubGraphLoader(data, seeds, fanouts, **common)
    assert str(loader) == "SubGraphLoader()"
    induced = NeighborLoader(data, fanouts or [], seeds, subgraph_type="induced", **common)
    view = walks.View(data)
    seed_type = "a" if hetero else None
    for i, (ours, theirs) in enumerate(zip(loader, induced, strict=True)):
        of = walks.Stores(ours)
        ids = [4, 4, 0, 9, 17][3 * i : 3 * i + 3]
        assert of(seed_type).mapping.tolist() == list(range(len(ids)))
        assert of(seed_type).n_id[of(seed_type).mapping].tolist() == ids
        names = walks.names(ours)
        assert "mapping" in names[seed_type]
        names[seed_type].remove("mapping")
        assert names == walks.names(theirs)
        for t in view.edge_types:
            assert triples(ours, t) == triples(theirs, t)
        if fanouts is None:
            assert ours.num_nodes == len(ids)


def test_enclosing_subgraphs_by_hand():
    """Seeds 0 and 1, none of their neighbours: the edges between them, in both directions.

    0 <- 1 (twice)    1 <- 0    0 <- 2    1 <- 1
    """
    data = Data(edge_index=torch.tensor([[1, 1, 0, 2, 1], [0, 0, 1, 0, 1]]), num_nodes=3)
    (batch,) = SubGraphLoader(data, torch.tensor([1, 0]), batch_size=2)
    assert batch.n_id.tolist() == [1, 0]
    assert triples(batch) == [(1, 0, 2), (0, 0, 4), (0, 1, 0), (0, 1, 1)]
    (batch,) = SubGraphLoader(data, torch.tensor([1, 0]), batch_size=2, disjoint=True)
    assert batch.batch.tolist() == [0, 1]
    assert triples(batch) == [(0, 0, 4)]
    (batch,) = SubGraphLoader(data, torch.tensor([1, 0]), [-1], batch_size=2, disjoint=True)
    assert batch.n_id.tolist() == [1, 0, 0, 1, 2]
    assert batch.batch.tolist() == [0, 1, 0, 1, 1]


def test_enclosing_subgraphs_at_a_time():
    """Nothing that comes later than a seed is in its subgraph, also not between its nodes."""
    data = random_graphs.homogeneous(times="edge", count=400)
    times = torch.arange(40) % 7
    loader = SubGraphLoader(data, None, [3], time_attr="edge_time", input_time=times, batch_size=10)
    for batch in loader:
        assert (batch.edge_time <= batch.seed_time[batch.batch[batch.edge_index[1]]]).all()
        assert batch.num_edges > 0
        assert torch.equal(batch.batch[batch.mapping], batch.mapping)


def test_subgraph_type_of_a_subgraph_loader():
    data = random_graphs.homogeneous()
    with pytest.raises(TypeError, match="leave subgraph_type out"):
        SubGraphLoader(data, [0], subgraph_type="induced")


def test_types_without_edges():
    """A HeteroData of node types alone, and a Data without edges."""
    alone = HeteroData()
    alone["a"].num_nodes, alone["b"].num_nodes = 3, 2
    empty = Data(edge_index=torch.empty((2, 0), dtype=torch.int64), num_nodes=3)
    for kind in ("directional", "bidirectional", "induced"):
        for batch in NeighborLoader(alone, [2, 2], "a", batch_size=2, subgraph_type=kind):
            assert batch["a"].n_id.tolist() == batch["a"].input_id.tolist()
            assert batch["b"].n_id.tolist() == []
        for batch in NeighborLoader(empty, [2, 2], batch_size=2, subgraph_type=kind):
            assert batch.n_id.tolist() == batch.input_id.tolist()
            assert batch.edge_index.shape == (2, 0)
