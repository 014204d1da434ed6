"""Clients of graphs with several types, with times and weights."""

import numpy as np
import pytest
import torch

from khop.distributed import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    RemoteDistSamplingWorkerOptions,
    node_split,
)
from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.sampler import Hgt
from support.cluster import twins
from support.cluster.servers import cluster

SOME = {"batch_size": 16, "shuffle": True, "seed": 5}
PAPERS = torch.arange(0, 120, 2)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """The only client of two servers that have two and one of a heterogeneous graph's parts.

    Rows are in the order of degrees, which nothing that a client sees depends on.
    """
    root = tmp_path_factory.mktemp("typed") / "parts"
    twins.partitioned(twins.heterogeneous(), root, 3, "time", order="degree")
    with cluster(root, [[0, 2], [1]], 1) as servers, servers.client() as context:
        yield context


@pytest.mark.parametrize(
    "options",
    [{"time_attr": "time"}, {"weight_attr": "edge_weight"}, {"disjoint": True}],
    ids=["times", "weights", "disjoint"],
)
def test_nodes(client, options):
    """Seeds' own times come from the servers."""
    seeds = ("paper", PAPERS)
    data = twins.heterogeneous()
    if "time_attr" not in options:  # rows of such a folder are in order of time
        data = _by_time(data)
    with twins.quiet():
        loader = DistNeighborLoader(None, [3, 2], seeds, **SOME, **options)
        twin = NeighborLoader(data, [3, 2], seeds, **SOME, **options)
        for ours, theirs in zip(loader, twin, strict=True):
            if "time_attr" in options:
                twins.same_batch(ours, theirs)
            else:
                for node_type in twins.SIZES:
                    assert torch.equal(ours[node_type].n_id, theirs[node_type].n_id)


def test_nodes_by_type(client):
    """A program with options for each node type reaches the servers."""
    method = Hgt({"paper": [9, 4], "author": [6, 6], "venue": [2, 0], "ghost": [0, 1]})
    loader = DistNeighborLoader(None, method, ("paper", PAPERS), **SOME)
    twin = NeighborLoader(_by_time(twins.heterogeneous()), method, ("paper", PAPERS), **SOME)
    for ours, theirs in zip(loader, twin, strict=True):
        for node_type in twins.SIZES:
            assert torch.equal(ours[node_type].n_id, theirs[node_type].n_id)
        for edge_type in theirs.edge_types:
            assert torch.equal(ours[edge_type].edge_index, theirs[edge_type].edge_index)


def _by_time(data):
    """The graph whose edges are in order of the times of their sources."""
    data = data.clone()
    for edge_type in data.edge_types:
        store = data[edge_type]
        times = data[edge_type[0]].get("time")
        if times is None:
            continue
        order = torch.from_numpy(np.argsort(times[store.edge_index[0]].numpy(), kind="stable"))
        for name, value in list(store.items()):
            store[name] = value[:, order] if name == "edge_index" else value[order]
    return data


def test_links_at_their_times(client):
    """Links between two types, with negatives, from two servers by turns."""
    generator = torch.Generator().manual_seed(3)
    links = torch.stack([torch.randint(n, (40,), generator=generator) for n in (80, 120)])
    common = {
        **SOME,
        "neg_sampling": "binary",
        "time_attr": "time",
        "edge_label_time": torch.randint(2, 9, (40,), generator=generator),
    }
    workers = RemoteDistSamplingWorkerOptions([1, 0])
    given = (twins.WRITES, links)
    with twins.quiet():
        loader = DistLinkNeighborLoader(
            None, [3, 2], edge_label_index=given, worker_options=workers, **common
        )
        twin = LinkNeighborLoader(twins.heterogeneous(), [3, 2], given, **common)
        twins.same_epochs(loader, twin)


def test_subgraphs_and_shares(client):
    """A node type for all of its nodes, and shares of a client that is alone."""
    with twins.quiet():
        loader = DistSubGraphLoader(None, "author", [2], time_attr="time", **SOME)
        twin = SubGraphLoader(twins.heterogeneous(), "author", [2], time_attr="time", **SOME)
        twins.same_epochs(loader, twin)
    share = node_split(PAPERS, node_type="paper")
    assert torch.equal(share.sort().values, PAPERS)
    links = DistLinkNeighborLoader(None, [], batch_size=128, edge_label_index=twins.CITES)
    seen = [batch["paper"].n_id[batch[twins.CITES].edge_label_index] for batch in links]
    edges = twins.heterogeneous()[twins.CITES].edge_index
    assert sorted(torch.cat(seen, 1).t().tolist()) == sorted(edges.t().tolist())
