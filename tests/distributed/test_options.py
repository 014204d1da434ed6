"""Every option of sampling, distributed: batches are those of the in-memory loader, bit for bit."""

import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data, HeteroData

from khop.distributed import DistNeighborLoader, DistSubGraphLoader
from khop.loader import NeighborLoader, SubGraphLoader
from support.cluster import twins
from support.cluster.twins import CITES, WRITTEN

SEEDS = torch.tensor([*range(0, 60, 3), 5, 5, 149, 11])  # twice the same, an isolated one
TIMES = torch.arange(len(SEEDS)) % 21


def loaders(data, dataset, num_workers, fanouts, seeds, **options):
    """A distributed loader and its in-memory twin."""
    common = {"batch_size": 8, "shuffle": True, "seed": 7, **options}
    ours = DistNeighborLoader(
        dataset,
        fanouts,
        seeds,
        with_edge=True,
        collect_features=True,
        worker_options=twins.workers(num_workers),
        **common,
    )
    return ours, NeighborLoader(data, fanouts, seeds, **common)


HOMOGENEOUS = [
    ("plain", {"replace": True}),
    ("plain", {"disjoint": True}),
    ("plain", {"disjoint": True, "replace": True}),
    ("plain", {"subgraph_type": "induced"}),
    ("plain", {"subgraph_type": "induced", "disjoint": True}),
    ("plain", {"subgraph_type": "bidirectional"}),
    ("plain", {"subgraph_type": "bidirectional", "disjoint": True, "replace": True}),
    ("weight", {}),
    ("weight", {"weight_attr": "edge_weight"}),
    ("weight", {"weight_attr": "edge_weight", "replace": True}),
    ("weight", {"weight_attr": "edge_weight", "subgraph_type": "induced"}),
    ("time", {"time_attr": "time"}),
    ("time", {"time_attr": "time", "temporal_strategy": "last"}),
    ("time", {"time_attr": "time", "input_time": TIMES}),
    ("time", {"time_attr": "time", "input_time": TIMES + 0.5, "replace": True}),
    ("time", {"time_attr": "time", "weight_attr": "edge_weight"}),
    ("time", {"time_attr": "time", "weight_attr": "edge_weight", "replace": True}),
    ("time", {"time_attr": "time", "weight_attr": "edge_weight", "temporal_strategy": "last"}),
    ("time", {"time_attr": "time", "subgraph_type": "induced"}),
    ("time", {"time_attr": "time", "subgraph_type": "bidirectional", "weight_attr": "edge_weight"}),
    ("edge_time", {"time_attr": "edge_time", "input_time": TIMES}),
    ("edge_time", {"time_attr": "edge_time", "input_time": TIMES * 0.9, "replace": True}),
    ("edge_time", {
        "time_attr": "edge_time", "input_time": TIMES, "temporal_strategy": "last",
        "weight_attr": "edge_weight",
    }),
    ("edge_time", {"time_attr": "edge_time", "input_time": TIMES, "subgraph_type": "induced"}),
]  # fmt: skip


@pytest.mark.parametrize("some_parts,kind,options", twins.with_parts(HOMOGENEOUS))
def test_homogeneous(twin_root, some_parts, kind, options):
    """Each option and what goes with it, in one part and in several; two epochs in one part."""
    for num_parts in some_parts:
        with twins.open_dataset(twin_root("homogeneous", num_parts, kind), num_parts) as dataset:
            ours, twin = loaders(twins.homogeneous(), dataset, None, [3, -1, 2], SEEDS, **options)
            batches = twins.same_epochs(ours, twin, 2 if num_parts == 1 else 1)
        assert sum(batch.edge_index.size(1) for batch in batches) > 100


@pytest.mark.parametrize("num_workers,num_parts", [(1, 1), (2, 3)])
def test_samplers(twin_root, num_workers, num_parts):
    """Options reach sampler processes as they were given."""
    data = twins.homogeneous()
    for kind, options in HOMOGENEOUS[1::4]:
        with twins.open_dataset(twin_root("homogeneous", num_parts, kind), num_parts) as dataset:
            ours, twin = loaders(data, dataset, num_workers, [3, -1, 2], SEEDS, **options)
            twins.same_epochs(ours, twin)
            ours.shutdown()


