"""`DistLinkNeighborLoader`: batches of links are those of the in-memory loader, bit for bit."""

import os
import signal
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from khop.distributed import DistLinkNeighborLoader, link_split
from khop.loader import LinkNeighborLoader
from khop.typing import EDGE
from support.cluster import jobs, link_jobs, twins
from support.cluster.twins import CITES, SIZES, WRITES, WRITTEN

NUM_LINKS = 40


def loaders(data, dataset, num_workers, links, fanouts=(3, 2), **options):
    """A distributed loader and its in-memory twin."""
    common = {"batch_size": 16, "shuffle": True, "seed": 7, **options}
    ours = DistLinkNeighborLoader(
        dataset,
        list(fanouts),
        edge_label_index=links,
        with_edge=True,
        collect_features=True,
        worker_options=twins.workers(num_workers),
        **common,
    )
    return ours, LinkNeighborLoader(data, list(fanouts), links, **common)


def links_of(edge_index, num_src, num_dst):
    """Half are edges of the graph, half are not; one comes twice."""
    generator = torch.Generator().manual_seed(3)
    half = NUM_LINKS // 2
    others = [torch.randint(n, (half,), generator=generator) for n in (num_src, num_dst)]
    links = torch.cat([edge_index[:, :half], torch.stack(others)], dim=1)
    links[:, -1] = links[:, 0]
    return links


