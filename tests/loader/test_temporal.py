"""Batches in which each seed sees the graph at a time."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from khop.loader import LinkNeighborLoader, NeighborLoader
from support.loaders import random_graphs
from support.reference import walks

INT64 = torch.iinfo(torch.int64)
levels = pytest.mark.parametrize("level", ["node", "edge"])
strategies = pytest.mark.parametrize("strategy", ["uniform", "last"])


def star(dtype=torch.int64, level="node"):
    """Four neighbours of node 0, in the order of the edge list, and their times:

    1 (t=5)   2 (t=1)   3 (t=1)   4 (t=0)
          \\        \\        /        /
                    0 (t=3)
    """
    edge_index = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])
    data = Data(edge_index=edge_index, num_nodes=5)
    if level == "node":
        data.time = torch.tensor([3, 5, 1, 1, 0]).to(dtype)
    else:
        data.edge_time = torch.tensor([5, 1, 1, 0]).to(dtype)
    return data


def attribute(level):
    return "time" if level == "node" else "edge_time"


def drawn(data, num_neighbors, time, level="node", **options):
    """Neighbours of node 0 in the batch of that seed at a time."""
    time = None if time is None else torch.as_tensor([time])
    options = {"time_attr": attribute(level), "input_time": time, **options}
    (batch,) = NeighborLoader(data, num_neighbors, torch.tensor([0]), **options)
    assert batch.n_id[0] == 0
    return batch.n_id[1:].tolist()


@levels
@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64],
    ids=str,
)
def test_seed_sees_neighbors_up_to_its_time(level, dtype):
    """Those up to its time, the latest last, ties in the order of the edge list."""
    data = star(dtype, level)
    wanted = {-1: [], 0: [4], 1: [4, 2, 3], 4: [4, 2, 3], 5: [4, 2, 3, 1]}
    for time, neighbors in wanted.items():
        assert drawn(data, [-1], time, level) == neighbors
        assert drawn(data, [4], float(time) + 0.5 * (time < 5), level) == neighbors
        for count in (0, 1, 2, 3, 9):
            latest = neighbors[max(len(neighbors) - count, 0) :]
            got = drawn(data, [count], time, level, temporal_strategy="last")
            assert got == latest


def test_own_times_of_seeds():
    """Node 0 itself is of time 3; it is there though its own time be later than the given one."""
    assert drawn(star(), [-1], None) == [4, 2, 3]
    assert drawn(star(torch.float32), [2], None, temporal_strategy="last") == [2, 3]
    assert drawn(star(), [-1], -7) == []


@levels
def test_extreme_times(level):
    """Any int64, infinities, fractions and negative zero."""
    data = star(level=level)
    data[attribute(level)][-4:] = torch.tensor([INT64.max, 0, INT64.min, -1])
    order = [3, 4, 2, 1]
    for time, count in ((INT64.min, 1), (-1, 2), (0, 3), (INT64.max - 1, 3), (INT64.max, 4)):
        assert drawn(data, [-1], time, level) == order[:count]
    for time, count in ((-0.5, 2), (float("inf"), 4), (-0.0, 3), (1e30, 4)):
        assert drawn(data, [-1], torch.tensor(time, dtype=torch.float64), level) == order[:count]
    data[attribute(level)] = data[attribute(level)].double()
    data[attribute(level)][-4:] = torch.tensor([float("inf"), -0.0, float("-inf"), -1.5])
    for time, count in ((-1e9, 1), (-1.5, 2), (-1, 2), (0, 3), (-0.0, 3), (float("inf"), 4)):
        assert drawn(data, [-1], torch.tensor(time, dtype=torch.float64), level) == order[:count]


@levels
@strategies
@pytest.mark.parametrize("hetero,floats", [(False, True), (True, False)])
@pytest.mark.parametrize("fanouts", [[-1, -1], [2, 3], [1, 0, 2]], ids=str)
def test_no_batch_holds_what_comes_later(level, strategy, hetero, floats, fanouts):
    """Every attribute of every batch follows from the graph and from what was drawn."""
    kind = random_graphs.heterogeneous if hetero else random_graphs.homogeneous
    data = kind(times=level, floats=floats, weights=fanouts == [2, 3])
    options = {"time_attr": attribute(level), "temporal_strategy": strategy, "disjoint": False}
    if fanouts == [2, 3]:
        options |= {"weight_attr": "edge_weight", "replace": strategy == "uniform"}
    view = walks.View(data, options["time_attr"], options.get("weight_attr"))
    seed_type, num_seeds = ("a", 30) if hetero else (None, 40)
    own = view.node_times.get(seed_type)
    for given in [torch.arange(num_seeds) % 8 - 1, *([None] if own else [])]:
        seeds = torch.arange(num_seeds).flip(0)
        loader = NeighborLoader(
            data, fanouts, (seed_type, seeds) if hetero else seeds, given, batch_size=9, **options
        )
        assert len(loader) == -(-num_seeds // 9)
        for batch, places in zip(loader, torch.arange(num_seeds).split(9), strict=True):
            ids = seeds[places].tolist()
            times = None if given is None else given[places].tolist()
            out = walks.check(
                view, batch, fanouts, (seed_type, ids) if hetero else ids, times, **options
            )
            assert_in_time(view, out, times or [own[v] for v in ids])


def assert_in_time(view, out, times):
    """No node but seeds, no edge that is later than its tree; edges stay in their trees."""
    for node_type, members in out.nodes.items():
        for tree, node in members[out.nodes_per_hop[node_type][0] :]:
            assert view.node_times.get(node_type, [INT64.min] * 1000)[node] <= times[tree]
    for edge_type, edges in out.edges.items():
        ends = [out.nodes[edge_type and edge_type[i]] for i in (0, 2)]
        for row, col, edge in edges:
            assert ends[0][row][0] == ends[1][col][0]
            if edge_type in view.edge_times:
                assert view.edge_times[edge_type][edge] <= times[ends[1][col][0]]


@levels
@pytest.mark.parametrize("fanout", [1, 3, 7])
def test_last_are_the_latest(level, fanout):
    """The k latest of each seed's neighbours; of equal times those further back in the list."""
    data = random_graphs.homogeneous(times=level, count=600)
    src, dst = data.edge_index.tolist()
    time_of = (lambda e: int(data.time[src[e]])) if level == "node" else (
        lambda e: int(data.edge_time[e]))  # fmt: skip
    options = {"time_attr": attribute(level), "temporal_strategy": "last", "batch_size": 40}
    for now in range(-2, 7):
        (batch,) = NeighborLoader(data, [fanout], None, torch.full((40,), now), **options)
        wanted = []
        for seed in range(40):
            seen = [e for e, v in enumerate(dst) if v == seed and time_of(e) <= now]
            wanted += sorted(seen, key=lambda e: (time_of(e), e))[-fanout:]
        assert batch.e_id.tolist() == wanted
        assert batch.num_sampled_edges == [len(wanted)]


