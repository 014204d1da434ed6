"""Anybody's (FeatureStore, GraphStore): the batches of the same graph as Data or HeteroData."""

import numpy as np
import pytest
import torch
import torch_geometric.loader
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data, HeteroData, TensorAttr
from torch_geometric.testing import MyGraphStore

from khop.loader import NeighborLoader
from khop.sampler import NeighborSampler
from support.loaders.stores import RowStore
from support.versions import of_newest_pyg

LAYOUTS = ("coo", "sorted", "csc", "csr")
RELATIONS = (("a", "to", "b"), ("b", "to", "a"), ("a", "self", "a"), ("c", "to", "a"))


def in_layout_order(edge_index, layout):
    """Order of the edges in a layout, by NumPy's stable sort."""
    if layout == "coo":
        return torch.arange(edge_index.size(1))
    side = 0 if layout == "csr" else 1
    return torch.from_numpy(np.argsort(edge_index[side].numpy(), kind="stable"))


def pointers(ids, count):
    """Row pointers of sorted ids."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(ids, minlength=count)]
                     ).cumsum(0)  # fmt: skip


def put_edges(store, edge_index, edge_type, layout, size):
    """Stores edges that are in the layout's order already."""
    row, col = edge_index
    if layout == "csc":
        col = pointers(col, size[1])
    elif layout == "csr":
        row = pointers(row, size[0])
    name = "coo" if layout == "sorted" else layout
    store.put_edge_index(
        (row, col),
        edge_type=edge_type,
        layout=name,
        size=size,
        is_sorted=layout in ("sorted", "csc"),
    )


def reordered(data, layout):
    """The graph with its edges, and their attributes, in the order of a layout."""
    data = data.clone()
    for store in data.edge_stores:
        order = in_layout_order(store.edge_index, layout)
        store.edge_index = store.edge_index[:, order]
        store.edge_attr = store.edge_attr[order]
    return data


def stores_of(data, layouts, **options):
    """A pair of stores that hold a Data, or a HeteroData whose types have one layout each."""
    features, graph = RowStore(**options), MyGraphStore()
    if isinstance(data, Data):
        for name in data.node_attrs():
            features.put_tensor(data[name], group_name=None, attr_name=name, index=None)
        features.put_tensor(data.edge_attr, group_name=None, attr_name="edge_attr", index=None)
        put_edges(graph, data.edge_index, None, layouts, (data.num_nodes, data.num_nodes))
        return features, graph
    for node_type in data.node_types:
        for name in data[node_type].node_attrs():
            features.put_tensor(data[node_type][name], node_type, name, None)
    for edge_type, layout in zip(data.edge_types, layouts, strict=True):
        size = tuple(data[t].num_nodes for t in (edge_type[0], edge_type[2]))
        features.put_tensor(data[edge_type].edge_attr, edge_type, "edge_attr", None)
        put_edges(graph, data[edge_type].edge_index, edge_type, layout, size)
    return features, graph


def same(ours, theirs):
    """Equal in all but num_nodes, which batches from stores always say."""
    names = set(theirs.keys()) - {"num_nodes"}
    assert set(ours.keys()) - {"num_nodes"} == names
    for name in names:
        if isinstance(theirs[name], torch.Tensor):
            assert ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name])
        else:
            assert ours[name] == theirs[name], name
    if "n_id" in names:
        assert ours.num_nodes == theirs.num_nodes == theirs.n_id.numel()
    return True


def same_batches(ours, theirs):
    """Number of batches of two loaders, which are equal in every attribute of every type."""
    count = 0
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, Data):
            assert same(a, b)
        else:
            assert set(a.node_types) == set(b.node_types)
            assert a.edge_types == b.edge_types
            assert all(same(a[t], b[t]) for t in b.node_types)
            assert all(same(a[t], b[t]) for t in b.edge_types)
        count += 1
    return count