def weights_for(count, seed):
    """Weights of nodes, half of them zero."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator) * (torch.rand(count, generator=generator) < 0.5)


TIME = torch.arange(NUM_LINKS) % 23
BINARY = {"neg_sampling": "binary"}
TRIPLET = {"neg_sampling": NegativeSampling("triplet", 3)}
TIMED = {"time_attr": "time", "edge_label_time": TIME}
HOMOGENEOUS = [
    ("plain", {}),
    ("plain", BINARY),
    ("plain", {"neg_sampling_ratio": 0.3, "disjoint": True}),
    ("plain", TRIPLET),
    ("plain", {**TRIPLET, "disjoint": True, "strict_negatives": True}),
    ("plain", {**BINARY, "strict_negatives": True, "exclude_seed_edges": "reverse"}),
    ("plain", {
        "neg_sampling": NegativeSampling("binary", 1.5, weights_for(150, 1), weights_for(150, 2)),
        "edge_label": torch.arange(NUM_LINKS) % 4,
    }),
    ("plain", {"neg_sampling": NegativeSampling("triplet", 1, None, weights_for(150, 2))}),
    ("plain", {"exclude_seed_edges": True, "subgraph_type": "induced"}),
    ("plain", {**BINARY, "exclude_seed_edges": "self", "subgraph_type": "bidirectional"}),
    ("plain", {"edge_label": torch.rand(NUM_LINKS, 2), "replace": True}),
    ("plain", {**BINARY, "edge_label": torch.arange(NUM_LINKS) + 1.0}),
    ("plain", {**BINARY, "edge_label": torch.arange(NUM_LINKS) % 2 == 0}),
    ("weight", {**BINARY, "weight_attr": "edge_weight", "exclude_seed_edges": "self"}),
    ("weight", {**TRIPLET, "weight_attr": "edge_weight", "replace": True, "disjoint": True}),
    ("time", TIMED),
    ("time", {**TIMED, **BINARY, "temporal_strategy": "last"}),
    ("time", {**TIMED, **TRIPLET, "strict_negatives": True, "weight_attr": "edge_weight"}),
    ("time", {
        **TIMED, "exclude_seed_edges": "reverse", "subgraph_type": "induced",
        "neg_sampling": NegativeSampling("binary", 2, weights_for(150, 1), weights_for(150, 2)),
        "edge_label": torch.zeros(NUM_LINKS, dtype=torch.long),
    }),
    ("edge_time", {"time_attr": "edge_time", "edge_label_time": TIME * 0.7, **TRIPLET}),
    ("edge_time", {
        "time_attr": "edge_time", "edge_label_time": TIME, **BINARY, "weight_attr": "edge_weight",
        "exclude_seed_edges": True, "temporal_strategy": "last",
    }),
]  # fmt: skip


@pytest.mark.parametrize("some_parts,kind,options", twins.with_parts(HOMOGENEOUS))
def test_homogeneous(twin_root, some_parts, kind, options):
    """Each option and what goes with it, in one part and in several; two epochs in one part."""
    data = twins.homogeneous()
    links = links_of(data.edge_index, 150, 150)
    for num_parts in some_parts:
        num_epochs = 2 if num_parts == 1 else 1
        with twins.open_dataset(twin_root("homogeneous", num_parts, kind), num_parts) as dataset:
            both = loaders(data, dataset, None, links, **options)
            batches = twins.same_epochs(*both, num_epochs)
        assert sum(batch.edge_index.size(1) for batch in batches) > 30


@pytest.mark.parametrize("num_workers,num_parts", [(1, 1), (2, 3)])
def test_samplers(twin_root, num_workers, num_parts):
    """Links, negatives and their weights reach sampler processes as they were given."""
    data = twins.homogeneous()
    links = links_of(data.edge_index, 150, 150)
    for kind, options in [HOMOGENEOUS[i] for i in (5, 6, 14, 17)]:
        with twins.open_dataset(twin_root("homogeneous", num_parts, kind), num_parts) as dataset:
            ours, twin = loaders(data, dataset, num_workers, links, **options)
            twins.same_epochs(ours, twin)
            ours.shutdown()


NEW = ("venue", "likes", "author")
HETEROGENEOUS = [
    ("plain", WRITES, {}),
    ("plain", WRITES, {**BINARY, "exclude_seed_edges": "reverse", "strict_negatives": True}),
    ("plain", WRITTEN, {**TRIPLET, "exclude_seed_edges": WRITES, "disjoint": True}),
    ("plain", WRITES, {**TRIPLET, "exclude_seed_edges": "self", "subgraph_type": "induced"}),
    ("plain", CITES, {**BINARY, "exclude_seed_edges": "reverse", "subgraph_type": "bidirectional"}),
    ("plain", CITES, {**TRIPLET, "strict_negatives": True}),
    ("plain", NEW, {**BINARY, "edge_label": torch.arange(NUM_LINKS) % 3}),
    ("plain", NEW, {**TRIPLET, "disjoint": True}),
    ("plain", WRITES, {
        "neg_sampling": NegativeSampling("binary", 0.7, weights_for(80, 1), weights_for(120, 2)),
        "disjoint": True, "strict_negatives": True,
    }),
    ("weight", CITES, {**BINARY, "weight_attr": "edge_weight", "exclude_seed_edges": "self"}),
    ("time", WRITES, {**TIMED, **BINARY, "exclude_seed_edges": "reverse"}),
    ("time", CITES, {**TIMED, **TRIPLET, "temporal_strategy": "last", "strict_negatives": True}),
    ("time", NEW, {**TIMED, **TRIPLET, "weight_attr": "edge_weight", "replace": True}),
    ("edge_time", WRITTEN, {
        "time_attr": "edge_time", "edge_label_time": TIME % 9 - 5.5, **BINARY,
        "exclude_seed_edges": True, "subgraph_type": "induced",
    }),
]  # fmt: skip


@pytest.mark.parametrize("some_parts,kind,link_type,options", twins.with_parts(HETEROGENEOUS))
def test_heterogeneous(twin_root, some_parts, kind, link_type, options):
    """Links between two types, of one type, of a type that no edges have."""
    data = twins.heterogeneous()
    edges = torch.zeros(2, 20).long()
    if link_type in data.edge_types:
        edges = data[link_type].edge_index
    links = (link_type, links_of(edges, SIZES[link_type[0]], SIZES[link_type[2]]))
    for num_parts in some_parts:
        root = twin_root("heterogeneous", num_parts, kind)
        with twins.quiet(), twins.open_dataset(root, num_parts) as dataset:
            twins.same_epochs(*loaders(data, dataset, None, links, **options))


def test_heterogeneous_samplers(twin_root):
    """The same in sampler processes."""
    data = twins.heterogeneous()
    for kind, link_type, options in HETEROGENEOUS[1::5]:
        edges = torch.zeros(2, 20).long()
        links = (link_type, links_of(edges, SIZES[link_type[0]], SIZES[link_type[2]]))
        with (
            twins.quiet(),
            twins.open_dataset(twin_root("heterogeneous", 3, kind), 3) as dataset,
        ):
            ours, twin = loaders(data, dataset, 2, links, **options)
            twins.same_epochs(ours, twin)
            ours.shutdown()


@pytest.mark.parametrize("kind,options", [HOMOGENEOUS[i] for i in (4, 5, 17, 18)])
def test_by_source(twin_root, kind, options):
    """A folder of out-neighbours: strictness and exclusion look along the edges."""
    data = twins.homogeneous()
    links = links_of(data.edge_index, 150, 150)
    _compare_by_source(twin_root("homogeneous", 3, kind, "by_src"), data, links, options)


@pytest.mark.parametrize(
    "kind,link_type,options", [HETEROGENEOUS[i] for i in (1, 2, 3, 4, 7, 10, 13)]
)
def test_by_source_of_heterogeneous_graphs(twin_root, kind, link_type, options):
    """What is said of links stays with their own type; edges are of the reverse types."""
    data = twins.heterogeneous()
    edges = torch.zeros(2, 20).long()
    if link_type in data.edge_types:
        edges = data[link_type].edge_index
    links = (link_type, links_of(edges, SIZES[link_type[0]], SIZES[link_type[2]]))
    _compare_by_source(twin_root("heterogeneous", 3, kind, "by_src"), data, links, options)


def _compare_by_source(root, data, links, options):
    common = {"batch_size": 16, "shuffle": True, "seed": 7, **options}
    with twins.quiet(), twins.open_dataset(root, 3) as dataset:
        ours = DistLinkNeighborLoader(
            dataset, [3, 2], edge_label_index=links, with_edge=True, collect_features=True, **common
        )
        twin = twins.make_twin(LinkNeighborLoader, data, [3, 2], links, "by_src", **common)
        twins.same_epochs(ours, twin, strategy="by_src")


@pytest.mark.parametrize("options", [BINARY, TRIPLET])
def test_negatives_of_a_folder_whose_times_are_not_asked_for(twin_root, options):
    """Times do not matter to negatives then."""
    data = twins.homogeneous()
    links = links_of(data.edge_index, 150, 150)
    with twins.open_dataset(twin_root("homogeneous", 3, "time"), 3) as dataset:
        twins.same_epochs(*loaders(data, dataset, None, links, fanouts=(), **options))


# Strict negatives -----------------------------------------------------------------------------


def dense(num_nodes, missing):
    """All edges but few: (i, i + 1), ... for each node i."""
    every = torch.cartesian_prod(torch.arange(num_nodes), torch.arange(num_nodes)).t()
    gap = (every[1] - every[0]) % num_nodes
    return Data(edge_index=every[:, (gap == 0) | (gap > missing)], num_nodes=num_nodes)


@pytest.mark.parametrize("mode,num_parts", [("binary", 1), ("binary", 3), ("triplet", 2)])
def test_strict_negatives_of_a_dense_graph(tmp_path, mode, num_parts):
    """Where nearly all pairs are edges, of whatever part, the few others are found."""
    data = dense(40, 2)
    edges = set(zip(*data.edge_index.tolist(), strict=True))
    root = twins.partitioned(data, tmp_path / "parts", num_parts)
    with twins.open_dataset(root, num_parts) as dataset:
        ours, twin = loaders(
            data,
            dataset,
            None,
            data.edge_index[:, ::80],
            neg_sampling=NegativeSampling(mode, 2),
            strict_negatives=True,
        )
        for batch in twins.same_epochs(ours, twin):
            if mode == "binary":
                src, dst = batch.edge_label_index[:, batch.edge_label == 0]
            else:
                src, dst = batch.src_index.repeat_interleave(2), batch.dst_neg_index.flatten()
            drawn = set(zip(batch.n_id[src].tolist(), batch.n_id[dst].tolist(), strict=True))
            assert drawn and not drawn & edges


@pytest.mark.parametrize("num_workers", [None, 1])
def test_no_strict_negative(tmp_path, num_workers):
    """A source that is linked to all nodes: the same error as in memory."""
    data = dense(6, 0)
    root = twins.partitioned(data, tmp_path / "parts", 3)
    with twins.open_dataset(root, 3) as dataset:
        ours, twin = loaders(
            data, dataset, num_workers, data.edge_index, neg_sampling="triplet",
            strict_negatives=True,
        )  # fmt: skip
        with pytest.raises(ValueError, match="no strict negative can be drawn for source") as error:
            list(ours)
        with pytest.raises(ValueError, match="no strict negative") as expected:
            list(twin)
        assert str(error.value).startswith(str(expected.value))
        ours.shutdown()


# Whose links ----------------------------------------------------------------------------------


def columns(links):
    """Links as a sorted list of pairs."""
    return sorted(zip(*links.tolist(), strict=True))


@pytest.mark.parametrize("strategy", ["by_dst", "by_src"])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_all_edges_are_at_home_somewhere(twin_root, num_parts, strategy):
    """Without links: each edge that this trainer serves, of whatever type, exactly once."""
    data = twins.homogeneous()
    root = twin_root("homogeneous", num_parts, "plain", strategy)
    with twins.open_dataset(root, num_parts) as dataset:
        loader = DistLinkNeighborLoader(dataset, [2], batch_size=100, shuffle=True, seed=1)
        seen = [batch.n_id[batch.edge_label_index] for batch in loader]
    assert columns(torch.cat(seen, dim=1)) == columns(data.edge_index)
    data = twins.heterogeneous()
    root = twin_root("heterogeneous", num_parts, "plain", strategy)
    with twins.open_dataset(root, num_parts) as dataset:
        for edge_type in data.edge_types:
            loader = DistLinkNeighborLoader(
                dataset, [2], batch_size=100, edge_label_index=edge_type
            )
            seen = [torch.empty(2, 0, dtype=torch.int64)]
            for batch in loader:
                src, dst = batch[edge_type].edge_label_index
                ends = batch[edge_type[0]].n_id[src], batch[edge_type[2]].n_id[dst]
                seen.append(torch.stack(ends))
            assert columns(torch.cat(seen, dim=1)) == columns(data[edge_type].edge_index)


@pytest.mark.parametrize("strategy,side", [("by_dst", 1), ("by_src", 0)])
def test_link_split(twin_root, strategy, side):
    """Shares are even, mostly at home, and hold every link once, in the links' order."""
    for graph, link_type, sizes in (
        ("homogeneous", None, (150, 150)),
        ("heterogeneous", NEW, (6, 80)),
    ):
        links = links_of(torch.zeros(2, 20).long(), *sizes)
        root = twin_root(graph, 3, "plain", strategy)
        with twins.open_dataset(root, 3) as dataset:
            for homes in ([0, 1, 2], [2, 0, 1, 0], [1]):
                shares = [
                    link_split(links, dataset, link_type=link_type, rank=r, homes=homes)
                    for r in range(len(homes))
                ]
                assert torch.equal(torch.sort(torch.cat(shares)).values, torch.arange(NUM_LINKS))
                counts = [len(share) for share in shares]
                assert max(counts) - min(counts) <= 1
                assert all(torch.equal(s, torch.sort(s).values) for s in shares)
                _is_at_home(
                    dataset,
                    links[side],
                    (link_type or ("node",) * 3)[2 * side],
                    homes,
                    shares,
                )


