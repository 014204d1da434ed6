"""GLT's samplers and loaders in memory: attributes of batches, and khop's own batches."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from khop import glt
from khop.loader import NeighborLoader

NUM = 60
EDGES = torch.randint(NUM, (2, 400), generator=torch.Generator().manual_seed(0))
U2I, I2I = ("user", "buys", "item"), ("item", "like", "item")
BACK = ("item", "rev_buys", "user")


def dataset(edge_dir="out"):
    made = glt.data.Dataset(edge_dir=edge_dir)
    made.init_graph(EDGES, edge_weights=torch.rand(400), graph_mode="CPU")
    made.init_node_features(torch.arange(NUM).float().view(-1, 1))
    made.init_edge_features(torch.arange(400).float().view(-1, 1))
    made.init_node_labels(torch.arange(NUM) % 7)
    return made


def hetero():
    made = glt.data.Dataset()
    generator = torch.Generator().manual_seed(1)
    edges = {
        U2I: torch.stack(
            [
                torch.randint(30, (90,), generator=generator),
                torch.randint(20, (90,), generator=generator),
            ]
        ),
        I2I: torch.randint(20, (2, 60), generator=generator),
    }
    made.init_graph(edges, graph_mode="CPU")
    made.init_node_features({"user": torch.eye(30), "item": torch.eye(20)})
    made.init_edge_features({U2I: torch.arange(90).view(-1, 1)})
    made.init_node_labels({"user": torch.arange(30)})
    return made, edges


@pytest.mark.parametrize("edge_dir", ["out", "in"])
def test_batches_have_glts_attributes(edge_dir):
    data = dataset(edge_dir)
    seeds = torch.arange(0, NUM, 2)
    loader = glt.loader.NeighborLoader(data, [-1, -1], seeds, batch_size=10, with_edge=True)
    turned = EDGES.flip(0) if edge_dir == "out" else EDGES
    twin = NeighborLoader(Data(edge_index=turned, num_nodes=NUM), [-1, -1], seeds, batch_size=10)
    assert len(loader) == 3
    for batch, other in zip(loader, twin, strict=True):
        assert set(batch.node.tolist()) == set(other.n_id.tolist())
        assert set(batch.edge.tolist()) == set(other.e_id.tolist())
        assert torch.equal(batch.batch, batch.node[:10])
        assert batch.batch_size == 10
        assert torch.equal(batch.x.view(-1), batch.node.float())
        assert torch.equal(batch.edge_attr.view(-1), batch.edge.float())
        assert torch.equal(batch.y, batch.node % 7)
        assert torch.equal(batch.node[batch.edge_index], turned[:, batch.edge])
        assert sum(batch.num_sampled_nodes) == batch.node.numel()  # lists, as `trim_to_layer` needs
        assert sum(batch.num_sampled_edges) == batch.edge.numel()


def test_layers_are_prefixes():
    data = dataset()
    options = {"batch_size": 10, "as_pyg_v1": True, "with_edge": True}
    size, node, layers = next(
        iter(glt.loader.NeighborLoader(data, [3, 3], torch.arange(20), **options))
    )
    assert size == 10
    assert layers[0].size[0] == node.numel()
    assert layers[1].size == (layers[0].size[1], 10)
    for layer in layers:
        assert int(layer.edge_index[1].max()) < layer.size[1]
        assert torch.equal(node[layer.edge_index], EDGES.flip(0)[:, layer.e_id])


def test_weights_and_seeds():
    data = dataset()
    weights = (torch.arange(400) % 2).float()
    data.init_graph(EDGES, edge_weights=weights, graph_mode="CPU")
    options = {"with_edge": True, "with_weight": True, "batch_size": NUM, "seed": 3}
    loader = glt.loader.NeighborLoader(data, [2], torch.arange(NUM), **options)
    again = glt.loader.NeighborLoader(data, [2], torch.arange(NUM), **options)
    batch, other = next(iter(loader)), next(iter(again))
    assert torch.equal(batch.edge, other.edge)
    assert bool(weights[batch.edge].all())


def test_subgraphs_are_pygs():
    loader = glt.loader.SubGraphLoader(
        dataset(), torch.tensor([5, 2, 9, 2]), with_edge=True, batch_size=4
    )
    (batch,) = loader
    assert batch.node.tolist() == [2, 5, 9]
    assert batch.mapping.tolist() == [1, 0, 2, 0]
    _, ids = subgraph(batch.node, EDGES, torch.arange(400))
    assert sorted(batch.edge.tolist()) == sorted(ids.tolist())


def test_hetero_batches():
    data, edges = hetero()
    loader = glt.loader.NeighborLoader(
        data, [-1, -1], ("user", torch.arange(30)), batch_size=6, with_edge=True
    )
    for batch in loader:
        user, item = batch["user"], batch["item"]
        assert user.batch_size == 6
        assert torch.equal(user.y, user.node)
        assert "y" not in item
        assert torch.equal(user.x, torch.eye(30)[user.node])
        back = batch[BACK]
        ends = torch.stack([item.node[back.edge_index[0]], user.node[back.edge_index[1]]])
        assert torch.equal(ends, edges[U2I].flip(0)[:, back.edge])
        assert torch.equal(back.edge_attr.view(-1), back.edge)
        hops = {len(n) for n in batch.num_sampled_nodes.values()}
        assert hops == {3}


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_link_batches(mode):
    data, _ = hetero()
    row, col, _, _ = data.get_graph(U2I).topo.to_coo()
    edges = {U2I: torch.stack([row, col])}
    negatives = glt.sampler.NegativeSampling(mode, 2)
    loader = glt.loader.LinkNeighborLoader(
        data, [2], edge_label_index=U2I, neg_sampling=negatives, batch_size=15, with_edge=True
    )
    assert repr(loader) == "LinkNeighborLoader()"
    pairs = {tuple(p) for p in edges[U2I].t().tolist()}
    for number, batch in enumerate(loader):
        user, item = batch["user"], batch["item"]
        wanted = edges[U2I][:, 15 * number : 15 * (number + 1)]
        if mode == "triplet":
            assert torch.equal(user.node[user.src_index], wanted[0])
            assert torch.equal(item.node[item.dst_pos_index], wanted[1])
            assert item.dst_neg_index.shape == (15, 2)
            continue
        links = batch[BACK].edge_label_index
        found = torch.stack([user.node[links[1]], item.node[links[0]]])
        assert torch.equal(found[:, :15], wanted)
        assert batch[BACK].edge_label.tolist() == [1.0] * 15 + [0.0] * 30
        assert not {tuple(p) for p in found[:, 15:].t().tolist()} & pairs


def test_one_hop_in_the_order_of_seeds():
    graph = dataset().graph
    sampler = glt.sampler.NeighborSampler(graph, with_edge=True)
    seeds = torch.tensor([7, 3, 7, 50])
    out = sampler.sample_one_hop(seeds, -1)
    degree = torch.bincount(EDGES[0], minlength=NUM)
    assert torch.equal(out.nbr_num, degree[seeds])
    assert torch.equal(EDGES[0][out.edge], seeds.repeat_interleave(out.nbr_num))
    assert torch.equal(EDGES[1][out.edge], out.nbr)
    pairs = glt.sampler.RandomNegativeSampler(graph).sample(100)
    assert not {tuple(p) for p in pairs.t().tolist()} & {tuple(p) for p in EDGES.t().tolist()}
    probs = glt.sampler.NeighborSampler(graph, [2, 2]).sample_prob(seeds, NUM)
    assert probs.shape == (NUM,)
    assert float(probs[7]) == 1.0


def test_what_does_not_fit_is_refused():
    graph = dataset().graph
    with pytest.raises(ValueError, match="layout='CSC'"):
        glt.sampler.NeighborSampler(graph, [2], edge_dir="in")
    with pytest.raises(ValueError, match="strategy"):
        glt.sampler.NeighborSampler(graph, [2], strategy="best")
    with pytest.raises(TypeError, match=r"khop\.loader"):
        glt.loader.NeighborLoader(Data(), [2], torch.arange(3))
    with pytest.raises(ValueError, match="edge_label"):
        glt.loader.LinkNeighborLoader(
            dataset(), [2], edge_label=torch.ones(400), neg_sampling=("triplet", 1)
        )