def test_types_with_and_without_times():
    """Types without the attribute know no time; of one that only comes later there is no node.

    u0 (t=1) <- i0 (t=9), k0 (no times);  u0 <- u1 (t=0)
    """
    data = HeteroData()
    data["u"].time, data["i"].time = torch.tensor([1, 0]), torch.tensor([9])
    data["u"].num_nodes, data["i"].num_nodes, data["k"].num_nodes = 2, 1, 1
    for src, dst in (("i", "u"), ("k", "u")):
        data[src, "to", dst].edge_index = torch.tensor([[0], [0]])
    data["u", "to", "u"].edge_index = torch.tensor([[1], [0]])
    data["u", "to", "k"].edge_index = torch.tensor([[0, 1], [0, 0]])
    common = {"time_attr": "time", "input_nodes": ("u", torch.tensor([0]))}
    (batch,) = NeighborLoader(data, [-1, -1], **common)
    assert batch["i"].n_id.tolist() == batch["i"].time.tolist() == []
    assert batch["i"].num_sampled_nodes == [0, 0, 0]
    assert batch["i", "to", "u"].edge_index.shape == (2, 0)
    assert batch["u"].n_id.tolist() == [0, 1]
    assert batch["k"].n_id.tolist() == [0]
    assert "time" not in batch["k"] and batch["k"].batch.tolist() == [0]
    (batch,) = NeighborLoader(data, [-1], input_time=torch.tensor([9]), **common)
    assert batch["i"].n_id.tolist() == [0]
    assert "seed_time" not in batch["i"] and batch["u"].seed_time.tolist() == [9]
    seeds = ("k", torch.tensor([0]))
    (batch,) = NeighborLoader(data, [-1], seeds, torch.tensor([0]), time_attr="time")
    assert batch["u"].n_id.tolist() == [1]