def _is_at_home(dataset, ends, node_type, homes, shares):
    """As many links are at home as even shares allow."""
    book = dataset.meta.node_type(node_type).book
    owner = torch.from_numpy(book.owner(dataset.to_new_ids(ends, "ends", node_type)).astype(int))
    for part in range(3):
        here = [i for i, home in enumerate(homes) if home == part]
        mine = sum(int((owner[shares[i]] == part).sum()) for i in here)
        assert mine == min(int((owner == part).sum()), sum(len(shares[i]) for i in here))


def test_two_trainers(twin_root):
    """Each trainer's batches are those of its stream; together they have every edge once."""
    cases = [
        {
            "root": str(twin_root("homogeneous", num_parts)),
            "homes": homes,
            "also_serve": also_serve,
            "num_workers": num_workers,
        }
        for num_parts, homes, also_serve, num_workers in (
            (1, [0, 0], {}, None),
            (3, [1, 1], {"0": [0, 2]}, 1),
            (3, [2, 0], {"0": [1], "1": [1, 2]}, None),  # part 1 is served twice, 2 is a home, too
        )
    ]
    trainers = jobs.start_trainers("links_all", {"cases": cases}, 2, program=link_jobs.__name__)
    for case, *of_each in zip(cases, *jobs.finish_trainers(trainers), strict=True):
        every = sorted(map(tuple, of_each[0]["home"] + of_each[1]["home"]))
        assert every == columns(twins.homogeneous().edge_index), case
        shares = [result["share"] for result in of_each]
        assert sorted(shares[0] + shares[1]) == list(range(link_jobs.NUM_LINKS)), case
        assert abs(len(shares[0]) - len(shares[1])) <= 1, case
        assert of_each[0]["batches"] == of_each[1]["batches"], case


