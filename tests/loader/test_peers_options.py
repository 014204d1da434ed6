"""Batches of all neighbours, attribute for attribute those of PyG's loaders with its own kernels.

PyG needs torch-sparse, or pyg-lib for trees, times and weights; tests skip what it cannot do. What
khop's batches must be is said without PyG in `walks`, so that this does not depend on it.
"""

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from torch_geometric.data import HeteroData

from khop.loader import LinkNeighborLoader, NeighborLoader
from support.loaders import random_graphs
from support.reference import walks

PYG_LIB = torch_geometric.typing.WITH_PYG_LIB
pytestmark = [
    pytest.mark.skipif(
        not (PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE),
        reason="PyG has no kernels: neither pyg-lib nor torch-sparse is installed",
    ),
    pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a:UserWarning"),
    pytest.mark.filterwarnings("ignore:.* reverse:UserWarning"),
]
needs_pyg_lib = pytest.mark.skipif(not PYG_LIB, reason="torch-sparse cannot do this")
HETERO = pytest.mark.parametrize("hetero", [False, True], ids=["homogeneous", "heterogeneous"])


def sort_edges(data, time_attr=None):
    """Edges by destination and time, stable; PyG's own sort is not."""
    view = walks.View(data, time_attr)
    for t in view.edge_types:
        store = view.store(t)
        src, dst = view.ends[t]
        key = [
            (v, view.time(t, u, e) if view.has_times(t) else 0, e)
            for e, (u, v) in enumerate(zip(src, dst, strict=True))
        ]
        order = torch.tensor([e for _, _, e in sorted(key)], dtype=torch.int64)
        for name in [n for n in store.keys() if n.startswith("edge_")]:  # noqa: SIM118
            store[name] = store[name][:, order] if name == "edge_index" else store[name][order]
    return data


def in_order_of_ids(batch):
    """The same batch with nodes in order of trees and ids, and edges in order of ids.

    torch-sparse goes through edge types in an order of its own.
    """
    batch, places = batch.clone(), {}
    for t in batch.node_types:
        store = batch[t]
        tree = store.batch if "batch" in store else torch.zeros_like(store.n_id)
        order = torch.argsort(tree * 1000 + store.n_id, stable=True)
        places[t] = torch.argsort(order)
        for name in ("n_id", "batch", "x", "time"):
            if name in store:
                store[name] = store[name][order]
        for name in ("src_index", "dst_pos_index", "dst_neg_index"):
            if name in store:
                store[name] = places[t][store[name]]
    for t in batch.edge_types:
        store = batch[t]
        for name in ("edge_index", "edge_label_index"):
            if name in store:
                ends = zip((t[0], t[2]), store[name], strict=True)
                store[name] = torch.stack([places[kind][end] for kind, end in ends])
        key = store.edge_index[1] * 1000 + store.edge_index[0]
        order = torch.argsort(store.e_id if "e_id" in store else key, stable=True)
        store.edge_index = store.edge_index[:, order]
        for name in ("e_id", "edge_attr", "edge_time", "edge_weight"):
            if name in store:
                store[name] = store[name][order]
    return batch


def assert_same(ours, theirs, kind):
    """Every attribute of every type: names, kinds, dtypes, values. Counts may be khop's alone."""
    # Of several drawn edges between two nodes, PyG lets a bidirectional batch name any.
    without = ("e_id", "edge_attr", "edge_time") if kind == "bidirectional" else ()
    if not isinstance(theirs, HeteroData):
        assert_same_store(ours, theirs, without)
        return
    if not PYG_LIB or kind == "induced":  # which is torch-sparse's in any case
        ours, theirs = in_order_of_ids(ours), in_order_of_ids(theirs)
    assert set(ours.node_types) == set(theirs.node_types)
    assert set(ours.edge_types) == set(theirs.edge_types)
    for name in (*theirs.node_types, *theirs.edge_types):
        assert_same_store(ours[name], theirs[name], without)


def assert_same_store(ours, theirs, without):
    extra = set() if PYG_LIB else {"num_sampled_nodes", "num_sampled_edges"}
    assert set(ours.keys()) - extra == set(theirs.keys()) - extra
    for name in set(theirs.keys()) - set(without):
        a, b = ours[name], theirs[name]
        assert type(a) is type(b), name
        if isinstance(b, torch.Tensor):
            assert a.dtype == b.dtype and torch.equal(a, b), name
        else:
            assert a == b, name


def compare(ours, theirs, kind="directional"):
    count = 0
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b, kind)
        count += 1
    assert count > 0


def node_loaders(data, fanouts, seeds, **options):
    return [
        kind(data, fanouts, seeds, batch_size=8, is_sorted=True, **options)
        for kind in (NeighborLoader, torch_geometric.loader.NeighborLoader)
    ]


