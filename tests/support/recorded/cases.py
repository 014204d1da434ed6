"""Cases whose batches are recorded: loaders of each mode, by name.

A mode is a function from a maker of folders to (name, loader) pairs. Loaders are made and used one
after the other. Only names that users have are imported from khop.
"""

import contextlib
import itertools
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NegativeSampling
from torch_geometric.testing import MyGraphStore

from khop.distributed import (
    DistClusterLoader,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PartitionSampler,
    RemoteDistSamplingWorkerOptions,
    node_split,
)
from khop.loader import (
    ClusterData,
    ClusterLoader,
    DynamicBatchSampler,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    HGTLoader,
    ImbalancedSampler,
    LinkNeighborLoader,
    MetaPath2VecLoader,
    NeighborLoader,
    Node2VecLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
    SubGraphLoader,
    neighborhood_sizes,
)
from khop.partition import FrequencyPartitioner, RandomPartitioner
from khop.sampler import Hgt, Labor, NeighborSampler
from support.cluster import jobs, servers, twins
from support.delivered import METHODS
from support.loaders.stores import RowStore

COMMON = {"batch_size": 5, "shuffle": True, "seed": 7}
SEEDS = torch.tensor([3, 77, 12, 149, 40, 12, 8, 60, 101, 33, 5])  # an isolated one, one twice
TIMES = torch.arange(len(SEEDS)) + 8
PAPERS = ("paper", SEEDS % 120)
PROBABILITIES = twins.homogeneous().edge_index.view(-1).bincount(minlength=150).double().numpy()
SAMPLES = {"paper": [6, 4], "author": [5, 9], "venue": [2, 0], "ghost": [1, 1]}
CLUSTERS = torch.arange(150) * 7 % 150 // 11

DRAWS = {
    "uniform": {},
    "weighted": {"weight_attr": "edge_weight"},
    "times": {"time_attr": "time"},
    "weighted, times, last": {
        "time_attr": "time",
        "weight_attr": "edge_weight",
        "temporal_strategy": "last",
    },
    "edge times": {"time_attr": "edge_time", "input_time": TIMES},
}
"""Ways to choose among a node's neighbours."""

FOLDERS = {
    "uniform": "labor",
    "weighted": "labor",
    "times": "labor_time",
    "weighted, times, last": "labor_time",
    "edge times": "edge_time",
}
"""{draws: attributes of their folder, a key of `twins.ATTRS`}."""

NEGATIVES = {
    "": {},
    "binary": {"neg_sampling": "binary"},
    "triplet": {"neg_sampling": NegativeSampling("triplet", 2, None, torch.arange(150) % 7)},
    "binary, weighted": {
        "neg_sampling": NegativeSampling("binary", 1.5, torch.arange(150), torch.arange(150) % 3)
    },
}


def _combined(*parts):
    return ", ".join(part for part in parts if part)


def _options():
    """Yield (name, draws, options) of all valid combinations of options."""
    kinds = ("directional", "bidirectional", "induced")
    for draws, kind, replace, disjoint in itertools.product(
        DRAWS, kinds, (False, True), (False, True)
    ):
        options = {"replace": replace, "disjoint": disjoint}
        if disjoint and "times" in draws:  # they always are
            continue
        names = [name for name, is_on in options.items() if is_on]
        every = {**DRAWS[draws], **options, "subgraph_type": kind}
        yield _combined(draws, kind, *names), draws, every


def _link_options(negatives=NEGATIVES):
    """Yield (name, draws, options) of loaders of links."""
    for draws, sign, excluded in itertools.product(DRAWS, negatives, (False, "self", "reverse")):
        options = dict(DRAWS[draws])
        if "times" in draws:
            options.pop("input_time", None)
            options["edge_label_time"] = TIMES
        if sign and excluded == "reverse":
            options["strict_negatives"] = True
        about = f"without seeds ({excluded})" if excluded else ""
        options |= {**negatives[sign], "exclude_seed_edges": excluded}
        yield _combined(draws, sign, about), draws, options


def _half(pairs, start=0):
    """Return every other case, for modes that share code with one that has all cases."""
    return itertools.islice(pairs, start, None, 2)


def _bare():
    """Return the homogeneous graph without weights: methods add an attribute of that name."""
    full = twins.homogeneous()
    return Data(edge_index=full.edge_index, num_nodes=150, x=full.x, edge_attr=full.edge_attr)


def _links(data, edge_type=None):
    """Return some edges of a graph as links to predict."""
    return (data if edge_type is None else data[edge_type]).edge_index[:, : len(SEEDS)]


