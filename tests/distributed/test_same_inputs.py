"""Graphs in memory, partitioned and served: all loaders accept and refuse the same input alike."""

from pathlib import Path

import numpy as np
import pytest
import torch

from khop.distributed import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    shutdown_worker_group,
)
from khop.loader import LinkNeighborLoader, NeighborLoader
from support.cluster import twins
from support.cluster.servers import cluster
from support.cluster.twins import CITES, WRITES

LINKS = torch.tensor([[5, 79, 0, 5], [3, 3, 7, 3]])
NEW = ("venue", "likes", "paper")
MASK = torch.arange(150) % 50 == 0
TIMED = {"time_attr": "time"}
FOUR = torch.arange(4)

# Graph -> seeds that are refused, and options.
BAD_NODES = {
    "homogeneous": [
        ([150], {}),
        (torch.tensor([3, -1]), {}),
        (np.array([0.5]), {}),
        (3, {}),
        (torch.ones(2, 2).long(), {}),
        (torch.ones(7, dtype=torch.bool), {}),
        (["a.pt", "b.pt"], {}),
        (Path("a.pt"), {}),
        ([None], {}),
        ([2**70], {}),
        ({"a": 1}, {}),
        (("paper", None), {}),
        (("paper", [1]), {}),
        ([1], {"input_time": [3]}),
        ([1], {**TIMED, "input_time": [1, 2]}),
        ([1], {**TIMED, "input_time": 5}),
        ([1], {**TIMED, "input_time": "now"}),
        ([1], {**TIMED, "input_time": [float("nan")]}),
        ([1], {**TIMED, "input_time": [True]}),
        ([1], {**TIMED, "input_time": torch.ones(1, 1)}),
        ([1], {"num_neighbors": [2, -2]}),
        ([1], {"num_neighbors": [1.5]}),
        ([1], {"num_neighbors": "23"}),
        ([1], {"num_neighbors": {}}),
        ([1], {"subgraph_type": "all"}),
        ([1], {"temporal_strategy": "first"}),
        ([1], {"temporal_strategy": "last"}),
    ],
    "heterogeneous": [
        (None, {}),
        (3, {}),
        ("shop", {}),
        (("shop", None), {}),
        (torch.tensor([0]), {}),
        (("paper", [120]), {}),
        (("paper", MASK), {}),
        (("paper", [Path("a.pt")]), {}),
        ("venue", TIMED),
        (("venue", [1]), {**TIMED, "input_time": [1, 2]}),
        ("venue", {"num_neighbors": {CITES: [1]}}),
        ("venue", {"num_neighbors": {("a", "to", "b"): [1]}}),
    ],
}
GOOD_NODES = {
    "homogeneous": [
        (None, {}),
        ([5, 149, 0, 5], {}),
        ((5, 149), {}),
        (range(6), {}),
        ([], {}),
        (torch.tensor([7, 8], dtype=torch.int32), {}),
        (np.arange(9)[::-2], {}),
        (np.array([1, 4], ">i4"), {}),
        (MASK, {}),
        (MASK.numpy(), {}),
        ([[7], [8]][0], {"input_time": [3.5], **TIMED}),
        (MASK, {"input_time": np.arange(3), **TIMED}),
        ([1, 2], {**TIMED, "temporal_strategy": "last"}),
    ],
    "heterogeneous": [
        ("paper", {}),
        (("paper", None), {}),
        (["author", [79, 1]], {}),
        (("paper", MASK[:120]), {}),
        (("venue", (1, 2)), {**TIMED, "input_time": torch.tensor([4, 5])}),
    ],
}
# Graph -> links that are refused, and options.
BAD_LINKS = {
    "homogeneous": [
        (torch.tensor([[0, 150], [1, 1]]), {}),
        (torch.tensor([[0, 2], [1, -1]]), {}),
        (torch.ones(2, 3), {}),
        (torch.ones(2, 3).bool(), {}),
        (torch.ones(5, 2).long(), {}),
        (FOUR, {}),
        ([[1, 2], [3]], {}),
        ([[1, 2]], {}),
        (([[1], [2]], [[3], [4], [5]]), {}),
        ("a.pt", {}),
        (["a.pt", "b.pt"], {}),
        (3, {}),
        ((("a", "to", "b"), None), {}),
        (LINKS, TIMED),
        (LINKS, {"edge_label_time": FOUR}),
        (LINKS, {**TIMED, "edge_label_time": FOUR[1:]}),
        (LINKS, {**TIMED, "edge_label_time": 3}),
        (LINKS, {**TIMED, "edge_label_time": [float("nan")] * 4}),
        (LINKS, {"edge_label": FOUR[1:]}),
        (LINKS, {"edge_label": torch.tensor(1)}),
        (LINKS, {"edge_label": "y"}),
        (LINKS, {"edge_label": FOUR, "neg_sampling": "triplet"}),
        (LINKS, {"neg_sampling": "ternary"}),
        (LINKS, {"neg_sampling": {"mode": "binary", "amount": 0}}),
        (LINKS, {"neg_sampling": {"mode": "binary", "src_weight": torch.ones(3)}}),
        (LINKS, {"neg_sampling": {"mode": "triplet", "dst_weight": -torch.ones(150)}}),
        (LINKS, {"neg_sampling": "binary", "neg_sampling_ratio": 2.0}),
        (LINKS, {"neg_sampling_ratio": -1}),
        (LINKS, {"strict_negatives": True}),
        (LINKS, {"exclude_seed_edges": "reverses"}),
    ],
    "heterogeneous": [
        (None, {}),
        (LINKS, {}),
        ("writes", {}),
        (NEW, {}),
        ((("author", "writes", "shop"), LINKS), {}),
        ((WRITES, torch.tensor([[80], [0]])), {}),
        ((NEW, [[0], [0]]), {"neg_sampling": "binary", "strict_negatives": True}),
        ((NEW, [[0], [0]]), {"exclude_seed_edges": True}),
        ((WRITES, LINKS), {"exclude_seed_edges": CITES}),
    ],
}
GOOD_LINKS = {
    "homogeneous": [
        (LINKS, {}),
        (LINKS.int(), {}),
        (LINKS.numpy(), {}),
        (LINKS.tolist(), {}),
        (tuple(LINKS), {}),
        ((None, LINKS), {}),
        (LINKS.flip(1).numpy()[:, ::-1], {}),
        (torch.empty(2, 0), {"neg_sampling": "binary"}),
        (LINKS, {"edge_label": [2.5, 1, 3, 4]}),
        (LINKS, {"edge_label": FOUR, "neg_sampling": "binary"}),
        (LINKS, {"neg_sampling_ratio": 0.0}),
        (LINKS, {**TIMED, "edge_label_time": [0.5, 3, 9, 2]}),
    ],
    "heterogeneous": [
        (WRITES, {}),
        ([*WRITES], {}),
        ((WRITES, None), {}),
        ((("author", "paper"), LINKS), {}),
        ([WRITES, LINKS.tolist()], {}),
        ((NEW, [[0, 5], [119, 3]]), {}),
    ],
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """{name of a graph: a folder of one part with times}."""
    base = tmp_path_factory.mktemp("same")
    return {g: twins.partitioned(getattr(twins, g)(), base / g, 1, "time") for g in BAD_NODES}


@pytest.fixture(
    scope="module", params=[(kind, g) for kind in ("partitioned", "served") for g in BAD_NODES]
)
def graph_and_data(request, roots):
    """The name of a graph, and what distributed loaders take for it."""
    kind, graph = request.param
    if kind == "partitioned":
        yield graph, DistDataset().load(roots[graph])
        shutdown_worker_group()
    else:
        with cluster(roots[graph], [[0]], 1) as servers, servers.client():
            yield graph, None


def seen(loader):
    """All that the batches of a loader say of their seeds or links."""
    found = []
    for batch in loader:
        stores = [batch] if not hasattr(batch, "stores") else batch.stores
        for store in stores:
            for name in ("input_id", "seed_time", "edge_label", "edge_label_time", "batch_size"):
                if name in store and store[name] is not None:
                    value = torch.as_tensor(store[name])
                    found.append((name, value.dtype, value.tolist()))
        if hasattr(batch, "node_types"):
            found.append({t: batch[t].n_id.tolist() for t in batch.node_types})
            indices = {t: batch[t].edge_label_index for t in batch.edge_types
                       if "edge_label_index" in batch[t]}  # fmt: skip
            found.append({t: ends.tolist() for t, ends in indices.items()})
        else:
            found.append((batch.n_id.tolist(), "edge_label_index" in batch))
    return found


def outcome(make, read):
    """What a loader's batches say, or how it was refused."""
    try:
        loader = make()
    except Exception as error:
        return type(error), str(error)
    return read(loader)


def differences(cases, distributed, in_memory, read):
    """The cases in which two families differ: the input, and both outcomes."""
    found = []
    for given, options in cases:
        ours = outcome(lambda: distributed(given, **options), read)  # noqa: B023
        theirs = outcome(lambda: in_memory(given, **options), read)  # noqa: B023
        if ours != theirs or (read is refused and ours == MADE):
            found.append((given, options, ours, theirs))
    return found


MADE = "a loader was made"


def refused(loader):
    """In place of batches, of which there should be none."""
    return MADE


def node_loaders(graph, dataset):
    """Functions that make the distributed loader and the one in memory."""
    data = getattr(twins, graph)()

    def distributed(nodes, num_neighbors=(), **options):
        return DistNeighborLoader(dataset, num_neighbors, nodes, batch_size=4, seed=3, **options)

    def in_memory(nodes, num_neighbors=(), **options):
        return NeighborLoader(data, num_neighbors, nodes, batch_size=4, seed=3, **options)

    return distributed, in_memory


def link_loaders(graph, dataset):
    """Functions that make the distributed loader and the one in memory."""
    data = getattr(twins, graph)()

    def distributed(links, **options):
        return DistLinkNeighborLoader(
            dataset, [], batch_size=3, edge_label_index=links, seed=3, **options
        )

    def in_memory(links, **options):
        return LinkNeighborLoader(data, [], links, batch_size=3, seed=3, **options)

    return distributed, in_memory


def test_seeds_that_are_refused(graph_and_data):
    graph, data = graph_and_data
    assert differences(BAD_NODES[graph], *node_loaders(graph, data), refused) == []


def test_seeds_that_are_accepted(graph_and_data):
    graph, data = graph_and_data
    assert differences(GOOD_NODES[graph], *node_loaders(graph, data), seen) == []


def test_links_that_are_refused(graph_and_data):
    graph, data = graph_and_data
    assert differences(BAD_LINKS[graph], *link_loaders(graph, data), refused) == []


def test_links_that_are_accepted(graph_and_data):
    """Those that are given, or all of a type, which a trainer has in another order."""
    graph, data = graph_and_data
    with twins.quiet():
        found = differences(GOOD_LINKS[graph], *link_loaders(graph, data), seen)
    assert [case for case in found if _names_links(case[0])] == []
    assert [case for case in found if len(case[2]) != len(case[3])] == []


def _names_links(given):
    """Return whether links are given, not only their type."""
    return not (given is None or isinstance(given[0], str) or given[1] is None)