def make_hetero(sizes=(40, 30, 5), counts=(200, 150, 80, 20), seed=0):
    """Features and edge attributes are ids; type 'c' has no features."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    size_of = dict(zip("abc", sizes, strict=True))
    for name in "ab":
        data[name].x = torch.arange(size_of[name]).float().view(-1, 1)
        data[name].y = torch.arange(size_of[name]) * 3
    data["c"].num_nodes = size_of["c"]
    for relation, count in zip(RELATIONS, counts, strict=True):
        ends = [
            torch.randint(size_of[t], (count,), generator=generator)
            for t in (relation[0], relation[2])
        ]
        data[relation].edge_index = torch.stack(ends)
        data[relation].edge_attr = torch.arange(count)
    return data


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fanouts", [[3, 2], [-1, -1]])
def test_homogeneous(data, layout, fanouts):
    """Every layout: n_id, e_id, attributes of nodes and edges, counts a hop, input_id."""
    data = reordered(data, layout)
    options = {"batch_size": 32, "seed": 5, "shuffle": True, "input_nodes": torch.arange(3, 150)}
    ours = NeighborLoader(stores_of(data, layout), fanouts, **options)
    assert same_batches(ours, NeighborLoader(data, fanouts, **options)) == 5


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("by_type", [False, True])
def test_heterogeneous(layout, by_type):
    """As above; a node type without features and edge attributes by edge type."""
    data = reordered(make_hetero(), layout)
    fanouts = {t: [2, i] for i, t in enumerate(RELATIONS)} if by_type else [3, -1]
    for seeds in (("a", torch.tensor([5, 1, 5, 39])), "b"):
        options = {"batch_size": 16, "seed": 2, "input_nodes": seeds}
        ours = NeighborLoader(stores_of(data, [layout] * 4), fanouts, **options)
        assert same_batches(ours, NeighborLoader(data, fanouts, **options)) >= 1


@settings(max_examples=25)
@given(
    sizes=st.tuples(*[st.integers(1, 8)] * 3),
    counts=st.tuples(*[st.integers(0, 20)] * 4),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 4),
    seed=st.integers(0, 100),
)
def test_random_graphs(sizes, counts, layouts, seed):
    """Layouts may differ between edge types; edges repeat, types may be empty."""
    data = make_hetero(sizes, counts, seed)
    for edge_type, layout in zip(RELATIONS, layouts, strict=True):
        order = in_layout_order(data[edge_type].edge_index, layout)
        data[edge_type].edge_index = data[edge_type].edge_index[:, order]
    options = {"input_nodes": "a", "batch_size": 3, "seed": seed}
    ours = NeighborLoader(stores_of(data, layouts), [2, -1], **options)
    assert same_batches(ours, NeighborLoader(data, [2, -1], **options)) == -(-sizes[0] // 3)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2,
                                     "worker_type": "process"}])  # fmt: skip
def test_workers(data, workers):
    """Threads and worker processes make the same batches."""
    options = {"batch_size": 50, "seed": 5, **workers}
    ours = NeighborLoader(stores_of(data, "coo"), [3, 2], **options)
    assert same_batches(ours, NeighborLoader(data, [3, 2], batch_size=50, seed=5)) == 4


def test_one_fetch_a_batch():
    """All attributes of nodes and edges of a batch are asked for together."""
    data = make_hetero()
    stores = stores_of(data, ["coo"] * 4)
    loader = NeighborLoader(stores, [2], "a", batch_size=20)
    stores[0].calls.clear()
    assert len(list(loader)) == len(stores[0].calls) == 2
    groups = [
        ("a", "x"),
        ("a", "y"),
        ("b", "x"),
        ("b", "y"),
        *((t, "edge_attr") for t in RELATIONS),
    ]
    assert stores[0].calls[0] == groups


def test_a_data_that_plays_both(data):
    """PyG's Data and HeteroData are stores themselves."""
    hetero = make_hetero()
    for graph, seeds in ((data, None), (hetero, "b")):
        options = {"input_nodes": seeds, "batch_size": 16, "seed": 1}
        loader = NeighborLoader((graph, graph), [3], **options)
        assert loader.data is graph
        assert same_batches(loader, NeighborLoader(graph, [3], **options)) >= 2


