"""What PyG asserts of its `LinkNeighborLoader`, asserted of khop's; negatives, links left out."""

import inspect
import pickle

import numpy as np
import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NegativeSampling

import oracle
from khop.loader import LinkNeighborLoader
from khop.sampler import NeighborSampler

_WORKERS = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "worker_type": "process"},
    {"num_workers": 1, "worker_type": "process", "filter_per_worker": False},
]
workers = pytest.mark.parametrize(
    "workers", _WORKERS, ids=["none", "threads", "processes", "join_here"]
)
NEGATIVES = [
    None,
    "binary",
    {"mode": "binary", "amount": 0.5},
    {"mode": "triplet", "amount": 1},
    {"mode": "triplet", "amount": 3},
]
USER, ITEM = 50, 30
BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")


def edge_set(edge_index):
    return set(zip(*edge_index.tolist(), strict=True))


@pytest.fixture
def shop():
    """Users, items without features, purchases in both directions, and users who know users."""
    generator = torch.Generator().manual_seed(0)

    def ends(*sizes, count):
        return torch.stack([torch.randint(n, (count,), generator=generator) for n in sizes])

    shop = HeteroData()
    shop["user"].x = torch.arange(USER).float().view(-1, 1)
    shop["item"].num_nodes = ITEM
    shop[BUYS].edge_index = ends(USER, ITEM, count=300)
    shop[BUYS].edge_attr = torch.arange(300)
    shop[BOUGHT].edge_index = shop[BUYS].edge_index.flip(0)
    shop["user", "knows", "user"].edge_index = ends(USER, USER, count=120)
    return shop


def ends_of(batch, link_type=None):
    """[2, n] ids of positive pairs, [2, m] of negative ones, whatever the kind of negatives."""
    src = batch if link_type is None else batch[link_type[0]]
    dst = batch if link_type is None else batch[link_type[2]]
    links = batch if link_type is None else batch[link_type]
    count = len(links.input_id)
    if "edge_label_index" in links:
        places = links.edge_label_index
        pairs = torch.stack([src.n_id[places[0]], dst.n_id[places[1]]])
        return pairs[:, :count], pairs[:, count:]
    positive = torch.stack([src.n_id[src.src_index], dst.n_id[dst.dst_pos_index]])
    negative = dst.n_id[dst.dst_neg_index].view(count, -1)
    sources = positive[0].view(-1, 1).expand_as(negative)
    return positive, torch.stack([sources.reshape(-1), negative.reshape(-1)])


def are_same(a, b):
    """Whether two batches, as dictionaries, are equal in every attribute."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(are_same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


def test_is_pygs():
    """The same arguments in the same order, the same defaults, then khop's own."""
    ours = inspect.signature(LinkNeighborLoader).parameters
    theirs = inspect.signature(torch_geometric.loader.LinkNeighborLoader).parameters
    shared = [name for name in theirs if name != "kwargs"]
    assert list(ours)[: len(shared)] == shared
    assert all(ours[name].default == theirs[name].default for name in shared)
    assert issubclass(LinkNeighborLoader, torch_geometric.loader.LinkNeighborLoader)


@workers
@pytest.mark.parametrize("neg", NEGATIVES, ids=str)
def test_basics(data, workers, neg):
    """Links in order, their ends' places, attributes with their ids, edges the graph's."""
    loader = LinkNeighborLoader(data, [5, 3], batch_size=300, neg_sampling=neg, **workers)
    assert str(loader) == "LinkNeighborLoader()"
    assert len(loader) == 6
    amount = {None: 0, "binary": 1}.get(neg) if not isinstance(neg, dict) else neg["amount"]
    batches = list(loader)
    for i, batch in enumerate(batches):
        count = min(300, 1600 - 300 * i)
        assert isinstance(batch, Data)
        assert batch.input_id.tolist() == list(range(300 * i, 300 * i + count))
        positive, negative = ends_of(batch)
        assert torch.equal(positive, data.edge_index[:, batch.input_id])
        assert negative.size(1) == amount * count
        if isinstance(neg, dict) and neg["mode"] == "triplet":
            assert batch.dst_neg_index.shape == ((count,) if amount == 1 else (count, amount))
            assert "edge_label_index" not in batch
            assert "edge_label" not in batch
        elif neg is None:
            assert "edge_label" not in batch
        else:
            assert batch.edge_label.dtype == torch.float
            assert batch.edge_label.tolist() == [1] * count + [0] * negative.size(1)
        seeds = torch.cat([positive.reshape(-1), negative.reshape(-1)]).unique()
        assert torch.equal(batch.n_id[: batch.num_sampled_nodes[0]], seeds)
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert sum(batch.num_sampled_nodes) == batch.num_nodes == len(batch.n_id.unique())
        assert sum(batch.num_sampled_edges) == batch.num_edges
        assert "batch" not in batch
        assert "edge_label_time" not in batch
        assert "seed_time" not in batch
        assert "batch_size" not in batch