def test_killed_samplers_are_replaced(twin_root):
    """Samplers killed in the middle of an epoch make the same links' batches, weights included."""
    data = twins.homogeneous()
    links = links_of(data.edge_index, 150, 150)
    kind, options = HOMOGENEOUS[6]
    with twins.open_dataset(twin_root("homogeneous", 2, kind), 2) as dataset:
        ours, twin = loaders(data, dataset, 2, links, batch_size=2, **options)
        kept = []
        for _ in range(2):  # of the first, all may have been made when they are killed
            for batch in ours:
                if len(kept) in (1, 6):
                    os.kill(ours.workers[len(kept) % 2].pid, signal.SIGKILL)
                kept.append(batch.clone())
        for own, other in zip(kept, [*twin, *twin], strict=True):
            twins.same_batch(own, other)
        assert 1 <= ours.stats().restarts <= 2
        ours.shutdown()


# Any graph ------------------------------------------------------------------------------------


@st.composite
def any_negatives(draw, sizes):
    """PyG's description of negatives, or None."""
    mode = draw(st.sampled_from(["binary", "triplet", None]))
    if mode is None:
        return None
    amount = draw(st.sampled_from([1, 2] if mode == "triplet" else [0.4, 1, 1.5]))
    weights = []
    for count in sizes:
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        weight = torch.from_numpy(rng.choice([0, 0.5, 3], count).astype(np.float32))
        weights.append(weight if draw(st.booleans()) and weight.sum() > 0 else None)
    return NegativeSampling(mode, amount, None if mode == "triplet" else weights[0], weights[1])