def test_data_beside_another_store(data):
    """Data lists its node attributes, without a group, NumPy arrays among them."""
    features, graph = stores_of(data, "coo")
    x, data.x = data.x, data.x.numpy()
    for batch in NeighborLoader((data, graph), [3], batch_size=64):
        assert torch.equal(batch.x, x[batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
    ours = NeighborLoader((features, data), [3], batch_size=64, seed=1)
    for batch in ours:  # whose number of nodes only shows when its edges are fetched
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


def test_numpy_stores(data):
    """What stores return as arrays, read-only ones too, arrives as tensors."""
    ours = NeighborLoader(stores_of(data, "coo", as_numpy=True), [3], batch_size=64, seed=1)
    assert same_batches(ours, NeighborLoader(data, [3], batch_size=64, seed=1)) == 4

    class Frozen(RowStore):
        def _get_tensor(self, attr):
            rows = super()._get_tensor(attr).numpy()
            rows.flags.writeable = False
            return rows

    features, graph = stores_of(data, "coo")
    frozen = Frozen()
    frozen.store = features.store
    batch = next(iter(NeighborLoader((frozen, graph), [3], batch_size=64)))
    batch.x += 1
    assert torch.equal(batch.x[:, 0].long(), batch.n_id + 1)


def test_seeds(data):
    """None, masks, lists; heterogeneous: a type, with any of these."""
    stores, mask = stores_of(data, "coo"), torch.arange(200) % 3 == 0
    for seeds in (None, mask, mask.tolist(), [3, 4], torch.tensor([7])):
        ours = NeighborLoader(stores, [2], seeds, seed=1, batch_size=50)
        assert same_batches(ours, NeighborLoader(data, [2], seeds, seed=1, batch_size=50)) >= 1
    hetero = make_hetero()
    stores = stores_of(hetero, ["coo"] * 4)
    for seeds in ("c", ("c", None), ("b", [1, 2])):
        ours = NeighborLoader(stores, [2], seeds, seed=1, batch_size=3)
        assert same_batches(ours, NeighborLoader(hetero, [2], seeds, seed=1, batch_size=3)) >= 1
    with pytest.raises(IndexError, match="input_nodes holds id 200"):
        NeighborLoader(stores_of(data, "coo"), [2], [200])
    with pytest.raises(ValueError, match="must be a node type"):
        NeighborLoader(stores, [2], ("paper", None))


def test_levels_of_attributes_without_a_group(data):
    """By number of rows, as in Data; by name where there are as many nodes as edges."""
    features, graph = stores_of(data, "coo")
    features.put_tensor(torch.arange(1600), None, "weight", None)
    features.put_tensor(torch.arange(200), None, "knowledge", None)
    for batch in NeighborLoader((features, graph), [3], batch_size=64):
        assert torch.equal(batch.weight, batch.e_id)
        assert torch.equal(batch.knowledge, batch.n_id)
    ring = Data(edge_index=torch.tensor([[0, 1, 2], [2, 0, 1]]), x=torch.arange(3), num_nodes=3)
    ring.edge_attr = torch.arange(3)
    batch = next(iter(NeighborLoader(stores_of(ring, "coo"), [1], [2])))
    assert batch.x.tolist() == batch.n_id.tolist() == [2, 0]
    assert batch.edge_attr.tolist() == batch.e_id.tolist() == [0]


def test_edge_groups_of_homogeneous_graphs(data):
    """(None, None), as PyG's own stores of distributed graphs call it, or any other tuple."""
    _, graph = stores_of(data, "coo")
    for group in ((None, None), ("node", "to", "node")):
        features = RowStore()
        features.put_tensor(data.edge_attr, group, "edge_attr", None)
        for batch in NeighborLoader((features, graph), [3], batch_size=64):
            assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


def test_several_layouts():
    """CSC is preferred, as with PyG: edge ids count its entries."""
    graph, features = MyGraphStore(), RowStore()
    edge_type = ("a", "to", "a")
    put_edges(graph, torch.tensor([[1, 0, 0], [2, 1, 2]]), edge_type, "coo", (3, 3))
    put_edges(graph, torch.tensor([[0, 1, 0], [1, 2, 2]]), edge_type, "csc", (3, 3))
    batch = next(iter(NeighborLoader((features, graph), [-1], ("a", [2]))))
    assert batch["a"].n_id.tolist() == [2, 1, 0]
    assert batch[edge_type].e_id.tolist() == [1, 2]


def test_without_edge_ids(data):
    """A sampler that returns none: no e_id, no edge attributes."""
    stores = stores_of(data, "coo")
    sampler = NeighborSampler(stores, [3], with_edge=False)
    batch = next(iter(NeighborLoader(stores, [3], neighbor_sampler=sampler)))
    assert "e_id" not in batch and "edge_attr" not in batch and "x" in batch


def test_classes_of_batches_and_hooks(data):
    """`custom_cls`, `transform` and `transform_sampler_output` are applied."""

    class Own(Data):
        pass

    def keep_first_edges(out):
        out.row, out.col, out.edge = out.row[:2], out.col[:2], out.edge[:2]
        return out

    loader = NeighborLoader(
        stores_of(data, "coo"),
        [3],
        [5],
        custom_cls=Own,
        transform=lambda b: setattr(b, "seen", True) or b,
        transform_sampler_output=keep_first_edges,
    )
    batch = next(iter(loader))
    assert isinstance(batch, Own) and batch.seen
    assert batch.num_edges == len(batch.edge_attr) == 2


@pytest.mark.process
@pytest.mark.parametrize("num_workers", [0, 2])
def test_khops_sampler_in_pygs_loaders(num_workers):
    """NeighborLoader and NodeLoader of PyG join what khop's sampler draws from stores."""
    data = make_hetero()
    stores = stores_of(data, ["coo", "csc", "csr", "sorted"])
    for edge_type, layout in zip(RELATIONS, ("coo", "csc", "csr", "sorted"), strict=True):
        order = in_layout_order(data[edge_type].edge_index, layout)
        data[edge_type].edge_index = data[edge_type].edge_index[:, order]
    stores = stores_of(data, ["coo", "csc", "csr", "sorted"])
    common = {"input_nodes": "a", "batch_size": 16, "num_workers": num_workers}
    theirs = torch_geometric.loader.NeighborLoader(
        stores, [3, 2], neighbor_sampler=NeighborSampler(stores, [3, 2], seed=1), **common
    )
    node_loader = torch_geometric.loader.NodeLoader(
        stores, NeighborSampler(stores, [3, 2], seed=1), **common
    )
    reference = torch_geometric.loader.NodeLoader(
        data, NeighborSampler(data, [3, 2], seed=1), **common
    )
    for a, b, c in zip(theirs, node_loader, reference, strict=True):
        for t in data.node_types:
            assert torch.equal(a[t].n_id, c[t].n_id) and torch.equal(b[t].n_id, c[t].n_id)
            assert "x" not in c[t] or torch.equal(a[t].x, c[t].x)
        for t in data.edge_types:
            assert torch.equal(a[t].edge_index, c[t].edge_index)
            assert torch.equal(b[t].e_id, c[t].e_id)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pygs_own_sampler_takes_the_same_neighbours(layout):
    """With all neighbours: equal nodes and edges of each type, each edge once."""
    pytest.importorskip("torch_sparse")
    data = reordered(make_hetero(), layout)
    data["c"].x = torch.arange(5)  # PyG's sampler knows no types without features
    stores = stores_of(data, [layout] * 4)
    common = {"input_nodes": "a", "batch_size": 16}
    theirs = torch_geometric.loader.NeighborLoader(stores, [-1, -1], **common)
    for a, b in zip(NeighborLoader(stores, [-1, -1], **common), theirs, strict=True):
        for t in "ab":
            assert a[t].n_id.sort()[0].tolist() == b[t].n_id.sort()[0].tolist()
        for t in data.edge_types:
            assert a[t].e_id.sort()[0].tolist() == b[t].e_id.sort()[0].tolist()


def test_pygs_sampler_in_our_loader(data):
    """Draws by PyG in an order of its own, joined by khop with edge attributes."""
    pytest.importorskip("torch_sparse")
    stores = stores_of(data, "coo")
    sampler = torch_geometric.sampler.NeighborSampler(stores, [3, 3])
    for batch in NeighborLoader(stores, [3, 3], batch_size=50, neighbor_sampler=sampler):
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)
        assert torch.equal(batch.edge_attr.view(-1).long(), batch.e_id)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_errors(data):
    """What is wrong with the stores, by name."""
    features, graph = stores_of(data, "coo")
    with pytest.raises(
        TypeError, match=r"\(FeatureStore, GraphStore\).*'MyGraphStore', 'RowStore'"
    ):
        NeighborLoader((graph, features), [2])
    with pytest.raises(ValueError, match="lists no edges"):
        NeighborLoader((features, MyGraphStore()), [2])
    mixed = MyGraphStore()
    put_edges(mixed, data.edge_index, None, "coo", (200, 200))
    put_edges(mixed, data.edge_index, ("a", "to", "a"), "coo", (200, 200))
    with pytest.raises(ValueError, match="both with and without"):
        NeighborLoader((features, mixed), [2])
    unsized = MyGraphStore()
    unsized.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo")
    with pytest.raises(ValueError, match="set the 'size'"):
        NeighborLoader((RowStore(), unsized), [2])
    assert len(NeighborLoader((features, unsized), [2])) == 200  # nodes: those of 'x'
    broken = MyGraphStore()
    wrong = pointers(data.edge_index[1].sort()[0], 200)
    wrong[3] = 1500
    broken.put_edge_index(
        (data.edge_index[0], wrong), edge_type=None, layout="csc", size=(200, 200)
    )
    with pytest.raises(ValueError, match="decrease"):
        NeighborLoader((features, broken), [2])
    put_edges(small := MyGraphStore(), data.edge_index, None, "csr", (200, 200))
    small.store = {(None, "csr", False, (90, 90)): next(iter(small.store.values()))}
    with pytest.raises(ValueError, match="for 200 source nodes, but there are 90"):
        NeighborLoader((features, small), [2])


def test_stores_that_break_their_word(data):
    """Rows that do not come, or too few, are errors, not wrong batches."""
    features, graph = stores_of(data, "coo")
    loader = NeighborLoader((features, graph), [2], batch_size=10)
    features._get_tensor = lambda attr: None
    with pytest.raises(KeyError, match=r"lists attribute '[xy]' of group None, but returns not"):
        next(iter(loader))
    features._get_tensor = lambda attr: data.x[:1]
    with pytest.raises(ValueError, match=r"returned 1 rows of attribute '[xy]'"):
        next(iter(loader))


def test_attributes_keep_what_a_store_lists(data):
    """A store's own attribute objects, of a class of its own, are copied and not changed."""

    class Versioned(TensorAttr):
        version = 7

    class Store(RowStore):
        listed = (Versioned(None, "x"),)

        def get_all_tensor_attrs(self):
            return list(self.listed)

        def _get_tensor(self, attr):
            assert attr.version == 7
            return super()._get_tensor(attr)

    features, graph = stores_of(data, "coo")
    own = Store()
    own.store = features.store
    list(NeighborLoader((own, graph), [2], batch_size=100))
    assert not own.listed[0].is_set("index")


@of_newest_pyg
@pytest.mark.parametrize("kind", ["LightningNodeData", "LightningLinkData"])
def test_lightning_data_modules(data, kind, monkeypatch):
    """PyG's data modules take khop's sampler; without Lightning all but its base class runs."""
    from torch_geometric.data.lightning import datamodule

    monkeypatch.setattr(datamodule, "_pl_is_available", True)
    module = getattr(datamodule, kind)
    sampler = NeighborSampler(data, [3, 2], seed=1)
    if kind == "LightningNodeData":
        made = module(data, torch.arange(64), node_sampler=sampler, batch_size=16, pin_memory=False)
        for batch in made.train_dataloader():
            assert torch.equal(batch.x[:, 0].long(), batch.n_id)
            assert torch.equal(batch.edge_attr.view(-1).long(), batch.e_id)
    else:
        made = module(
            data, data.edge_index[:, :64], link_sampler=sampler, batch_size=16, pin_memory=False
        )
        assert made.train_dataloader().link_sampler is sampler
