"""Padded batches: few shapes, and the same results as without padding.

The oracles are the batch without padding, PyG's `transforms.Pad`, and PyG's models.
"""

import pickle

import pytest
import torch
import torch._dynamo
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, HeteroConv, SAGEConv
from torch_geometric.transforms import Pad
from torch_geometric.utils import trim_to_layer

from khop.loader import (
    ClusterData,
    ClusterLoader,
    GraphSAINTRandomWalkSampler,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
    SubGraphLoader,
    ToLayers,
)
from khop.sampler import Labor, NeighborSampling
from support.cluster import twins

NODE_ROWS = {"x", "y", "time", "n_id", "batch"}
EDGE_ROWS = {"edge_attr", "edge_weight", "edge_time", "e_id", "edge_norm"}


def graph(num_nodes=400, num_edges=3000):
    generator = torch.Generator().manual_seed(3)
    return Data(
        x=torch.rand(num_nodes, 5, generator=generator) + 1,
        y=torch.randint(1, 4, (num_nodes,), generator=generator),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
        edge_attr=torch.rand(num_edges, 2, generator=generator) + 1,
        train_mask=torch.ones(num_nodes, dtype=torch.bool),
    )


def check_store(plain, padded, node_rows, edge_rows):
    """Drawn rows are as without padding, padding is zero; all else is the same."""
    for mask, rows in (("pad_node_mask", node_rows), ("pad_edge_mask", edge_rows)):
        for name in rows & set(plain.keys()):
            keep, values = padded[mask], padded[name]
            assert torch.equal(values[keep], plain[name]), name
            if name != "batch":
                assert (values[~keep] == 0).all(), name
    ranges = {"num_nodes", "num_sampled_nodes", "num_sampled_edges", "edge_index"}
    for name in set(plain.keys()) - node_rows - edge_rows - ranges:
        same = torch.equal if isinstance(plain[name], torch.Tensor) else lambda a, b: a == b
        assert same(padded[name], plain[name]), name


def check_ends(plain, padded, edge_mask, src_mask, dst_mask):
    """Drawn edges join the same nodes, padded ones join padded nodes."""
    drawn = padded[:, edge_mask]
    for side, mask in enumerate((src_mask, dst_mask)):
        back = torch.cumsum(mask, 0) - 1
        assert torch.equal(back[drawn[side]], plain[side])
        assert mask[drawn[side]].all()
        assert not mask[padded[side, ~edge_mask]].any()


def check(plain, padded):
    check_store(plain, padded, NODE_ROWS | {"train_mask"}, EDGE_ROWS)
    nodes = padded.pad_node_mask
    check_ends(plain.edge_index, padded.edge_index, padded.pad_edge_mask, nodes, nodes)
    assert padded.num_nodes == len(nodes)


