"""Random graphs with times and weights, and loaders with random valid options."""

from hypothesis import strategies as st

from support.loaders import random_graphs

EDGE_TYPES = [
    ("a", "to", "b"),
    ("b", "rev_to", "a"),
    ("a", "self", "a"),
    ("c", "to", "a"),
    ("b", "never", "c"),
    ("a", "also", "b"),
]
FANOUTS = st.sampled_from([-1, -1, 0, 1, 1, 2, 3, 5])


@st.composite
def graphs(draw):
    """Draw (data, names of times and weights or None): homogeneous, or up to 3 and 6 types."""
    seed = draw(st.integers(0, 2**31))
    level = draw(st.sampled_from([None, "node", "edge"]))
    floats, weights = draw(st.booleans()), draw(st.booleans())
    names = {None: None, "node": "time", "edge": "edge_time"}[level], "edge_weight" * weights
    common = {"floats": floats, "seed": seed}
    if draw(st.booleans()):
        size, count = draw(st.integers(1, 12)), draw(st.integers(0, 50))
        data = random_graphs.homogeneous(size, count, times=level, weights=weights, **common)
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
    data = random_graphs.heterogeneous(sizes, counts, times, weights=weighted, **common)
    return data, *names


@st.composite
def cases(draw):
    """Draw (data, fan-outs, seeds, their times or None, options of a loader)."""
    data, time_attr, weight_attr = draw(graphs())
    hops = draw(st.integers(0, 3))
    hop_list = st.lists(FANOUTS, min_size=hops, max_size=hops)
    hetero = isinstance(data, random_graphs.HeteroData)
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