@st.composite
def any_options(draw, kind, num_links, sizes, link_type, edge_types):
    """Options of a loader of a folder of a kind."""
    negatives = draw(any_negatives(sizes))
    is_known = link_type in edge_types
    reverses = [t for t in edge_types if (t[0], t[2]) == (link_type[2], link_type[0])]
    options = {
        "neg_sampling": negatives,
        "strict_negatives": is_known and negatives is not None and draw(st.booleans()),
        "exclude_seed_edges": is_known
        and draw(st.sampled_from([False, "self", "reverse", *reverses])),
        "replace": draw(st.booleans()),
        "disjoint": draw(st.booleans()),
        "subgraph_type": draw(st.sampled_from(["directional", "bidirectional", "induced"])),
        "batch_size": draw(st.integers(1, 6)),
        "shuffle": num_links > 0 and draw(st.booleans()),  # torch shuffles no empty set
        "drop_last": draw(st.sampled_from([False, False, True])),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }
    if kind.endswith("time"):
        options["time_attr"] = kind
        times = draw(st.lists(st.integers(-5, 7), min_size=num_links, max_size=num_links))
        options["edge_label_time"] = torch.tensor(times, dtype=torch.int64)
        options["temporal_strategy"] = draw(st.sampled_from(["uniform", "last"]))
    if kind != "plain" and draw(st.booleans()):
        options["weight_attr"] = "edge_weight"
    if (negatives is None or negatives.is_binary()) and draw(st.booleans()):
        options["edge_label"] = torch.arange(num_links) % 3 + draw(st.integers(0, 1))
    return options