PAPERS = torch.tensor([3, 3, 119, *range(20)])
HETEROGENEOUS = [
    ("plain", ("paper", PAPERS), {"replace": True}),
    ("plain", "ghost", {}),
    ("plain", ("author", torch.arange(80) % 3 == 0), {"disjoint": True}),
    ("plain", "venue", {"subgraph_type": "induced"}),
    ("plain", ("paper", PAPERS), {"subgraph_type": "induced", "disjoint": True}),
    ("plain", ("paper", PAPERS), {"subgraph_type": "bidirectional"}),
    ("plain", ("author", PAPERS % 80), {"subgraph_type": "bidirectional", "disjoint": True}),
    ("weight", ("paper", PAPERS), {"weight_attr": "edge_weight"}),
    ("weight", ("paper", PAPERS), {"weight_attr": "edge_weight", "replace": True}),
    ("time", ("paper", PAPERS), {"time_attr": "time"}),
    ("time", ("paper", PAPERS), {"time_attr": "time", "temporal_strategy": "last"}),
    ("time", "venue", {"time_attr": "time", "input_time": torch.arange(6) * 1.5}),
    ("time", ("author", PAPERS % 80), {
        "time_attr": "time", "weight_attr": "edge_weight", "replace": True,
    }),
    ("time", ("author", PAPERS % 80), {
        "time_attr": "time", "weight_attr": "edge_weight", "subgraph_type": "induced",
    }),
    ("edge_time", "venue", {"time_attr": "edge_time", "input_time": torch.arange(-3, 3)}),
    ("edge_time", ("paper", PAPERS), {
        "time_attr": "edge_time", "input_time": PAPERS % 9 - 4.5, "weight_attr": "edge_weight",
        "temporal_strategy": "last", "subgraph_type": "bidirectional",
    }),
]  # fmt: skip


def fanouts_by_type(data):
    """Other fan-outs for each edge type, none along citations in the first hop."""
    fanouts = {edge_type: [3, -1] for edge_type in data.edge_types}
    return {**fanouts, CITES: [0, 2], WRITTEN: [2, 4]}


@pytest.mark.parametrize("some_parts,kind,seeds,options", twins.with_parts(HETEROGENEOUS))
def test_heterogeneous(twin_root, some_parts, kind, seeds, options):
    """The same over node and edge types, some of which lack times, weights, features or edges."""
    data = twins.heterogeneous()
    for num_parts in some_parts:
        root = twin_root("heterogeneous", num_parts, kind)
        fanouts = [2, 3] if num_parts == 2 else fanouts_by_type(data)
        with twins.quiet(), twins.open_dataset(root, num_parts) as dataset:
            twins.same_epochs(*loaders(data, dataset, None, fanouts, seeds, **options))


def test_heterogeneous_samplers(twin_root):
    """Options by type reach sampler processes as they were given."""
    data = twins.heterogeneous()
    for kind, seeds, options in HETEROGENEOUS[3::4]:
        with (
            twins.quiet(),
            twins.open_dataset(twin_root("heterogeneous", 3, kind), 3) as dataset,
        ):
            ours, twin = loaders(data, dataset, 2, fanouts_by_type(data), seeds, **options)
            twins.same_epochs(ours, twin)
            ours.shutdown()


@pytest.mark.parametrize("options", [{"with_edge": False}, {"collect_features": False}])
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_batches_without_edge_ids_or_features_are_otherwise_equal(
    twin_root, options, subgraph_type
):
    """Without edge ids, or without features, the rest of a batch is what it is with them."""
    data = twins.homogeneous()
    left_out = ["e_id", "edge_attr", "edge_weight", "edge_time"]
    left_out = left_out if "with_edge" in options else [*left_out[1:], "x", "time"]
    settings = {"with_edge": True, "collect_features": True, **options}
    common = {"batch_size": 8, "seed": 7, "subgraph_type": subgraph_type, "disjoint": True}
    with twins.open_dataset(twin_root("homogeneous", 3), 3) as dataset:
        ours = DistNeighborLoader(dataset, [3, 2], SEEDS, **settings, **common)
        for own, whole in zip(ours, NeighborLoader(data, [3, 2], SEEDS, **common), strict=True):
            for name in left_out:
                del whole[name]
            if "x" in left_out:
                own.num_nodes = None
            twins.same_batch(own, whole)


def test_no_seeds(twin_root):
    """No seeds make no batches."""
    with twins.open_dataset(twin_root("homogeneous", 3), 3) as dataset:
        ours, _ = loaders(twins.homogeneous(), dataset, None, [2], [], shuffle=False)
        assert len(ours) == len(list(ours)) == 0