def test_edge_types_with_and_without_times():
    """An edge type without times is drawn from at any time, also by strategy 'last'."""
    timed = [("a", "to", "b"), ("a", "self", "a")]
    data = random_graphs.heterogeneous(times=tuple(timed))
    view = walks.View(data, "edge_time")
    assert list(view.edge_times) == timed
    for strategy in ("uniform", "last"):
        options = {"time_attr": "edge_time", "temporal_strategy": strategy}
        times = torch.arange(30) % 8 - 1
        for fanouts in ([-1, -1], [3, 2]):
            (batch,) = NeighborLoader(data, fanouts, "a", times, batch_size=30, **options)
            walks.check(view, batch, fanouts, ("a", list(range(30))), times.tolist(), **options)


@levels
def test_seeds_of_all_kinds(level):
    """`input_time` counts seeds: masks, ids with repetitions, shuffled epochs, short batches."""
    data = random_graphs.homogeneous(times=level)
    view = walks.View(data, attribute(level))
    options = {"time_attr": attribute(level), "batch_size": 4}
    mask = torch.arange(40) % 3 == 0
    for nodes in (mask, torch.tensor([5, 5, 5, 30, 5]), [8, 39], np.array([0, 1])):
        ids = mask.nonzero().view(-1) if nodes is mask else torch.as_tensor(nodes)
        times = torch.arange(len(ids)) % 6
        for shuffle in (False, True):
            for batch in NeighborLoader(data, [2, 2], nodes, times, shuffle=shuffle, **options):
                # With a mask `input_id` are the seeds themselves, as with PyG.
                places = batch.input_id // 3 if nodes is mask else batch.input_id
                walks.check(view, batch, [2, 2], ids[places].tolist(), times[places].tolist())


@levels
@pytest.mark.parametrize("hetero", [False, True], ids=["homogeneous", "heterogeneous"])
def test_sorted_edges(level, hetero):
    """In order of destination and time: taken as they are; else refused, naming a node."""
    kind = random_graphs.heterogeneous if hetero else random_graphs.homogeneous
    data = kind(times=level)
    name, seeds = attribute(level), ("a", None) if hetero else None
    options = {"time_attr": name, "input_time": torch.arange(30 if hetero else 40) % 7}
    with pytest.raises(ValueError, match="is_sorted=True, but"):
        NeighborLoader(data, [2, 2], seeds, is_sorted=True, **options)
    view = walks.View(data, name)
    for t in view.edge_types:
        store, dst = view.store(t), view.ends[t][1]
        times = [view.time(t, u, e) for e, u in enumerate(view.ends[t][0])]
        order = sorted(range(len(dst)), key=lambda e, d=dst, s=times: (d[e], s[e]))
        attributes = [n for n in store.keys() if n.startswith("edge_")]  # noqa: SIM118
        for attr in attributes:
            store[attr] = store[attr][..., order] if attr == "edge_index" else store[attr][order]
    loaders = [
        NeighborLoader(data, [2, -1], seeds, is_sorted=s, seed=3, batch_size=9, **options)
        for s in (True, False)
    ]
    for ours, theirs in zip(*loaders, strict=True):
        for kind in view.node_types:
            assert torch.equal(walks.Stores(ours)(kind).n_id, walks.Stores(theirs)(kind).n_id)
    if not hetero:  # sorted by destination, but not by time
        data[name] = -data[name]
        with pytest.raises(ValueError, match="times of the neighbours of node"):
            NeighborLoader(data, [2, 2], seeds, is_sorted=True, **options)


@levels
def test_weights_and_times(level):
    """Both hold: neither what comes later nor what weighs nothing; all else is drawn some time."""
    data = star(level=level)
    data.edge_weight = torch.tensor([9.0, 0.0, 1.0, 2.0])
    options = {"weight_attr": "edge_weight", "level": level}
    assert drawn(data, [-1], 4, **options) == [4, 3]
    assert drawn(data, [-1], 5, **options) == [4, 3, 1]
    assert drawn(data, [1], 4, temporal_strategy="last", **options) == [3]
    assert drawn(data, [2], 5, temporal_strategy="last", **options) == [3, 1]
    draws = [drawn(data, [1], 4, seed=i, **options) for i in range(100)]
    assert {tuple(d) for d in draws} == {(3,), (4,)}
    assert {tuple(sorted(drawn(data, [2], 4, seed=i, **options))) for i in range(20)} == {(3, 4)}
    assert set(drawn(data, [50], 4, replace=True, seed=1, **options)) == {3, 4}


