"""What PyG asserts of its `LinkNeighborLoader`, asserted of khop's."""

import inspect
import itertools
import pickle

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE

from khop.loader import LinkNeighborLoader
from khop.sampler import NeighborSampler
from support.loaders.links import BOUGHT, BUYS, KNOWS, NEGATIVES, are_same, ends_of
from support.reference import oracle

_WORKERS = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "worker_type": "process"},
    {"num_workers": 1, "worker_type": "process", "filter_per_worker": False},
]
workers = pytest.mark.parametrize(
    "workers", _WORKERS, ids=["none", "threads", "processes", "join_here"]
)


def test_is_pygs():
    """The same arguments in the same order, the same defaults, then khop's own."""
    ours = inspect.signature(LinkNeighborLoader).parameters
    theirs = inspect.signature(torch_geometric.loader.LinkNeighborLoader).parameters
    shared = [name for name in theirs if name != "kwargs"]
    assert list(ours)[: len(shared)] == shared
    assert all(ours[name].default == theirs[name].default for name in shared)
    assert issubclass(LinkNeighborLoader, torch_geometric.loader.LinkNeighborLoader)


@pytest.mark.parametrize(
    "workers,neg",
    [
        *itertools.product(_WORKERS[:2], NEGATIVES),
        *zip(_WORKERS[2:], NEGATIVES[2:4], strict=True),
    ],
    ids=str,
)
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
    for graph, links in ((data, None), (shop, BUYS), (shop, KNOWS)):
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


@pytest.mark.parametrize(
    "workers,neg,link_type",
    [
        *itertools.product([{}], NEGATIVES, [BUYS, BOUGHT, KNOWS]),
        *itertools.product([{"num_workers": 2}], NEGATIVES, [BOUGHT]),
        (_WORKERS[2], "binary", KNOWS),
        (_WORKERS[2], NEGATIVES[4], BUYS),
    ],
    ids=str,
)
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