# By source: neighbours along the edges ------------------------------------------------------


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("kind,options", [HOMOGENEOUS[i] for i in (4, 9, 12, 16, 22)])
def test_by_source(twin_root, kind, options, num_parts):
    """A folder of out-neighbours: batches point from neighbours to seeds."""
    common = {"batch_size": 8, "shuffle": True, "seed": 7, **options}
    root = twin_root("homogeneous", num_parts, kind, "by_src")
    with twins.open_dataset(root, num_parts) as dataset:
        ours = DistNeighborLoader(
            dataset, [3, 2], SEEDS, with_edge=True, collect_features=True, **common
        )
        data = twins.homogeneous()
        twin = twins.make_twin(NeighborLoader, data, [3, 2], SEEDS, "by_src", **common)
        twins.same_epochs(ours, twin, strategy="by_src")


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("kind,seeds,options", [HETEROGENEOUS[i] for i in (4, 5, 8, 12)])
def test_by_source_of_heterogeneous_graphs(twin_root, kind, seeds, options, num_parts):
    """Edges still point from neighbours to seeds, under the names of their reverses."""
    data = twins.heterogeneous()
    common = {"batch_size": 8, "shuffle": True, "seed": 7, **options}
    root = twin_root("heterogeneous", num_parts, kind, "by_src")
    with twins.quiet(), twins.open_dataset(root, num_parts) as dataset:
        ours = DistNeighborLoader(
            dataset, [3, 2], seeds, with_edge=True, collect_features=True, **common
        )
        twin = twins.make_twin(NeighborLoader, data, [3, 2], seeds, "by_src", **common)
        for own, other in zip(ours, twin, strict=True):
            own.validate()
            twins.same_batch(own, twins.as_distributed(other, "by_src"))


def test_by_source_with_names_that_clash(tmp_path):
    """Two edge types whose reverses would have one name: an error, not one of them lost."""
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 2
    for relation in ("to", "rev_rev_to"):
        data["a", relation, "b"].edge_index = torch.tensor([[0], [1]])
    root = twins.partitioned(data, tmp_path / "parts", 1, strategy="by_src")
    with (
        twins.open_dataset(root, 1) as dataset,
        pytest.raises(ValueError, match=r"have the same reverse \('b', 'rev_to', 'a'\)"),
    ):
        DistNeighborLoader(dataset, [1], "a")


# Times that are not asked for -----------------------------------------------------------------


@pytest.mark.parametrize("kind,options", [
    ("time", {}),
    ("edge_time", {"replace": True, "disjoint": True}),
    ("edge_time", {"weight_attr": "edge_weight"}),
])  # fmt: skip
def test_times_that_are_not_asked_for(twin_root, kind, options):
    """A folder keeps rows in order of time: a loader without times draws from rows so ordered.

    So batches are those of the graph whose list of edges is in order of time.
    """
    data = twins.homogeneous()
    times = data.edge_time if kind == "edge_time" else data.time[data.edge_index[0]]
    order = torch.argsort(times, stable=True)
    ordered = data.clone()
    for name in ("edge_index", "edge_attr", "edge_weight", "edge_time"):
        ordered[name] = data[name][..., order] if name == "edge_index" else data[name][order]
    with twins.open_dataset(twin_root("homogeneous", 3, kind), 3) as dataset:
        ours, _ = loaders(data, dataset, None, [3, 2], SEEDS, **options)
        _, twin = loaders(ordered, dataset, None, [3, 2], SEEDS, **options)
        for own, other in zip(ours, twin, strict=True):
            other.e_id = order[other.e_id]
            twins.same_batch(own, other)


# Larger ---------------------------------------------------------------------------------------


def test_larger_batches(power_law, tmp_path):
    """Rows and frontiers of thousands, hubs among them, over several parts."""
    generator = torch.Generator().manual_seed(4)
    data = Data(
        edge_index=torch.from_numpy(power_law(4000, 60_000)),
        edge_weight=torch.rand(60_000, generator=generator).square(),
        time=torch.randint(0, 500, (4000,), generator=generator),
        num_nodes=4000,
    )
    seeds = torch.randint(4000, (300,), generator=generator)
    timed = {"time_attr": "time", "weight_attr": "edge_weight"}
    root = twins.partitioned(data, tmp_path / "parts", 3, "time")
    with twins.open_dataset(root, 3) as dataset:
        for options in (
            {**timed, "replace": True},
            {**timed, "temporal_strategy": "last", "subgraph_type": "bidirectional"},
            {**timed, "subgraph_type": "induced", "input_time": torch.arange(300) * 2},
        ):
            twins.same_epochs(
                *loaders(data, dataset, None, [15, 10], seeds, batch_size=300, **options)
            )


# Subgraphs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "graph,seeds", [("homogeneous", SEEDS), ("heterogeneous", ("paper", PAPERS))]
)
@pytest.mark.parametrize("num_neighbors,options", [
    (None, {}),
    (None, {"disjoint": True}),
    ([-1], {}),
    ([3, 2], {"replace": True}),
    ([3, 2], {"disjoint": True}),
])  # fmt: skip
def test_enclosing_subgraphs(twin_root, graph, seeds, num_neighbors, options):
    """`DistSubGraphLoader` is `SubGraphLoader`, `mapping` included, with hops and without."""
    data = getattr(twins, graph)()
    common = {"batch_size": 8, "shuffle": True, "seed": 7, **options}
    for num_parts, num_workers in ((1, None), (2, 1) if num_neighbors == [-1] else (3, None)):
        with twins.quiet(), twins.open_dataset(twin_root(graph, num_parts), num_parts) as dataset:
            ours = DistSubGraphLoader(
                dataset,
                seeds,
                num_neighbors,
                with_edge=True,
                collect_features=True,
                worker_options=twins.workers(num_workers),
                **common,
            )
            twin = SubGraphLoader(data, seeds, num_neighbors, **common)
            batches = twins.same_epochs(ours, twin)
            ours.shutdown()
        for batch in batches:
            store = batch["paper"] if graph == "heterogeneous" else batch
            wanted = seeds[1] if graph == "heterogeneous" else seeds
            assert torch.equal(store.n_id[store.mapping], wanted[store.input_id])