METHODS = {
    "directional": {},
    "disjoint": {"disjoint": True},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "induced": {"subgraph_type": "induced"},
    "replace": {"replace": True},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_is_the_one_without_padding(name):
    def loader(**options):
        return NeighborLoader(graph(), [4, 3], batch_size=16, seed=1, **METHODS[name], **options)

    padded = loader(pad="auto")
    shapes = set()
    for plain, batch in zip(loader(), padded, strict=True):
        check(plain, batch)
        shapes.add((batch.num_nodes, batch.num_edges))
    assert len(shapes) == 1
    assert sum(padded.pad_sizes["nodes"]) == batch.num_nodes


@pytest.mark.parametrize(
    "method", [Labor([4, 3], edge_norm="ht"), NeighborSampling([4, 3], layer_wise=True)]
)
def test_methods(method):
    loaders = [
        NeighborLoader(graph(), method, batch_size=16, seed=1, pad=p) for p in (None, "auto")
    ]
    for plain, batch in zip(*loaders, strict=True):
        check(plain, batch)


@pytest.mark.parametrize("conv", [GCNConv, SAGEConv, GATConv])
def test_outputs_and_gradients_are_the_same(conv):
    torch.manual_seed(0)
    first, second = conv(5, 8), conv(8, 4)
    loaders = [
        NeighborLoader(graph(), [4, 3], batch_size=16, seed=1, pad=p) for p in (None, "auto")
    ]
    for batches in zip(*loaders, strict=True):
        outputs, grads = [], []
        for batch in batches:
            first.zero_grad()
            out = second(first(batch.x, batch.edge_index).relu(), batch.edge_index)
            size = batch.batch_size
            torch.nn.functional.cross_entropy(out[:size], batch.y[:size]).backward()
            drawn = batch.get("pad_node_mask", torch.ones(len(out), dtype=torch.bool))
            outputs.append(out[drawn])
            grads.append([p.grad.clone() for p in first.parameters()])
        torch.testing.assert_close(*outputs)
        torch.testing.assert_close(*grads)


def test_trimmed_layers_and_layers():
    """Sizes of hops are constants: layers that trim have the same shapes, and the same result."""
    convs = [SAGEConv(5, 8), SAGEConv(8, 4)]

    def trimmed(batch):
        x, ends = batch.x, batch.edge_index
        for i, conv in enumerate(convs):
            x, ends, _ = trim_to_layer(i, batch.num_sampled_nodes, batch.num_sampled_edges, x, ends)
            x = conv(x, ends).relu()
        return x[: batch.batch_size]

    def layers(batch):
        x = batch.x
        for conv, (ends, _, size) in zip(convs, batch.adjs, strict=True):
            x = conv((x, x[: size[1]]), ends).relu()
        return x[: batch.batch_size]

    def loader(**options):
        return NeighborLoader(graph(), [4, 3], batch_size=16, seed=1, **options)

    counts = set()
    for plain, batch, by_layer in zip(
        loader(), loader(pad="auto"), loader(pad="auto", transform=ToLayers()), strict=True
    ):
        torch.testing.assert_close(trimmed(batch), trimmed(plain))
        torch.testing.assert_close(layers(by_layer), trimmed(plain))
        counts.add((*batch.num_sampled_nodes, *batch.num_sampled_edges))
    assert len(counts) == 1


def test_masks_and_rows_are_those_of_pygs_pad():
    sizes = {"nodes": 300, "edges": 2000}
    options = {"batch_size": 16, "seed": 1, "subgraph_type": "induced"}
    pad = Pad(300, 2000, add_pad_mask=True)
    loaders = [NeighborLoader(graph(), [4, 3], pad=p, **options) for p in (None, sizes)]
    for plain, batch in zip(*loaders, strict=True):
        names = {"input_id", "batch_size", "train_mask", "edge_index"}
        wanted = pad(plain.clone())
        for name in set(plain.keys()) - names | {"pad_node_mask", "pad_edge_mask"}:
            assert torch.equal(batch[name], wanted[name]), name
        drawn = batch.pad_edge_mask
        assert torch.equal(batch.edge_index[:, drawn], wanted.edge_index[:, drawn])


def test_heterogeneous():
    data = twins.heterogeneous()
    options = {"batch_size": 16, "seed": 1, "shuffle": True}
    convs = HeteroConv({t: SAGEConv((-1, -1), 4) for t in (twins.CITES, twins.WRITES)})
    loaders = [NeighborLoader(data, [4, 3], "paper", pad=p, **options) for p in (None, "auto")]
    shapes = set()
    for plain, batch in zip(*loaders, strict=True):
        for node_type in plain.node_types:
            check_store(plain[node_type], batch[node_type], NODE_ROWS, set())
        for edge_type in plain.edge_types:
            masks = (batch[t].pad_node_mask for t in (edge_type[0], edge_type[2]))
            mine, its = plain[edge_type], batch[edge_type]
            check_store(mine, its, set(), EDGE_ROWS)
            check_ends(mine.edge_index, its.edge_index, its.pad_edge_mask, *masks)
        wanted, out = (
            convs({t: x.float().view(len(x), -1) for t, x in b.x_dict.items()}, b.edge_index_dict)
            for b in (plain, batch)
        )
        torch.testing.assert_close(out["paper"][batch["paper"].pad_node_mask], wanted["paper"])
        shapes.add(tuple(x.shape for x in batch.x_dict.values()))
    assert len(shapes) == 1
    assert loaders[1].pad_sizes["nodes"]["ghost"] == [0, 0, 0]  # not drawn, so not padded


@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_links(neg_sampling):
    links = graph().edge_index[:, :200]
    options = {"batch_size": 16, "seed": 1, "neg_sampling": neg_sampling}
    loaders = [LinkNeighborLoader(graph(), [4, 3], links, pad=p, **options) for p in (None, "auto")]
    for plain, batch in zip(*loaders, strict=True):
        check(plain, batch)


def test_loaders_that_choose_nodes():
    data = graph()
    clusters = ClusterData(data, 20, assignment=torch.arange(400) % 20)
    shadow = ShaDowKHopSampler(data, 2, 3, batch_size=8, seed=1, pad="auto")
    for make in (
        lambda **o: ClusterLoader(clusters, batch_size=2, **o),
        lambda **o: RandomNodeLoader(data, 12, **o),
        lambda **o: SubGraphLoader(data, None, [3], batch_size=8, **o),
        lambda **o: HGTLoader(data, [8, 8], None, batch_size=8, **o),
    ):
        loaders = make(seed=1), make(seed=1, pad="auto")
        for plain, batch in zip(*loaders, strict=True):
            check(plain, batch)
    for plain, batch in zip(
        ShaDowKHopSampler(data, 2, 3, batch_size=8, seed=1), shadow, strict=True
    ):
        assert torch.equal(batch.x[batch.root_n_id], plain.x[plain.root_n_id])
        assert torch.equal(batch.y, plain.y)
        assert torch.equal(batch.ptr, plain.ptr)
        assert batch.batch[~batch.pad_node_mask].unique().tolist() == [len(plain.root_n_id)]
    saint = GraphSAINTRandomWalkSampler(
        data, 20, 2, num_steps=8, sample_coverage=5, log=False, seed=1, pad="auto"
    )
    for batch in saint:
        assert (batch.node_norm[~batch.pad_node_mask] == 0).all()
        assert (batch.edge_norm[~batch.pad_edge_mask] == 0).all()


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_all_ways_and_devices(num_workers):
    """Hooks, threads, worker processes, stores and devices pad alike."""
    data, sizes = graph(), {"nodes": [20, 90, 300], "edges": [90, 400]}

    def loader(source=data, **options):
        options = {"batch_size": 16, "seed": 1, "pad": sizes, **options}
        return NeighborLoader(source, [4, 3], torch.arange(400), **options)

    stores = data.to_heterogeneous(node_type_names=["n"], edge_type_names=[("n", "to", "n")])
    del stores["n"].train_mask  # stores do not say that it has a row per node
    wanted = list(loader())
    others = [
        loader(transform_sampler_output=lambda out: out, num_workers=num_workers),
        loader(num_workers=num_workers),
        loader(device="emulated:5"),
        pickle.loads(pickle.dumps(loader())),
    ]
    if num_workers:
        others.append(loader(num_workers=1, worker_type="process"))
    for other in others:
        for a, b in zip(wanted, other, strict=True):
            for name, value in a.to_dict().items():
                same = torch.equal if isinstance(value, torch.Tensor) else lambda x, y: x == y
                assert same(b[name], value), name
    both = NeighborLoader((data, data), [4, 3], torch.arange(400), batch_size=16, seed=1, pad=sizes)
    for a, b in zip(wanted, both, strict=True):
        for name in ("x", "y", "edge_index", "edge_attr", "pad_node_mask", "pad_edge_mask"):
            assert torch.equal(b[name], a[name]), name
    by_type = {"nodes": {"n": sizes["nodes"]}, "edges": {("n", "to", "n"): sizes["edges"]}}
    from_stores = NeighborLoader(
        (stores, stores), [4, 3], ("n", torch.arange(400)), batch_size=16, seed=1, pad=by_type
    )
    for a, b in zip(wanted, from_stores, strict=True):
        for name in ("x", "y", "n_id", "pad_node_mask"):
            assert torch.equal(b["n"][name], a[name]), name
        for name in ("edge_index", "edge_attr", "e_id", "pad_edge_mask"):
            assert torch.equal(b["n", "to", "n"][name], a[name]), name


def test_a_larger_batch_enlarges_the_sizes():
    """Without trial draws (a user's sampler), the first batch decides, and larger ones after it."""
    data = Data(edge_index=torch.tensor([[*range(1, 60)], [0] * 59]), num_nodes=60)
    batches = [[40], [0], [41], [0]]
    loader = NeighborLoader(data, [-1], batch_sampler=batches, batch_size=1, pad="auto")
    sizes = [batch.num_nodes for batch in loader]
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3]
    assert loader.pad_sizes["nodes"][1] >= 59 + 1


