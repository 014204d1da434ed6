"""The in-memory loader on heterogeneous graphs, against brute force, PyG and its own invariants."""

import pickle

import numpy as np
import pytest
import torch
import torch_geometric.loader
from hypothesis import given, settings, strategies as st
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero
from torch_geometric.sampler import NumNeighbors

from khop.loader import NeighborLoader
from khop.sampler import NeighborSampler
from support.versions import with_to_hetero

TYPES = ("a", "b", "c")
RELATIONS = (
    ("a", "to", "b"),
    ("b", "to", "a"),
    ("a", "self", "a"),
    ("c", "to", "a"),
    ("a", "never", "c"),
)


def make_graph(sizes=(60, 40, 5), counts=(300, 250, 120, 40, 0), seed=0):
    """Features and edge attributes are ids; 'c' has no features; 'never' has no edges."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for name, size in zip(TYPES, sizes, strict=True):
        if name == "c":
            data[name].num_nodes = size
        else:
            data[name].x = torch.arange(size).float().view(-1, 1)
    size_of = dict(zip(TYPES, sizes, strict=True))
    for relation, count in zip(RELATIONS, counts, strict=True):
        ends = [
            torch.randint(max(size_of[t], 1), (count if size_of[t] else 0,), generator=generator)
            for t in (relation[0], relation[2])
        ]
        shortest = min(len(e) for e in ends)
        data[relation].edge_index = torch.stack([e[:shortest] for e in ends])
        data[relation].edge_attr = torch.arange(shortest)
    return data


def brute_force(data, seed_type, seeds, hops):
    """Nodes by hop and edges by hop of each type, all neighbours taken, in plain Python."""
    nodes = {t: [] for t in data.node_types}
    nodes[seed_type] = list(seeds)
    frontier = {t: list(nodes[t]) for t in data.node_types}
    edges = {t: [] for t in data.edge_types}
    counts = {t: [len(nodes[t])] for t in data.node_types}
    edge_counts = {t: [] for t in data.edge_types}
    for _ in range(hops):
        before = {t: len(nodes[t]) for t in data.node_types}
        for relation in data.edge_types:
            src, dst = data[relation].edge_index.tolist()
            drawn = [
                (i, e) for v in frontier[relation[2]] for e, i in enumerate(src) if dst[e] == v
            ]
            edges[relation] += [e for _, e in drawn]
            edge_counts[relation].append(len(drawn))
            for node, _ in drawn:
                if node not in nodes[relation[0]]:
                    nodes[relation[0]].append(node)
        frontier = {t: nodes[t][before[t] :] for t in data.node_types}
        for t in data.node_types:
            counts[t].append(len(frontier[t]))
    return nodes, edges, counts, edge_counts


def check(data, batch, fanouts, replace=False):
    """The invariants of any batch."""
    for t in data.node_types:
        assert sum(batch[t].num_sampled_nodes) == len(batch[t].n_id)
        if "x" in data[t]:
            assert torch.equal(batch[t].x[:, 0].long(), batch[t].n_id)
    for relation in data.edge_types:
        store = batch[relation]
        row, col = store.edge_index
        assert torch.equal(store.edge_attr, store.e_id)
        ends = [batch[relation[0]].n_id[row], batch[relation[2]].n_id[col]]
        assert torch.equal(torch.stack(ends), data[relation].edge_index[:, store.e_id])
        assert sum(store.num_sampled_edges) == len(store.e_id)
        first = 0
        for hop, count in enumerate(store.num_sampled_edges):
            drawn = col[first : first + count]
            if len(drawn) and fanouts[hop] >= 0:
                assert torch.bincount(drawn).max() <= fanouts[hop]
            if not replace:
                pairs = torch.stack([drawn, store.e_id[first : first + count]])
                assert pairs.unique(dim=1).size(1) == count
            first += count


@pytest.mark.parametrize("seed_type", TYPES)
def test_full_neighbourhood_is_brute_force(seed_type):
    """Nodes, edges, their order and the hop counts."""
    data = make_graph()
    seeds = [3, 0, 4]
    loader = NeighborLoader(data, [-1, -1, -1], (seed_type, torch.tensor(seeds)), batch_size=3)
    (batch,) = loader
    nodes, edges, counts, edge_counts = brute_force(data, seed_type, seeds, 3)
    for t in data.node_types:
        assert batch[t].n_id.tolist() == nodes[t]
        assert batch[t].num_sampled_nodes == counts[t]
    for t in data.edge_types:
        assert batch[t].e_id.tolist() == edges[t]
        assert batch[t].num_sampled_edges == edge_counts[t]
    check(data, batch, [-1] * 3)


@given(
    st.tuples(*[st.integers(1, 30)] * 3),
    st.tuples(*[st.integers(0, 80)] * 5),
    st.lists(st.integers(-1, 5), max_size=3),
    st.booleans(),
    st.sampled_from(TYPES),
    st.integers(0, 2**32),
)
@settings(max_examples=60)
def test_invariants(sizes, counts, fanouts, replace, seed_type, seed):
    """Random graphs, fan-outs and seed types."""
    data = make_graph(sizes, counts, seed)
    loader = NeighborLoader(
        data, fanouts, (seed_type, None), batch_size=7, replace=replace, seed=seed, shuffle=True
    )
    seen = []
    for batch in loader:
        check(data, batch, fanouts, replace)
        size = batch[seed_type].batch_size
        assert torch.equal(batch[seed_type].n_id[:size], batch[seed_type].input_id)
        seen += batch[seed_type].input_id.tolist()
    assert sorted(seen) == list(range(data[seed_type].num_nodes))


def test_same_as_pygs_sets():
    """At full fan-out PyG's own kernel draws the same nodes and edges."""
    pytest.importorskip("torch_sparse")
    data = make_graph()
    common = {"input_nodes": ("a", torch.arange(30)), "batch_size": 10}
    ours = NeighborLoader(data, [-1, -1], **common)
    theirs = torch_geometric.loader.NeighborLoader(data, [-1, -1], **common)
    for a, b in zip(ours, theirs, strict=True):
        for t in data.node_types:
            assert torch.equal(a[t].n_id.sort().values, b[t].n_id.sort().values)
        for t in data.edge_types:
            assert torch.equal(a[t].e_id.sort().values, b[t].e_id.sort().values)