# In memory ------------------------------------------------------------------------------------


def memory(_folder_of):
    """Yield loaders in memory whose batches are made in the trainer's thread."""
    yield from _methods_in_memory()
    yield from _options_in_memory()
    yield from _other_loaders()


def _methods_in_memory(**ways):
    bare = _bare()
    for name, (method, _) in METHODS.items():
        yield f"nodes, {name}", NeighborLoader(bare, method, SEEDS, **COMMON, **ways)
    for name, (method, _) in METHODS.items():
        links = {"edge_label_index": _links(bare), "neg_sampling": "binary"}
        yield f"links, {name}", LinkNeighborLoader(bare, method, **links, **COMMON, **ways)


def _options_in_memory():
    data, typed = twins.homogeneous(), twins.heterogeneous()
    for name, _, options in _options():
        yield f"nodes, {name}", NeighborLoader(data, [3, 2], SEEDS, **COMMON, **options)
        yield f"types, {name}", NeighborLoader(typed, [3, 2], PAPERS, **COMMON, **options)
    for name, _, options in _link_options():
        yield f"links, {name}", LinkNeighborLoader(data, [3, 2], _links(data), **COMMON, **options)
    unweighted = {key: value for key, value in NEGATIVES.items() if key in ("", "binary")}
    for name, _, options in _link_options(unweighted):
        links = (twins.WRITES, _links(typed, twins.WRITES))
        yield f"typed links, {name}", LinkNeighborLoader(typed, [3, 2], links, **COMMON, **options)
    for name, _, options in _half(_options()):
        given = {key: options.pop(key) for key in ("input_time",) if key in options}
        sampler = NeighborSampler(data, [3, 2], sample_direction="backward", **options)
        given["time_attr"] = options.get("time_attr")
        loader = NeighborLoader(data, [], SEEDS, neighbor_sampler=sampler, **COMMON, **given)
        yield f"backward, {name}", loader


