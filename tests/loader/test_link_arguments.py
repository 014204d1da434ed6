"""Links in every form that a user may give them in, and arguments that make no sense."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from khop.loader import LinkNeighborLoader
from khop.sampler import NeighborSampler
from support.loaders.links import BUYS, ITEM, KNOWS, NEGATIVES, are_same, ends_of


@pytest.mark.parametrize("kind", ["all", "tensor", "int32", "numpy", "lists", "rows", "empty"])
def test_forms_of_links(data, kind):
    src, dst = [5, 199, 0, 5], [3, 3, 7, 3]
    links = {
        "all": None,
        "tensor": torch.tensor([src, dst]),
        "int32": torch.tensor([src, dst], dtype=torch.int32),
        "numpy": np.array([src, dst]),
        "lists": [src, dst],
        "rows": (torch.tensor(src), torch.tensor(dst)),
        "empty": torch.empty((2, 0)),
    }[kind]
    loader = LinkNeighborLoader(data, [2], links, batch_size=3, neg_sampling="binary")
    found = [ends_of(batch)[0] for batch in loader]
    if kind == "empty":
        assert found == []
    else:
        want = data.edge_index if links is None else torch.tensor([src, dst])
        assert torch.equal(torch.cat(found, dim=1), want)


def test_ratio_is_an_older_name(data, same_epochs):
    options = {"batch_size": 320, "seed": 2}
    ratio = LinkNeighborLoader(data, [2], neg_sampling_ratio=0.5, **options)
    named = LinkNeighborLoader(data, [2], neg_sampling=NEGATIVES[2], **options)
    assert same_epochs(list(ratio), list(named))
    none = LinkNeighborLoader(data, [2], neg_sampling_ratio=0.0, **options)
    assert "edge_label" not in next(iter(none))


def test_forms_of_heterogeneous_links(shop):
    """A type in full or in short, with links of its own or all; also a type without edges."""
    all_of = shop[BUYS].edge_index
    some = torch.tensor([[49, 0], [29, 3]])
    for given, want in (
        (BUYS, all_of),
        (("user", "item"), all_of),
        ([*BUYS], all_of),
        ((BUYS, None), all_of),
        ((BUYS, some), some),
        ([("user", "item"), some.tolist()], some),
    ):
        loader = LinkNeighborLoader(shop, [1], given, batch_size=1000)
        (batch,) = loader
        assert torch.equal(ends_of(batch, BUYS)[0], want)
    likes = ("user", "likes", "item")
    for neg in NEGATIVES:
        (batch,) = LinkNeighborLoader(shop, [1], (likes, some), batch_size=9, neg_sampling=neg)
        assert torch.equal(ends_of(batch, likes)[0], some)
        assert likes not in shop.edge_types


@pytest.mark.parametrize(
    ("links", "error", "message"),
    [
        (torch.tensor([[0, 200], [1, 1]]), IndexError, r"\(sources\) holds id 200 at position 1"),
        (torch.tensor([[0, 2], [1, -1]]), IndexError, r"\(destinations\) holds id -1"),
        (torch.ones((2, 3)), TypeError, "must hold integers"),
        (torch.ones((2, 3), dtype=torch.bool), TypeError, "must hold integers"),
        (torch.ones((3, 2), dtype=torch.long), ValueError, r"shape \[2, num_links\] \(got \[3, 2"),
        (torch.ones(4, dtype=torch.long), ValueError, r"shape \[2, num_links\]"),
        ([[1, 2], [3]], ValueError, "2 sources, but 1 destinations"),
    ],
)
def test_bad_links(data, links, error, message):
    with pytest.raises(error, match=message):
        LinkNeighborLoader(data, [2], links)


@pytest.mark.parametrize(
    ("links", "error", "message"),
    [
        (None, ValueError, r"edge type, or \(edge type, links\)"),
        (torch.tensor([[0], [1]]), ValueError, r"edge type, or \(edge type, links\)"),
        ("buys", ValueError, r"edge type, or \(edge type, links\)"),
        (("user", "user"), ValueError, "could be any of"),
        (
            ("user", "likes", "item"),
            ValueError,
            "takes all edges of type .*likes",
        ),
        ((("user", "buys", "shop"), None), ValueError, "join nodes of type 'shop', but there are"),
        ((BUYS, torch.tensor([[0], [ITEM]])), IndexError, r"\(destinations\) holds id 30"),
    ],
    ids=str,
)
def test_bad_heterogeneous_links(shop, links, error, message):
    shop["user", "likes_too", "user"].edge_index = shop[KNOWS].edge_index
    with pytest.raises(error, match=message):
        LinkNeighborLoader(shop, [2], links)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_label": torch.ones(3)}, "edge_label must hold an entry for each of 1600 links"),
        ({"edge_label": torch.tensor(1.0)}, "edge_label must hold"),
        ({"input_id": torch.arange(3)}, "input_id must hold an entry for each of 1600"),
        (
            {"edge_label_time": torch.arange(1600)},
            "'time_attr' is not set",
        ),
        ({"time_attr": "y"}, "'edge_label_time' is not set"),
        ({"neg_sampling": "ternary"}, "ternary"),
        ({"neg_sampling": {"mode": "binary", "amount": 0}}, "positive"),
        ({"neg_sampling": {"mode": "triplet", "amount": 0.5}}, "integer"),
        ({"neg_sampling": "triplet", "edge_label": torch.ones(1600)}, "'edge_label' needs to be"),
        ({"neg_sampling": "binary", "neg_sampling_ratio": 2.0}, "not both"),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.ones(3))}, "src_weight must hold"),
        ({"neg_sampling": NegativeSampling("binary", 1, -torch.ones(200))}, "not negative"),
        ({"neg_sampling": NegativeSampling("triplet", 1, None, torch.zeros(200))}, "positive, fin"),
        ({"strict_negatives": True}, "need negatives"),
        ({"exclude_seed_edges": "reverses"}, "exclude_seed_edges must be"),
        ({"worker_type": "fork"}, "'thread' or 'process'"),
        ({"batch_size": None}, "makes no batches"),
    ],
    ids=str,
)
def test_bad_options(data, options, message):
    with pytest.raises(ValueError, match=message):
        LinkNeighborLoader(data, [2], **options)


def test_options_that_contradict_the_graph(shop):
    likes = (("user", "likes", "item"), torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match="strict negatives are no edges of type"):
        LinkNeighborLoader(shop, [2], likes, neg_sampling="binary", strict_negatives=True)
    with pytest.raises(ValueError, match="no edges of the graph"):
        LinkNeighborLoader(shop, [2], likes, exclude_seed_edges=True)
    knows = ("user", "knows", "user")
    with pytest.raises(ValueError, match="do not reverse"):
        LinkNeighborLoader(shop, [2], BUYS, exclude_seed_edges=knows)

    class Sampler:
        def sample_from_edges(self, index, neg_sampling=None):
            raise AssertionError("it must not be asked")

    for option in ({"strict_negatives": True, "neg_sampling": "binary"}, {"exclude_seed_edges": 1}):
        with pytest.raises(ValueError, match="need a sampler of khop's"):
            LinkNeighborLoader(shop, [2], BUYS, neighbor_sampler=Sampler(), **option)


def test_data_without_edge_index(data):
    sampler = NeighborSampler(data, [2])
    with pytest.raises(ValueError, match="takes all edges, but there are none"):
        LinkNeighborLoader(Data(x=data.x), [2], neighbor_sampler=sampler)


def test_sparse_matrices(data):
    """All edges of an `adj_t`: numbered as its entries, links as positives."""
    order = torch.argsort(data.edge_index[1] * 200 + data.edge_index[0], stable=True)
    row, col = data.edge_index[:, order]
    adj_t = torch.sparse_coo_tensor(torch.stack([col, row]), torch.ones(1600), (200, 200))
    loader = LinkNeighborLoader(Data(x=data.x, adj_t=adj_t), [2], batch_size=100)
    for batch in loader:
        positive, _ = ends_of(batch)
        assert torch.equal(positive, torch.stack([row, col])[:, batch.input_id])


@pytest.mark.parametrize("neg", NEGATIVES, ids=str)
@pytest.mark.parametrize("layout", ["coo", "csc", "csr"])
def test_stores(neg, layout):
    """Anybody's stores, with types and without, give the batches of the same graph as data."""
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(40, (2, 200), generator=generator)
    side = 0 if layout == "csr" else 1
    if layout != "coo":
        edge_index = edge_index[:, edge_index[side].sort(stable=True).indices]
    stored = list(edge_index)
    if layout != "coo":
        stored[side] = torch.bincount(stored[side], minlength=40).cumsum(0)
        stored[side] = torch.cat([torch.zeros(1, dtype=torch.long), stored[side]])
    options = {"neg_sampling": neg, "batch_size": 30, "seed": 3, "exclude_seed_edges": True}
    for edge_type in (None, ("a", "r", "a")):
        data = Data() if edge_type is None else HeteroData()
        node, edge = (data, data) if edge_type is None else (data["a"], data[edge_type])
        node.x, edge.edge_index = torch.arange(40).view(-1, 1), edge_index
        features, graph = MyFeatureStore(), MyGraphStore()
        group = None if edge_type is None else "a"
        features.put_tensor(node.x, group_name=group, attr_name="x", index=None)
        graph.put_edge_index(stored, edge_type=edge_type, layout=layout, size=(40, 40))
        for links in (None, edge_index[:, ::7]):
            given = links if edge_type is None else (edge_type, links)
            theirs = LinkNeighborLoader(data, [3, 3], given, **options)
            given = (edge_type, links) if links is not None or edge_type else None
            ours = LinkNeighborLoader((features, graph), [3, 3], given, **options)
            for pair in zip(ours, theirs, strict=True):
                batches = [batch.to_dict() for batch in pair]
                for batch in batches:  # those of stores always say their number of nodes
                    (batch if edge_type is None else batch["a"]).pop("num_nodes", None)
                assert are_same(*batches)