@workers
def test_same_batches_whoever_makes_them(data, same_epochs, workers):
    """A seed fixes two epochs in full, shuffled, whatever the workers; another changes them."""
    options = {"neg_sampling": "binary", "batch_size": 200, "shuffle": True}
    options |= {"strict_negatives": True, "exclude_seed_edges": "reverse"}
    reference = LinkNeighborLoader(data, [4, 4], seed=7, **options)
    loader = LinkNeighborLoader(data, [4, 4], seed=7, **options, **workers)
    epochs = list(reference), list(reference)
    assert same_epochs(list(loader), epochs[0])
    assert same_epochs(list(loader), epochs[1])
    assert not same_epochs(*epochs)
    order = torch.cat([b.input_id for b in epochs[0]])
    assert not torch.equal(order, order.sort().values)
    assert torch.equal(order.sort().values, torch.arange(1600))
    for different in ({"seed": 8}, {"seed": 7, "stream": 1}):
        other = LinkNeighborLoader(data, [4, 4], **different, **options)
        assert not same_epochs(list(other), epochs[0])


def test_torchs_seed_decides_without_one(data, same_epochs):
    epochs = []
    for _ in range(2):
        torch.manual_seed(3)
        loader = LinkNeighborLoader(data, [3], neg_sampling="triplet", batch_size=800)
        epochs.append(list(loader))
    assert same_epochs(*epochs)
    assert not same_epochs(epochs[0], list(loader))


def test_batches_are_made_alone(data, same_epochs):
    """Batch i is the same with those before it and without: a given sampler leaves them out."""
    options = {"neg_sampling": "binary", "batch_size": 100, "seed": 5}
    whole = list(LinkNeighborLoader(data, [3], **options))
    (first,) = LinkNeighborLoader(data, [3], sampler=range(100), **options)
    assert same_epochs([first], whole[:1])


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


@pytest.mark.parametrize("neg", NEGATIVES[:3], ids=str)
@pytest.mark.parametrize("shape", [(1600,), (1600, 2)])
@pytest.mark.parametrize("lowest", [0, 1])
def test_labels(data, neg, shape, lowest):
    """Given labels keep their dtype; with negatives, 0 is theirs, and labels from 0 on move up."""
    label = torch.randint(lowest, 5, shape)
    label.view(-1)[0] = lowest
    loader = LinkNeighborLoader(data, [2], edge_label=label, neg_sampling=neg, batch_size=320)
    for batch in loader:
        expected = label[batch.input_id] + (neg is not None and lowest == 0)
        assert batch.edge_label.dtype == torch.int64
        assert torch.equal(batch.edge_label[:320], expected)
        assert not batch.edge_label[320:].any()
        assert len(batch.edge_label) == batch.edge_label_index.size(1)


def test_ratio_is_an_older_name(data, same_epochs):
    options = {"batch_size": 320, "seed": 2}
    ratio = LinkNeighborLoader(data, [2], neg_sampling_ratio=0.5, **options)
    named = LinkNeighborLoader(data, [2], neg_sampling=NEGATIVES[2], **options)
    assert same_epochs(list(ratio), list(named))
    none = LinkNeighborLoader(data, [2], neg_sampling_ratio=0.0, **options)
    assert "edge_label" not in next(iter(none))


def test_attributes_of_the_whole_graph_give_way(data):
    """Data that was split into training and test links has labels and links of its own."""
    data.edge_label_index = torch.tensor([[1, 2], [3, 4]])
    data.edge_label = torch.tensor([1.0, 0.0])
    for neg in NEGATIVES:
        ours = next(iter(LinkNeighborLoader(data, [2], batch_size=4, neg_sampling=neg)))
        # PyG's own loader, with khop's sampler, says what must be there.
        sampler = NeighborSampler(data, [2])
        theirs = torch_geometric.loader.LinkNeighborLoader(
            data, [2], batch_size=4, neg_sampling=neg, neighbor_sampler=sampler
        )
        assert set(ours.to_dict()) == set(next(iter(theirs)).to_dict())