def test_the_compiler_sees_one_shape():
    torch._dynamo.reset()
    conv, graphs = SAGEConv(5, 4), []

    def backend(traced, inputs):
        graphs.append(inputs)
        return traced

    step = torch.compile(
        lambda x, ends: conv(x, ends).sum(), backend=backend, dynamic=False, fullgraph=True
    )
    loader = NeighborLoader(
        graph(), [4, 3], batch_size=16, seed=1, shuffle=True, drop_last=True, pad="auto"
    )
    for batch in loader:
        step(batch.x, batch.edge_index)
    assert len(graphs) == 1


def test_a_smaller_last_batch_has_the_same_shape():
    loader = NeighborLoader(graph(), [4, 3], torch.arange(100), batch_size=16, pad="auto")
    batches = list(loader)
    assert batches[-1].batch_size == 4
    assert batches[-1].num_sampled_nodes == batches[0].num_sampled_nodes
    assert batches[-1].pad_node_mask[:16].tolist() == [True] * 4 + [False] * 12


def test_states_do_not_depend_on_padding():
    plain = NeighborLoader(graph(), [4], batch_size=16, seed=1)
    epoch = iter(plain)
    next(epoch)
    padded = NeighborLoader(graph(), [4], batch_size=16, seed=1, pad="auto")
    padded.load_state_dict(plain.state_dict())
    check(next(epoch), next(iter(padded)))
    assert padded.state_dict() == plain.state_dict()