def test_forms_of_fanouts_and_seeds():
    """Lists, dictionaries and PyG's NumNeighbors; a type, a mask, a list of ids."""
    data = make_graph()
    by_type = {t: [2, 3] for t in data.edge_types}
    named = NumNeighbors({RELATIONS[0]: [2, 3]}, default=[2, 3])
    batches = [
        next(iter(NeighborLoader(data, f, ("a", None), batch_size=9, seed=4)))
        for f in ([2, 3], by_type, named)
    ]
    for other in batches[1:]:
        assert all(torch.equal(other[t].n_id, batches[0][t].n_id) for t in TYPES)
    mask = torch.zeros(60, dtype=torch.bool)
    mask[[5, 50]] = True
    for seeds in (mask, [5, 50], np.array([5, 50])):
        batch = next(iter(NeighborLoader(data, [2], ("a", seeds), batch_size=2)))
        assert batch["a"].n_id[:2].tolist() == [5, 50]
    with pytest.raises(ValueError, match="names no fan-outs for edge types"):
        NeighborLoader(data, {RELATIONS[0]: [2]}, "a")
    with pytest.raises(ValueError, match="hops must be the same across all edge types"):
        NeighborLoader(data, {**by_type, RELATIONS[0]: [2]}, "a")
    for seeds in (None, torch.arange(3), "d", ("d", None)):
        with pytest.raises(ValueError, match=r"node type, or \(node type, seeds\)"):
            NeighborLoader(data, [2], seeds)
    with pytest.raises(IndexError, match="id 60 at position 0"):
        NeighborLoader(data, [2], ("a", torch.tensor([60])))


@pytest.mark.parametrize("workers", [
    {"num_workers": 2},
    {"num_workers": 2, "worker_type": "process"},
    {"num_workers": 1, "worker_type": "process", "filter_per_worker": False},
])  # fmt: skip
def test_workers(workers):
    """Threads and processes make the same batches as none."""
    data = make_graph()
    common = {"input_nodes": "a", "batch_size": 16, "shuffle": True, "seed": 2}
    alone = list(NeighborLoader(data, [3, 3], **common))
    for ours, theirs in zip(NeighborLoader(data, [3, 3], **common, **workers), alone, strict=True):
        assert all(torch.equal(ours[t].n_id, theirs[t].n_id) for t in TYPES)
        assert all(torch.equal(ours[t].edge_index, theirs[t].edge_index) for t in RELATIONS)


@with_to_hetero
def test_in_pygs_loader_and_model():
    """The sampler in PyG's own loader, pickled, and a heterogeneous model on its batches."""
    data = make_graph()
    sampler = pickle.loads(pickle.dumps(NeighborSampler(data, [4, 4], seed=1)))
    data["c"].x = torch.arange(5).float().view(-1, 1)
    loader = torch_geometric.loader.NodeLoader(data, sampler, ("a", None), batch_size=20)
    model = to_hetero(GraphSAGE(1, 8, num_layers=2, out_channels=3), data.metadata())
    for batch in loader:
        check(data, batch, [4, 4])
        out = model(batch.x_dict, batch.edge_index_dict)
        assert out["a"].shape == (len(batch["a"].n_id), 3)


def test_hook_that_drops_a_type():
    """What a hook returns is joined as PyG joins it, types that it left out included."""

    def without_c(out):
        del out.node["c"], out.num_sampled_nodes["c"]
        for relation in (("c", "to", "a"), ("a", "never", "c")):
            del out.row[relation], out.col[relation], out.edge[relation]
            del out.num_sampled_edges[relation]
        return out

    data = make_graph()
    loader = NeighborLoader(data, [2], "a", batch_size=20, transform_sampler_output=without_c)
    for batch in loader:
        assert batch["c"].num_nodes == 0
        assert batch["c", "to", "a"].edge_index.shape == (2, 0)