@pytest.mark.parametrize("neg", NEGATIVES, ids=str)
def test_as_pygs_loader_with_khops_sampler(data, shop, neg):
    """Batches of the same draws are the same in every attribute, homogeneous or not."""
    for graph, links in ((data, None), (shop, BUYS), (shop, ("user", "knows", "user"))):
        pair = [
            loader(
                graph,
                [3, 2],
                links,
                neg_sampling=neg,
                batch_size=64,
                neighbor_sampler=NeighborSampler(graph, [3, 2]),
            )
            for loader in (LinkNeighborLoader, torch_geometric.loader.LinkNeighborLoader)
        ]
        for positions in (range(64), [9, 9, 2]):
            batches = []
            for loader in pair:
                torch.manual_seed(1)
                batches.append(loader(torch.tensor(list(positions))))
            assert are_same(*(batch.to_dict() for batch in batches))


@pytest.mark.parametrize("workers", _WORKERS[:3], ids=["none", "threads", "processes"])
@pytest.mark.parametrize("neg", NEGATIVES, ids=str)
@pytest.mark.parametrize("link_type", [BUYS, BOUGHT, ("user", "knows", "user")], ids=str)
def test_heterogeneous(shop, workers, neg, link_type):
    """Places are among the nodes of the ends' types; what is of a link stands with its type."""
    loader = LinkNeighborLoader(shop, [3, 2], link_type, neg_sampling=neg, batch_size=50, **workers)
    links = shop[link_type].edge_index
    for batch in loader:
        assert isinstance(batch, HeteroData)
        positive, negative = ends_of(batch, link_type)
        assert torch.equal(positive, links[:, batch[link_type].input_id])
        for side, node_type in ((0, link_type[0]), (1, link_type[2])):
            seeds = torch.cat([positive[side], negative[side]])
            if link_type[0] == link_type[2]:
                seeds = torch.cat([positive.reshape(-1), negative.reshape(-1)])
            store = batch[node_type]
            assert torch.equal(store.n_id[: store.num_sampled_nodes[0]], seeds.unique())
        assert torch.equal(batch["user"].x[:, 0].long(), batch["user"].n_id)
        for edge_type in shop.edge_types:
            row, col = batch[edge_type].edge_index
            ends = torch.stack([batch[edge_type[0]].n_id[row], batch[edge_type[2]].n_id[col]])
            assert torch.equal(ends, shop[edge_type].edge_index[:, batch[edge_type].e_id])
        assert torch.equal(batch[BUYS].edge_attr, batch[BUYS].e_id)


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