@levels
def test_uniform_draws_reach_all_that_is_seen(level):
    """And nothing else: of three neighbours two are drawn."""
    found = {tuple(sorted(drawn(star(level=level), [2], 2, level, seed=i))) for i in range(60)}
    assert found == {(2, 3), (2, 4), (3, 4)}


@pytest.mark.parametrize("values", ["numpy", "memmap", "int32"])
def test_times_in_other_arrays(values, tmp_path):
    data = star()
    want = {t: drawn(data, [-1], t) for t in range(6)}
    data.time = data.time.int() if values == "int32" else data.time.numpy()
    if values == "memmap":
        np.save(tmp_path / "time.npy", data.time)
        data.time = np.load(tmp_path / "time.npy", mmap_mode="r")
    assert {t: drawn(data, [-1], t) for t in range(6)} == want


@levels
def test_stores(level):
    """Times and weights out of somebody's stores, edges in no particular order: the same draws."""
    data = random_graphs.heterogeneous(times=level, weights=True)
    features, edges = MyFeatureStore(), MyGraphStore()
    for kind in (*data.node_types, *data.edge_types):
        for name in {"x", "time", "edge_time", "edge_weight"} & set(data[kind].keys()):
            features.put_tensor(data[kind][name], group_name=kind, attr_name=name, index=None)
    for kind in data.edge_types:
        size = tuple(data[kind[i]].num_nodes for i in (0, 2))
        ends = tuple(data[kind].edge_index)
        edges.put_edge_index(ends, edge_type=kind, layout="coo", size=size)
    options = {"time_attr": attribute(level), "weight_attr": "edge_weight", "batch_size": 8}
    options |= {"input_time": torch.arange(30) % 7, "seed": 2}
    loaders = [NeighborLoader(g, [3, 2], "a", **options) for g in (data, (features, edges))]
    for theirs, ours in zip(*loaders, strict=True):
        for t in data.node_types:
            assert torch.equal(ours[t].n_id, theirs[t].n_id)
            assert torch.equal(ours[t].batch, theirs[t].batch)
        for t in data.edge_types:
            assert torch.equal(ours[t].e_id, theirs[t].e_id)
            assert torch.equal(ours[t].edge_index, theirs[t].edge_index)
            assert torch.equal(ours[t].edge_weight, theirs[t].edge_weight)
        assert torch.equal(ours["a"].seed_time, theirs["a"].seed_time)


def test_half_a_negative_a_link():
    """Negatives take the times of the first links; their nodes exist by then; `batch` counts links.

    Batches of 32 links of a relation between two types, both of which have times.
    """
    data = random_graphs.heterogeneous(times="node")
    link_type = ("a", "to", "b")
    ends = data[link_type].edge_index
    times = torch.maximum(data["a"].time[ends[0]], data["b"].time[ends[1]])
    loader = LinkNeighborLoader(
        data,
        [3, 2],
        link_type,
        edge_label_time=times,
        time_attr="time",
        neg_sampling_ratio=0.5,
        batch_size=32,
        drop_last=True,
    )
    assert len(loader) == 4
    for i, batch in enumerate(loader):
        links, own = batch[link_type], times[32 * i : 32 * i + 32]
        assert links.edge_label.tolist() == [1.0] * 32 + [0.0] * 16
        assert torch.equal(links.edge_label_time, torch.cat([own, own[:16]]))
        for name, places in zip("ab", links.edge_label_index, strict=True):
            store, first = batch[name], data[name].time.min()
            assert int(store.batch.max()) + 1 == 32
            # Where no node exists yet, the first one is taken, as with PyG.
            assert (store.time[places] <= links.edge_label_time.clamp(min=first)).all()


def test_times_of_seeds_as_lists_and_arrays():
    """Python's floats are compared in full: 0.1 comes before the float32 nearest to it."""
    data = star(torch.float64)
    data.time[1:] = torch.tensor([0.1, 0.1 + 1e-12, 0.2, 0.05], dtype=torch.float64)
    for time in ([0.1], (0.1,), np.array([0.1]), torch.tensor([0.1], dtype=torch.float64)):
        (batch,) = NeighborLoader(data, [-1], torch.tensor([0]), time, time_attr="time")
        assert batch.n_id.tolist() == [0, 4, 1]
        assert batch.seed_time.dtype == torch.float64
