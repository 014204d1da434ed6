"""All sampling options together on random graphs: what batches hold, and what could be drawn."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import walk_graphs
import walks
from khop.loader import NeighborLoader
from khop.sampler import NeighborSampler

pytestmark = pytest.mark.filterwarnings("ignore:.* reverse:UserWarning")
EDGE_TYPES = [
    ("a", "to", "b"),
    ("b", "rev_to", "a"),
    ("a", "self", "a"),
    ("c", "to", "a"),
    ("b", "never", "c"),
    ("a", "also", "b"),
]
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
FANOUTS = st.sampled_from([-1, -1, 0, 1, 1, 2, 3, 5])


@st.composite
def graphs(draw):
    """(data, names of times and weights or None): homogeneous or up to three and six types."""
    seed = draw(st.integers(0, 2**31))
    level = draw(st.sampled_from([None, "node", "edge"]))
    floats, weights = draw(st.booleans()), draw(st.booleans())
    names = {None: None, "node": "time", "edge": "edge_time"}[level], "edge_weight" * weights
    common = {"floats": floats, "seed": seed}
    if draw(st.booleans()):
        size, count = draw(st.integers(1, 12)), draw(st.integers(0, 50))
        data = walk_graphs.homogeneous(size, count, times=level, weights=weights, **common)
        return data, *names
    sizes = {"a": draw(st.integers(1, 10))}
    sizes |= {t: draw(st.sampled_from([0, 1, 4, 9])) for t in "bc"}
    kinds = draw(st.lists(st.sampled_from(EDGE_TYPES), min_size=1, unique=True))
    counts = {t: draw(st.sampled_from([0, 3, 20, 40])) for t in kinds}
    # Types may lack times and weights, but not all of them. Seeds 'a' have times of their own.
    some = st.lists(st.sampled_from(kinds), min_size=1, unique=True)
    timed = {None: (), "node": ("a", *draw(st.sampled_from(["", "b", "bc"])))}
    times = tuple(draw(some)) if level == "edge" else timed[level]
    weighted = draw(some) if weights else ()
    data = walk_graphs.heterogeneous(sizes, counts, times, weights=weighted, **common)
    return data, *names


@st.composite
def cases(draw):
    """(data, fan-outs, seeds, their times or None, options of a loader)."""
    data, time_attr, weight_attr = draw(graphs())
    hops = draw(st.integers(0, 3))
    hop_list = st.lists(FANOUTS, min_size=hops, max_size=hops)
    hetero = isinstance(data, walk_graphs.HeteroData)
    fanouts = draw(hop_list)
    if hetero and draw(st.booleans()):
        fanouts = {t: draw(hop_list) for t in data.edge_types}
    num_nodes = data["a"].num_nodes if hetero else data.num_nodes
    ids = draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=6))
    options = {"replace": draw(st.booleans()), "disjoint": draw(st.booleans())}
    if weight_attr:
        options["weight_attr"] = weight_attr
    times = None
    if time_attr:
        options["time_attr"] = time_attr
        options["temporal_strategy"] = draw(st.sampled_from(["uniform", "last"]))
        if time_attr == "edge_time" or draw(st.booleans()):
            times = draw(st.lists(st.integers(-2, 7), min_size=len(ids), max_size=len(ids)))
    return data, fanouts, ("a", ids) if hetero else ids, times, options


@SETTINGS
@given(cases(), st.integers(0, 2**32))
def test_batches(case, seed):
    """Directional batches are walks; induced and bidirectional ones of the same seed follow."""
    data, fanouts, seeds, times, options = case
    view = walks.View(data, options.get("time_attr"), options.get("weight_attr"))
    common = {
        "input_nodes": seeds,
        "input_time": None if times is None else torch.tensor(times),
        "batch_size": 6,
        "seed": seed,
        **options,
    }
    (drawn,) = NeighborLoader(data, fanouts, **common)
    out = walks.check(view, drawn, fanouts, seeds, times, **options)
    seed_type, ids = seeds if isinstance(seeds, tuple) else (None, seeds)
    if view.node_times or view.edge_times:
        times_of_trees = times or [view.node_times[seed_type][v] for v in ids]
    else:
        times_of_trees = None
    (induced,) = NeighborLoader(data, fanouts, subgraph_type="induced", **common)
    walks.assert_nodes(view, induced, out, seed_type, len(ids), times)
    whole = walks.View(data, options.get("time_attr"))
    for t, edges in walks.induced(whole, out, times_of_trees).items():
        store = walks.Stores(induced)(t)
        assert list(zip(*store.edge_index.tolist(), store.e_id.tolist(), strict=True)) == edges
        walks.assert_edge_attributes(view, induced, t)
    (both,) = NeighborLoader(data, fanouts, subgraph_type="bidirectional", **common)
    walks.assert_nodes(view, both, out, seed_type, len(ids), times)
    for t, edges in walks.bidirectional(view, out).items():
        assert list(zip(*walks.Stores(both)(t).edge_index.tolist(), strict=True)) == edges


@SETTINGS
@given(cases(), st.integers(0, 2**32))
def test_backward_batches(case, seed):
    """The same along the edges; 'time' is then that of destinations."""
    data, fanouts, seeds, times, options = case
    view = walks.View(data, options.get("time_attr"), options.get("weight_attr"), backward=True)
    sampler = NeighborSampler(data, fanouts, sample_direction="backward", seed=seed, **options)
    loader = NeighborLoader(
        data,
        fanouts,
        seeds,
        None if times is None else torch.tensor(times),
        time_attr=options.get("time_attr"),
        neighbor_sampler=sampler,
        batch_size=6,
        seed=seed,
    )
    (drawn,) = loader
    walks.check(view, drawn, fanouts, seeds, times, **options)