def test_a_total_pads_the_last_hop():
    loader = NeighborLoader(
        graph(), [4, 3], batch_size=16, pad={"nodes": 500, "edges": 600}, drop_last=True
    )
    batch = next(iter(loader))
    assert (batch.num_nodes, batch.num_edges) == (500, 600)
    assert batch.num_sampled_nodes[0] == 17


@pytest.mark.parametrize(
    ("pad", "error", "says"),
    [
        ("yes", ValueError, "pad must be 'auto' or"),
        ({"nodes": 4}, ValueError, "pad must be 'auto' or"),
        ({"nodes": 4.5, "edges": 3}, TypeError, r"pad\['nodes'\] must be an integer"),
        ({"nodes": [4, -1], "edges": 3}, ValueError, "must not be negative"),
    ],
)
def test_malformed(pad, error, says):
    with pytest.raises(error, match=says):
        NeighborLoader(graph(), [4], pad=pad)


@pytest.mark.parametrize(
    ("pad", "says"),
    [
        ({"nodes": 30, "edges": 600}, "larger sizes, or pad='auto'"),
        ({"nodes": 500, "edges": [10, 20]}, "larger sizes, or pad='auto'"),
        ({"nodes": [500, 500], "edges": 600}, "has 2 sizes of nodes, but batches have 3 sections"),
        ({"nodes": [16, 500, 500], "edges": 600}, "need a padded node in section"),
    ],
)
def test_sizes_that_do_not_fit(pad, says):
    loader = NeighborLoader(graph(), [4, 3], batch_size=16, pad=pad)
    # Both sections of edges are padded.
    if pad["nodes"] == [16, 500, 500]:
        loader = NeighborLoader(graph(), [4, 3], batch_size=16, pad={**pad, "edges": [99, 600]})
    with pytest.raises(ValueError, match=says):
        next(iter(loader))


def test_refused():
    with pytest.raises(ValueError, match="would give each its own shapes"):
        NeighborLoader(graph(), [4], pad="auto", num_workers=1, worker_type="process")
    data = twins.heterogeneous()
    with pytest.raises(ValueError, match="must have an entry for each of"):
        NeighborLoader(data, [4], "paper", pad={"nodes": 4, "edges": 4})