@pytest.mark.parametrize("neg", NEGATIVES[1:], ids=str)
def test_strict_negatives(data, shop, neg):
    """None is an edge, in dense graphs, too; those of PyG's kind are."""
    rng = np.random.default_rng(0)
    # Of 20 * 20 pairs, one a source is no edge, and a few more; some edges are there twice.
    free = np.concatenate([np.arange(0, 400, 21), rng.integers(0, 400, 20)])
    pairs = np.setdiff1d(np.arange(400), free)
    pairs = rng.permutation(np.concatenate([pairs, pairs[:50]]))
    dense = Data(edge_index=torch.from_numpy(np.stack([pairs // 20, pairs % 20])), num_nodes=20)
    for graph, link_type in ((dense, None), (data, None), (shop, BUYS)):
        edges = edge_set(graph.edge_index if link_type is None else graph[link_type].edge_index)
        found = set()
        for strict in (True, False):
            loader = LinkNeighborLoader(
                graph, [1], link_type, neg_sampling=neg, strict_negatives=strict, batch_size=100
            )
            negative = torch.cat([ends_of(batch, link_type)[1] for batch in loader], dim=1)
            found = edge_set(negative) & edges
            assert strict != bool(found)


def test_sources_without_negatives():
    """The loader says whose links cannot be told from non-links."""
    full = torch.stack([torch.full((4,), 2), torch.arange(4)])
    data = Data(edge_index=full, num_nodes=4)
    loader = LinkNeighborLoader(data, [1], neg_sampling="triplet", strict_negatives=True)
    with pytest.raises(ValueError, match="no strict negative can be drawn for source 2"):
        next(iter(loader))
    loader = LinkNeighborLoader(
        data, [1], neg_sampling="binary", strict_negatives=True, batch_size=4
    )
    (batch,) = loader
    assert 2 not in ends_of(batch)[1][0]


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_weighted_negatives(data, shop, mode):
    """Drawn by weight, strict or not; nodes of weight 0 never."""
    weight = torch.zeros(200, dtype=torch.float64)
    weight[[3, 8, 150]] = torch.tensor([1.0, 5.0, 0.5], dtype=torch.float64)
    for kind in (torch.float32, torch.bfloat16, torch.float64):
        neg = NegativeSampling(mode, 2, weight.flip(0).to(kind), weight.to(kind))
        for strict in (False, True):
            loader = LinkNeighborLoader(
                data, [0], neg_sampling=neg, batch_size=400, strict_negatives=strict
            )
            negative = torch.cat([ends_of(b)[1] for b in loader], dim=1)
            assert set(negative[1].tolist()) == {3, 8, 150}
            counts = torch.bincount(negative[1])
            assert counts[8] > 2 * counts[3] > 2 * counts[150]
            if mode == "binary":
                assert set(negative[0].tolist()) == {196, 191, 49}
    likes = NegativeSampling(mode, 1, torch.eye(USER)[4], torch.eye(ITEM)[9])
    for batch in LinkNeighborLoader(shop, [1], BUYS, neg_sampling=likes, batch_size=60):
        negative = ends_of(batch, BUYS)[1]
        assert set(negative[1].tolist()) == {9}
        assert mode == "triplet" or set(negative[0].tolist()) == {4}


@pytest.mark.parametrize("exclude", [True, "self", "reverse", BOUGHT])
def test_links_are_left_out(data, shop, exclude):
    """A batch's own links are not among its edges, those of other batches are; on request neither
    are their reverses."""
    exclude_here = "reverse" if isinstance(exclude, tuple) else exclude
    loader = LinkNeighborLoader(data, [-1], batch_size=40, exclude_seed_edges=exclude_here)
    for batch in loader:
        hidden = edge_set(ends_of(batch)[0])
        if exclude_here == "reverse":
            hidden |= {(v, u) for u, v in hidden}
        seeds = batch.n_id[: batch.num_sampled_nodes[0]]
        expected = edge_set(data.edge_index[:, torch.isin(data.edge_index[1], seeds)]) - hidden
        assert edge_set(batch.n_id[batch.edge_index]) == expected
    for batch in LinkNeighborLoader(
        shop, [-1, -1], BUYS, batch_size=20, neg_sampling="triplet", exclude_seed_edges=exclude
    ):
        hidden = edge_set(ends_of(batch, BUYS)[0])
        user, item = batch["user"].n_id, batch["item"].n_id
        row, col = batch[BUYS].edge_index
        assert not hidden & edge_set(torch.stack([user[row], item[col]]))
        row, col = batch[BOUGHT].edge_index
        back = hidden & edge_set(torch.stack([user[col], item[row]]))
        assert bool(back) == (exclude in (True, "self"))


@pytest.mark.parametrize("neg", NEGATIVES, ids=str)
def test_graphs_without_edges(neg):
    """No hops: the nodes are the ends of links; negatives are drawn from all nodes."""
    links = torch.randint(100, (2, 60))
    homo = Data(num_nodes=100, edge_index=torch.empty((2, 0), dtype=torch.long))
    hetero = HeteroData()
    hetero["a"].num_nodes = hetero["b"].num_nodes = 100
    for data, given in ((homo, links), (hetero, (("a", "to", "b"), links))):
        link_type = None if data is homo else given[0]
        for batch in LinkNeighborLoader(data, [], given, batch_size=20, neg_sampling=neg):
            positive, negative = ends_of(batch, link_type)
            store = batch if link_type is None else batch[link_type]
            assert torch.equal(positive, links[:, store.input_id])
            both = torch.cat([positive, negative], dim=1)
            if link_type is None:
                assert torch.equal(batch.n_id, both.unique())
                assert batch.num_edges == 0
            else:
                assert torch.equal(batch["a"].n_id, both[0].unique())
                assert torch.equal(batch["b"].n_id, both[1].unique())


def test_all_neighbors(data):
    """At -1: nodes, edges and counts of the k-hop neighbourhood of the ends, in walking order."""
    for batch in LinkNeighborLoader(data, [-1, -1], data.edge_index[:, ::40], batch_size=5):
        seeds = ends_of(batch)[0].unique().tolist()
        want = oracle.full_neighborhood(data.edge_index, seeds, 2)
        got = zip(*batch.n_id[batch.edge_index].tolist(), batch.e_id.tolist(), strict=True)
        assert (batch.n_id.tolist(), list(got)) == want[:2]
        assert (batch.num_sampled_nodes, batch.num_sampled_edges) == want[2:]


@workers
def test_hooks_see_what_they_see_at_pygs(data, workers):
    """The sampler's output first, then the batch; somebody else's sampler is asked as by PyG."""

    def mark(out):
        out.num_sampled_nodes = None
        return out

    class Sampler(torch_geometric.sampler.BaseSampler):
        def __init__(self, inner):
            self.inner = inner

        def sample_from_nodes(self, index):
            raise AssertionError

        def sample_from_edges(self, index, neg_sampling=None):
            return self.inner.sample_from_edges(index, neg_sampling)

    inner = NeighborSampler(data, [3])
    for sampler in (inner, Sampler(inner)):
        loader = LinkNeighborLoader(
            data,
            [3],
            neighbor_sampler=sampler,
            neg_sampling="binary",
            batch_size=800,
            transform_sampler_output=mark,
            transform=transforms_seen,
            **workers,
        )
        for batch in loader:
            assert batch.seen == 1600
            assert "num_sampled_nodes" not in batch
            assert torch.equal(ends_of(batch)[0], data.edge_index[:, batch.input_id])


def transforms_seen(batch):
    batch.seen = len(batch.edge_label)
    return batch


def test_pickles(data, same_epochs):
    loader = LinkNeighborLoader(
        data, [3, 3], batch_size=400, seed=2, neg_sampling="binary", strict_negatives=True
    )
    first = list(loader)
    loader = pickle.loads(
        pickle.dumps(
            LinkNeighborLoader(
                data, [3, 3], batch_size=400, seed=2, neg_sampling="binary", strict_negatives=True
            )
        )
    )
    assert same_epochs(list(loader), first)


def test_a_model_learns_from_it(data):
    """Scores of links and negatives, and gradients to all parameters."""
    model = GraphSAGE(5, 8, num_layers=2)
    loader = LinkNeighborLoader(
        data, [4, 4], batch_size=400, neg_sampling="binary", exclude_seed_edges=True
    )
    for batch in loader:
        src, dst = model(batch.x / 200, batch.edge_index)[batch.edge_label_index]
        score = (src * dst).sum(-1)
        torch.nn.functional.binary_cross_entropy_with_logits(score, batch.edge_label).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


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
        (("user", "likes", "item"), ValueError, "has no 'edge_index'"),
        ((("user", "buys", "shop"), None), ValueError, "node types are"),
        ((BUYS, torch.tensor([[0], [ITEM]])), IndexError, r"\(destinations\) holds id 30"),
    ],
    ids=str,
)
def test_bad_heterogeneous_links(shop, links, error, message):
    with pytest.raises(error, match=message):
        LinkNeighborLoader(shop, [2], links)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_label": torch.ones(3)}, "edge_label must hold an entry for each of 1600 links"),
        ({"edge_label": torch.tensor(1.0)}, "edge_label must hold"),
        ({"input_id": torch.arange(3)}, "input_id must hold an entry for each of 1600"),
        ({"edge_label_time": torch.arange(1600)}, "'edge_label_time' is set, 'time_attr' is not"),
        ({"time_attr": "y"}, "'time_attr' is set, 'edge_label_time' is not"),
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
        pass

    for option in ({"strict_negatives": True, "neg_sampling": "binary"}, {"exclude_seed_edges": 1}):
        with pytest.raises(ValueError, match="need a sampler of khop's"):
            LinkNeighborLoader(shop, [2], BUYS, neighbor_sampler=Sampler(), **option)


def test_data_without_edge_index(data):
    sampler = NeighborSampler(data, [2])
    with pytest.raises(ValueError, match="the data has no 'edge_index'"):
        LinkNeighborLoader(Data(x=data.x), [2], neighbor_sampler=sampler)