# Any graph ------------------------------------------------------------------------------------

FANOUTS = st.lists(st.sampled_from([-1, 0, 1, 2, 4]), max_size=3)


@st.composite
def any_options(draw, kind, num_seeds, have_times):
    """Options of a loader of a folder of a kind, whose seeds may have times of their own."""
    options = {
        "replace": draw(st.booleans()),
        "disjoint": draw(st.booleans()),
        "subgraph_type": draw(st.sampled_from(["directional", "bidirectional", "induced"])),
        "batch_size": draw(st.integers(1, 6)),
        "shuffle": draw(st.booleans()),
        "drop_last": draw(st.sampled_from([False, False, True])),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "stream": draw(st.sampled_from([0, 1, 2**40])),
    }
    if kind.endswith("time"):
        options["time_attr"] = kind
        options["temporal_strategy"] = draw(st.sampled_from(["uniform", "last"]))
        if kind == "edge_time" or not have_times or draw(st.booleans()):
            whole = draw(st.booleans())
            times = draw(st.lists(st.integers(-5, 7), min_size=num_seeds, max_size=num_seeds))
            options["input_time"] = torch.tensor(times, dtype=torch.int64) + (0 if whole else 0.5)
    if kind != "plain" and draw(st.booleans()):
        options["weight_attr"] = "edge_weight"
    return options


def seed_lists(num_nodes):
    """Seeds, of which some may repeat."""
    return st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=12)


PARTITIONINGS = st.tuples(
    st.sampled_from(["time", "edge_time", "weight", "plain"]),
    st.sampled_from([3, 2, 5, 1]),
    st.sampled_from(["by_dst", "by_dst", "by_src"]),
)


def compare(data, partitioning, draw_arguments):
    """Partitions a graph and compares an epoch of each of four loaders.

    Args:
        data: the graph.
        partitioning: one of `PARTITIONINGS`.
        draw_arguments: returns fan-outs, seeds and options of a loader.
    """
    kind, num_parts, strategy = partitioning
    with tempfile.TemporaryDirectory(dir=twins.FAST) as base:
        root = twins.partitioned(data, Path(base) / "parts", num_parts, kind, strategy)
        with twins.open_dataset(root, num_parts) as dataset:
            for _ in range(4):
                *given, options = draw_arguments()
                ours = partial(DistNeighborLoader, with_edge=True, collect_features=True, **options)
                twin = partial(twins.make_twin, NeighborLoader, strategy=strategy, **options)
                made = twins.twins_or_errors(
                    partial(ours, dataset, *given), partial(twin, data, *given)
                )
                if made is not None:
                    twins.same_epochs(*made, strategy=strategy)


@given(st.data(), twins.homogeneous_graphs(), PARTITIONINGS)
@settings(max_examples=16)
def test_any_homogeneous_graph(data, graph, partitioning):
    """Random graphs, random options, random parts."""

    def draw_arguments():
        seeds = data.draw(seed_lists(graph.num_nodes))
        options = data.draw(any_options(partitioning[0], len(seeds), True))
        return data.draw(FANOUTS), torch.tensor(seeds, dtype=torch.int64), options

    compare(graph, partitioning, draw_arguments)


@given(st.data(), twins.heterogeneous_graphs(), PARTITIONINGS)
@settings(max_examples=16)
def test_any_heterogeneous_graph(data, graph, partitioning):
    """Random types and relations, too."""

    def draw_arguments():
        node_type = data.draw(st.sampled_from([t for t in graph.node_types if graph[t].num_nodes]))
        seeds = data.draw(seed_lists(graph[node_type].num_nodes))
        options = data.draw(any_options(partitioning[0], len(seeds), "time" in graph[node_type]))
        fanouts = data.draw(FANOUTS)
        if data.draw(st.booleans()):
            hops = st.lists(
                st.sampled_from([-1, 0, 1, 3]), min_size=len(fanouts), max_size=len(fanouts)
            )
            fanouts = {edge_type: data.draw(hops) for edge_type in graph.edge_types}
        return fanouts, (node_type, torch.tensor(seeds, dtype=torch.int64)), options

    compare(graph, partitioning, draw_arguments)