def _other_loaders():
    data, bare, typed = twins.homogeneous(), _bare(), twins.heterogeneous()
    for keeps in (False, True):
        clusters = ClusterData(
            bare, 14, assignment=CLUSTERS, keep_inter_cluster_edges=keeps, log=False
        )
        name = "clusters, with edges between them" if keeps else "clusters"
        yield name, ClusterLoader(clusters, **COMMON)
    yield "hgt", HGTLoader(typed, SAMPLES, PAPERS, **COMMON)
    yield "random nodes", RandomNodeLoader(bare, 6, seed=7)
    yield "random nodes of types", RandomNodeLoader(typed, 6, seed=7)
    saint = {"num_steps": 3, "sample_coverage": 2, "log": False, "seed": 7}
    yield "saint nodes", GraphSAINTNodeSampler(bare, 9, **saint)
    yield "saint edges", GraphSAINTEdgeSampler(bare, 9, **saint)
    yield "saint walks", GraphSAINTRandomWalkSampler(bare, 9, 3, **saint)
    for replace in (False, True):
        name = "shadow, replace" if replace else "shadow"
        yield name, ShaDowKHopSampler(bare, 2, 3, SEEDS, replace, **COMMON)
    yield "subgraphs", SubGraphLoader(bare, SEEDS, [3, 2], **COMMON)
    yield "subgraphs of types", SubGraphLoader(typed, PAPERS, [3], **COMMON)
    yield "node2vec", Node2VecLoader(bare, 5, 3, 2, 0.5, 2.0, 3, input_nodes=SEEDS, **COMMON)
    path = [twins.WRITES, twins.CITES, twins.WRITTEN]
    yield "metapath2vec", MetaPath2VecLoader(typed, path, 5, 3, 2, 2, batch_size=20, seed=7)
    balanced = ImbalancedSampler(SEEDS % 2, seed=7)
    yield "imbalanced", NeighborLoader(bare, [3], SEEDS, batch_size=5, seed=7, sampler=balanced)
    sizes = neighborhood_sizes(bare, [3, 2], SEEDS)
    batches = DynamicBatchSampler(sizes, 40, shuffle=True, seed=7)
    yield "by size", NeighborLoader(bare, [3, 2], SEEDS, seed=7, batch_sampler=batches)
    features, graph = RowStore(), MyGraphStore()
    features.put_tensor(bare.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(bare.edge_index, edge_type=None, layout="coo", size=(150, 150))
    yield "user's stores", NeighborLoader((features, graph), [3, 2], SEEDS, **COMMON)
    yield "pyg's loader", NodeLoader(bare, NeighborSampler(bare, [3, 2], seed=7), SEEDS)
    yield "another stream", NeighborLoader(bare, [3, 2], SEEDS, stream=3, **COMMON)
    yield "narrow attributes", NeighborLoader(jobs.make_graph(), [4, -1], SEEDS, **COMMON)
    emulated = {"device": "emulated", **COMMON}
    yield "emulated device", NeighborLoader(data, [3, 2], SEEDS, **emulated)
    yield "emulated device, types", NeighborLoader(typed, [3, 2], PAPERS, **emulated)


def threads(_folder_of):
    """Yield loaders in memory whose batches threads make."""
    yield from _methods_in_memory(num_workers=2)
    for name, _, options in _half(_options()):
        data = twins.homogeneous()
        loader = NeighborLoader(data, [3, 2], SEEDS, num_workers=2, **COMMON, **options)
        yield f"nodes, {name}", loader


def processes(_folder_of):
    """Yield loaders in memory whose batches torch's worker processes make."""
    ways = {"num_workers": 1, "worker_type": "process", **COMMON}
    typed = twins.heterogeneous()
    for name in ("labor, weighted", "own program"):
        yield f"nodes, {name}", NeighborLoader(_bare(), METHODS[name][0], SEEDS, **ways)
    links = (twins.WRITES, _links(typed, twins.WRITES))
    yield "typed links", LinkNeighborLoader(typed, [3, 2], links, neg_sampling="binary", **ways)


# Over partitions ------------------------------------------------------------------------------


def collocated(folder_of):
    """Yield loaders over one, two and three parts that sample in the trainer."""
    made = [*_methods_over_parts(), *_options_over_parts(), *_links_over_parts()]
    by_folder = itertools.groupby(sorted(made, key=lambda case: case[0]), lambda case: case[0])
    for folder, loaders in by_folder:
        num_parts = folder[1]
        with twins.open_dataset(folder_of(*folder), num_parts) as dataset:
            for _, name, make in loaders:
                yield f"{num_parts} part(s), {name}", make(dataset)
    yield from _other_loaders_over_parts(folder_of)


def _methods_over_parts():
    """Yield (arguments of `folder_of`, name, function from dataset to loader) for each method."""
    for num_parts, (name, (method, _)) in itertools.product((1, 2), METHODS.items()):
        make = partial(DistNeighborLoader, num_neighbors=method, input_nodes=SEEDS, **COMMON)
        yield ("homogeneous", num_parts, "labor"), f"nodes, {name}", make


def _options_over_parts():
    every = list(_options())
    for graph, num_parts, strategy, some in (
        ("homogeneous", 1, "by_dst", every[::2]),
        ("homogeneous", 2, "by_dst", every),
        ("homogeneous", 2, "by_src", every[::4]),
        ("heterogeneous", 3, "by_dst", every[1::2]),
        ("heterogeneous", 2, "by_src", every[2::4]),
    ):
        for name, draws, options in some:
            folder = (graph, num_parts, FOLDERS[draws], strategy)
            seeds = SEEDS if graph == "homogeneous" else PAPERS
            every_option = {"num_neighbors": [3, 2], "input_nodes": seeds, **COMMON, **options}
            make = partial(DistNeighborLoader, **every_option)
            yield folder, f"{graph}, {strategy}, {name}", make


def _links_over_parts():
    links = {"num_neighbors": [3, 2], "edge_label_index": _links(twins.homogeneous()), **COMMON}
    for name, draws, options in _half(_link_options()):
        make = partial(DistLinkNeighborLoader, **links, **options)
        yield ("homogeneous", 2, FOLDERS[draws]), f"links, {name}", make


def _other_loaders_over_parts(folder_of):
    data = twins.homogeneous()
    with twins.open_dataset(folder_of("homogeneous", 2, "labor"), 2) as dataset:
        yield "clusters", DistClusterLoader(dataset, assignment=CLUSTERS, **COMMON)
        yield "subgraphs", DistSubGraphLoader(dataset, SEEDS, [3, 2], **COMMON)
        yield "without edges", DistNeighborLoader(dataset, [3, 2], SEEDS, with_edge=False, **COMMON)
        yield (
            "without features",
            DistNeighborLoader(dataset, [3, 2], SEEDS, collect_features=False, **COMMON),
        )
        yield "share", DistNeighborLoader(dataset, [3], node_split(data.y < 40), **COMMON)
        sampler = PartitionSampler(dataset, [3, 2], seed=7)
        yield "stores", NodeLoader((dataset, dataset), sampler, SEEDS)
        for name, (method, _) in METHODS.items():
            sampler = PartitionSampler(dataset, method)
            loader = NeighborLoader(
                (dataset, dataset), [], SEEDS, neighbor_sampler=sampler, **COMMON
            )
            yield f"stores, {name}", loader
    with twins.open_dataset(folder_of("heterogeneous", 3, "labor"), 3) as dataset:
        yield "hgt", DistNeighborLoader(dataset, Hgt(SAMPLES), PAPERS, **COMMON)


def folders(_folder_of):
    """Yield loaders over folders in other orders, with copies of rows, and of old versions."""
    with tempfile.TemporaryDirectory(dir=twins.FAST) as base:
        roots = {}
        for order in ("degree", "hotness", "cluster"):
            options = {**twins.ATTRS["labor"], "order": order, "seed": 5}
            root = roots[f"order {order}"] = Path(base) / order
            RandomPartitioner.from_data(twins.homogeneous(), root, 2, **options).partition()
        root = roots["copies of rows"] = Path(base) / "cached"
        FrequencyPartitioner.from_data(
            twins.homogeneous(),
            root,
            2,
            probs=[PROBABILITIES] * 2,
            cache_ratio=0.2,
            **twins.ATTRS["labor"],
        ).partition()
        for version in (1, 2):
            root = roots[f"version {version}"] = Path(base) / f"version-{version}"
            unpack(version, root)
        for where, root in roots.items():
            with twins.open_dataset(root, 2) as dataset:
                yield from _few_over_parts(dataset, where)
        RandomPartitioner.from_data(jobs.make_graph(), Path(base) / "narrow", 2).partition()
        with twins.open_dataset(Path(base) / "narrow", 2) as dataset:
            yield "narrow attributes", DistNeighborLoader(dataset, [4, -1], SEEDS, **COMMON)


def unpack(version, root):
    """Write the folder of an old format version, which is stored beside this module, to `root`.

    Both versions are of `twins.homogeneous`, in two parts, with weights and ids of neighbours.
    Version 2 is in the order of degrees, with copies of rows.
    """
    with zipfile.ZipFile(Path(__file__).with_name(f"version-{version}.zip")) as archive:
        archive.extractall(root)


def _few_over_parts(dataset, where, **ways):
    """Yield some loaders of nodes and links with the options `ways`, named after `where`."""
    weighted = {"weight_attr": "edge_weight"}
    cases = {
        "uniform": ([3, 2], {}),
        "weighted": ([3, 2], weighted),
        "induced, disjoint": ([3, 2], {"subgraph_type": "induced", "disjoint": True}),
        "labor": (Labor([3, 2]), {}),
        "pinsage": (METHODS["pinsage"][0], {}),
    }
    for name, (method, options) in cases.items():
        loader = DistNeighborLoader(dataset, method, SEEDS, **COMMON, **options, **ways)
        yield f"{where}, {name}", loader
    links = _links(twins.homogeneous())
    options = {**COMMON, **NEGATIVES["triplet"], **weighted, **ways}
    loader = DistLinkNeighborLoader(dataset, [3, 2], edge_label_index=links, **options)
    yield f"{where}, links", loader


def samplers(folder_of):
    """Yield loaders over two and three parts whose batches sampler processes make."""
    with twins.open_dataset(folder_of("homogeneous", 2, "labor"), 2) as dataset:
        yield from _few_over_parts(dataset, "two", worker_options=twins.workers(2))
    with twins.open_dataset(folder_of("heterogeneous", 3, "labor_time"), 3) as dataset:
        options = {"worker_options": twins.workers(1), "time_attr": "time", **COMMON}
        yield "one, types, times", DistNeighborLoader(dataset, [3, 2], PAPERS, **options)


def graph_servers(folder_of):
    """Yield loaders of a client whose batches two graph servers make."""
    with contextlib.ExitStack() as stack:
        root = folder_of("homogeneous", 2, "labor")
        stack.enter_context(stack.enter_context(servers.cluster(root, [[0], [1]], 1)).client())
        for shared in (False, True):
            options = RemoteDistSamplingWorkerOptions(shared_memory=shared)
            where = "on this host" if shared else "over sockets"
            yield from _few_over_parts(None, where, worker_options=options)


MODES = {
    mode.__name__.replace("_", "-"): mode
    for mode in (memory, threads, processes, collocated, folders, samplers, graph_servers)
}