@st.composite
def any_links(draw, edges, sizes):
    """Links of which some are edges, some repeat."""
    pairs = st.tuples(*(st.integers(0, max(n - 1, 0)) for n in sizes))
    if edges.size(1):
        pairs = st.one_of(pairs, st.sampled_from([tuple(pair) for pair in edges.t().tolist()]))
    links = draw(st.lists(pairs, min_size=1, max_size=12)) if min(sizes) else []
    return torch.tensor(links, dtype=torch.int64).view(-1, 2).t()


def compare(data, partitioning, draw_arguments):
    """Partitions a graph and compares epochs of four loaders, up to the first error of both.

    Args:
        data: the graph.
        partitioning: one of `PARTITIONINGS`.
        draw_arguments: returns links and options of a loader.
    """
    kind, num_parts, strategy = partitioning
    with tempfile.TemporaryDirectory(dir=twins.FAST) as base:
        root = twins.partitioned(data, Path(base) / "parts", num_parts, kind, strategy)
        with twins.open_dataset(root, num_parts) as dataset:
            for _ in range(4):
                links, options = draw_arguments()
                everything = {"with_edge": True, "collect_features": True, **options}
                given = [2, -1], links, strategy
                made = twins.twins_or_errors(
                    partial(
                        DistLinkNeighborLoader,
                        dataset,
                        [2, -1],
                        edge_label_index=links,
                        **everything,
                    ),
                    partial(twins.make_twin, LinkNeighborLoader, data, *given, **options),
                )
                if made is not None:
                    same_up_to_an_error(*made, strategy)


def same_up_to_an_error(loader, twin, strategy):
    """Asserts that loaders make the same batches until both fail alike, if they do."""
    ours, theirs = iter(loader), iter(twin)
    for _ in range(len(twin)):
        batches = twins.twins_or_errors(lambda: next(ours), lambda: next(theirs))
        if batches is None:
            return
        twins.same_batch(batches[0], twins.as_distributed(batches[1], strategy))
    assert next(ours, None) is next(theirs, None) is None


PARTITIONINGS = st.tuples(
    st.sampled_from(["time", "edge_time", "weight", "plain"]),
    st.sampled_from([3, 2, 5, 1]),
    st.sampled_from(["by_dst", "by_dst", "by_src"]),
)


@given(st.data(), twins.homogeneous_graphs(), PARTITIONINGS)
@settings(max_examples=16)
def test_any_homogeneous_graph(data, graph, partitioning):
    """Random graphs, random links, random options, random parts."""
    sizes = (graph.num_nodes, graph.num_nodes)

    def draw_arguments():
        links = data.draw(any_links(graph.edge_index, sizes))
        return links, data.draw(any_options(partitioning[0], links.size(1), sizes, EDGE, [EDGE]))

    compare(graph, partitioning, draw_arguments)


@given(st.data(), twins.heterogeneous_graphs(), PARTITIONINGS)
@settings(max_examples=16)
def test_any_heterogeneous_graph(data, graph, partitioning):
    """Random types and relations, too; links are of one of them or of none."""
    types = [*graph.edge_types, ("c", "new", "b"), ("a", "new", "a")]

    def draw_arguments():
        link_type = data.draw(st.sampled_from(types))
        known = link_type in graph.edge_types
        edges = graph[link_type].edge_index if known else torch.empty(2, 0)
        sizes = (graph[link_type[0]].num_nodes, graph[link_type[2]].num_nodes)
        links = data.draw(any_links(edges, sizes))
        options = data.draw(
            any_options(partitioning[0], links.size(1), sizes, link_type, graph.edge_types)
        )
        return (link_type, links), options

    compare(graph, partitioning, draw_arguments)