@HETERO
@pytest.mark.parametrize("kind", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("fanouts", [[-1], [-1, -1], [-1, 0, -1], []], ids=str)
def test_nodes(hetero, kind, fanouts):
    data = sort_edges(random_graphs.heterogeneous() if hetero else random_graphs.homogeneous())
    seeds = ("a", torch.arange(0, 30, 2)) if hetero else torch.arange(0, 40, 3)
    compare(*node_loaders(data, fanouts, seeds, subgraph_type=kind), kind)


def test_by_edge_type():
    """Fan-outs of each type, all types present, seeds of each type."""
    data = sort_edges(random_graphs.heterogeneous())
    fanouts = {t: [-1, -1 if i % 2 else 0] for i, t in enumerate(data.edge_types)}
    for node_type in data.node_types:
        compare(*node_loaders(data, fanouts, node_type))


def test_masks_input_ids_and_short_batches():
    data = sort_edges(random_graphs.homogeneous())
    mask = torch.arange(40) % 3 == 1
    for options in ({}, {"input_id": torch.arange(13) + 7}, {"drop_last": True}):
        compare(*node_loaders(data, [-1, -1], mask, **options))


@pytest.mark.parametrize(
    "neg_sampling", [None, {"mode": "binary", "amount": 1}, {"mode": "triplet", "amount": 2}],
    ids=["none", "binary", "triplet"],
)  # fmt: skip
@pytest.mark.parametrize("link_type", [None, ("a", "to", "b"), ("a", "self", "a")], ids=str)
def test_links(neg_sampling, link_type):
    """Without negatives equal; with negatives, which are drawn, of the same form."""
    data = random_graphs.homogeneous() if link_type is None else random_graphs.heterogeneous()
    data = sort_edges(data)
    options = {"batch_size": 8, "is_sorted": True, "neg_sampling": neg_sampling}
    ours, theirs = (
        kind(data, [-1, -1], link_type, **options)
        for kind in (LinkNeighborLoader, torch_geometric.loader.LinkNeighborLoader)
    )
    if neg_sampling is None:
        compare(ours, theirs)
        return
    for a, b in zip(ours, theirs, strict=True):
        assert_same_form(a, b)


def assert_same_form(ours, theirs):
    """Names, dtypes and, but for what depends on draws, shapes."""
    found = []
    for batch in (ours, theirs):
        hetero = isinstance(batch, HeteroData)
        kinds = (*batch.node_types, *batch.edge_types) if hetero else (None,)
        found.append(
            {
                (kind, name): (value.dtype, value.dim()) if isinstance(value, torch.Tensor) else 0
                for kind in kinds
                for name, value in walks.Stores(batch)(kind).items()
                if not name.startswith("num_sampled")
            }
        )
    assert found[0] == found[1]
    for name in ("edge_label", "edge_label_index", "src_index", "dst_pos_index", "dst_neg_index"):
        shapes = [[s[name].shape for s in batch.stores if name in s] for batch in (ours, theirs)]
        assert shapes[0] == shapes[1]


@needs_pyg_lib
@HETERO
@pytest.mark.parametrize("kind", ["directional", "bidirectional"])
def test_trees(hetero, kind):
    data = sort_edges(random_graphs.heterogeneous() if hetero else random_graphs.homogeneous())
    seeds = "a" if hetero else None
    compare(*node_loaders(data, [-1, -1], seeds, disjoint=True, subgraph_type=kind), kind)


@needs_pyg_lib
@HETERO
@pytest.mark.parametrize("level", ["node", "edge"])
@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 2]], ids=str)
@pytest.mark.parametrize("given", [False, True])
def test_times(hetero, level, fanouts, given):
    """Strategy 'last' draws nothing by chance."""
    if level == "edge" and not given:
        pytest.skip("seeds have no times of their own")
    name = "time" if level == "node" else "edge_time"
    data = random_graphs.heterogeneous(times=level) if hetero else random_graphs.homogeneous(
        times=level)  # fmt: skip
    data = sort_edges(data, name)
    count = 30 if hetero else 40
    options = {"time_attr": name, "temporal_strategy": "last" if fanouts[0] > 0 else "uniform"}
    if given:
        options["input_time"] = torch.arange(count) % 7
    compare(*node_loaders(data, fanouts, "a" if hetero else None, **options))


@needs_pyg_lib
@pytest.mark.parametrize("link_type", [None, ("a", "to", "b")], ids=str)
def test_links_at_a_time(link_type):
    make = random_graphs.homogeneous if link_type is None else random_graphs.heterogeneous
    data = sort_edges(make(times="node"), "time")
    store = data if link_type is None else data[link_type]
    times = torch.arange(store.edge_index.size(1)) % 7
    options = {"edge_label_time": times, "time_attr": "time", "batch_size": 8, "is_sorted": True}
    compare(
        *(
            kind(data, [-1, -1], link_type, **options)
            for kind in (LinkNeighborLoader, torch_geometric.loader.LinkNeighborLoader)
        )
    )


@needs_pyg_lib
def test_weights():
    """One neighbour of weight 1 a node, the others of weight 0: both take it."""
    data = sort_edges(random_graphs.homogeneous())
    dst = data.edge_index[1]
    data.edge_weight = torch.cat([torch.ones(1), (dst[1:] != dst[:-1]).float()])
    compare(*node_loaders(data, [1, 1], None, weight_attr="edge_weight"))
