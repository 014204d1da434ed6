"""Loaders of clients make the batches of the in-memory loaders, whatever makes them."""

import os
import signal

import pytest
import torch

from khop.distributed import (
    DistClusterLoader,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    RemoteDistSamplingWorkerOptions,
    node_split,
)
from khop.loader import (
    ClusterData,
    ClusterLoader,
    LinkNeighborLoader,
    NeighborLoader,
    SubGraphLoader,
)
from support.cluster import jobs, twins
from support.cluster.placed import ring_policies, where
from support.cluster.servers import cluster

SHUFFLED = {"shuffle": True, "seed": 3}
COMMON = {"batch_size": jobs.BATCH_SIZE, "shuffle": True, "seed": 3}


@pytest.fixture(scope="module")
def client(folder_of):
    """This process as the only client of two servers."""
    root = folder_of("frequency", 2)
    with cluster(root, [[0], [1]], 1) as servers, servers.client() as context:
        yield context


def remote_loader(seeds, **options):
    """A loader of a client, with all that a batch can carry."""
    names = ("num_workers", "server_rank", "shared_memory")
    workers = {name: options.pop(name) for name in names if name in options}
    return DistNeighborLoader(
        None,
        jobs.FANOUTS,
        seeds,
        with_edge=True,
        collect_features=True,
        worker_options=RemoteDistSamplingWorkerOptions(**workers),
        **{**COMMON, **options},
    )


def twin(seeds, **options):
    """The in-memory loader of the same graph."""
    return NeighborLoader(jobs.make_graph(), jobs.FANOUTS, seeds, **{**COMMON, **options})


@pytest.mark.parametrize(
    ("num_workers", "server_rank"), [(1, None), (2, 1), (1, [0, 1])], ids=["one", "two", "any"]
)
def test_batches_of_nodes(client, num_workers, server_rank):
    """Two epochs, bit for bit, whatever the number of samplers and servers."""
    seeds = jobs.seeds_of_rank(0)
    loader = remote_loader(seeds, num_workers=num_workers, server_rank=server_rank)
    reference = twin(seeds)
    assert [jobs.same_batches(loader, reference) for _ in range(2)] == [5, 5]


def test_seeds_of_all_kinds(client):
    """A mask, all nodes, and the name of a split: the share of a client that is alone."""
    mask = jobs.make_graph().train_mask
    assert jobs.same_batches(remote_loader(mask), twin(mask)) > 3
    assert jobs.same_batches(remote_loader(None), twin(None)) > 3
    share = node_split("train_mask")
    assert torch.equal(share.sort().values, mask.nonzero().view(-1))
    assert torch.equal(share, node_split(mask))
    names = [name for name in jobs.ATTRIBUTES if name != "input_id"]
    loader = remote_loader("train_mask", shuffle=False)
    assert jobs.same_batches(loader, twin(share, shuffle=False), names) > 3
    assert torch.equal(torch.cat([batch.input_id for batch in loader]), share)


def test_a_list_of_seeds_for_each_server(client):
    """Batches have seeds of one list, lists take turns; each is that of its seeds and number."""
    lists = [jobs.seeds_of_rank(0)[:70], jobs.seeds_of_rank(1)[:40]]
    loader = remote_loader(lists, server_rank=[1, 0], shuffle=False)
    cut = [part for i in range(3) for part in (one[32 * i : 32 * i + 32] for one in lists)]
    expected = [part for part in cut if len(part)]
    batches = list(loader)
    assert len(batches) == len(loader) == len(expected) == 5
    for batch, seeds in zip(batches, expected, strict=True):
        assert torch.equal(torch.cat(lists)[batch.input_id], seeds)
    # The in-memory loader of the same batches, by a sampler that names them.
    places = [batch.input_id.tolist() for batch in batches]
    reference = NeighborLoader(
        jobs.make_graph(), jobs.FANOUTS, torch.cat(lists), batch_sampler=places, seed=3
    )
    assert (
        jobs.same_batches(remote_loader(lists, server_rank=[1, 0], shuffle=False), reference) == 5
    )


def test_shuffled_lists_of_seeds(client):
    """Each list's seeds once an epoch, in another order each time."""
    lists = [torch.arange(50), torch.arange(50, 80)]
    loader = remote_loader(lists, server_rank=[0, 1], batch_size=8)
    orders = []
    for _ in range(2):
        batches = [batch.input_id for batch in loader]
        assert all((ids < 50).all() or (ids >= 50).all() for ids in batches)
        orders.append(torch.cat(batches))
        assert torch.equal(orders[-1].sort().values, torch.arange(80))
    assert not torch.equal(*orders)


def test_subgraphs(client):
    """All edges among the nodes of a batch, of whatever server."""
    seeds = jobs.seeds_of_rank(0)[:60]
    loader = DistSubGraphLoader(None, seeds, [4], collect_features=True, with_edge=True, **COMMON)
    reference = SubGraphLoader(jobs.make_graph(), seeds, [4], **COMMON)
    for ours, theirs in zip(loader, reference, strict=True):
        twins.same_batch(ours, theirs)


def test_clusters(client):
    """Whole clusters, of whatever server; batches of several sizes."""
    graph = jobs.make_graph()
    assignment = torch.arange(graph.num_nodes) ** 2 // 7 % 31
    clusters = ClusterData(graph, 31, assignment=assignment, sparse_format="csc")
    loader = DistClusterLoader(
        None, batch_size=4, assignment=assignment, collect_features=True, with_edge=True, **SHUFFLED
    )
    twins.same_epochs(loader, ClusterLoader(clusters, batch_size=4, **SHUFFLED), 2)
    with pytest.raises(ValueError, match="clusters are not known"):
        DistClusterLoader(None, batch_size=4)


def test_links(client):
    """Links with negatives by weight, whose weights travel to the servers."""
    links = torch.randint(1, 400, (2, 70), generator=torch.Generator().manual_seed(1))
    weight = torch.rand(500)
    negatives = {"mode": "triplet", "amount": 2, "dst_weight": weight}
    common = {**COMMON, "neg_sampling": negatives, "strict_negatives": True}
    loader = DistLinkNeighborLoader(
        None, [3, 2], edge_label_index=links, collect_features=True, with_edge=True, **common
    )
    reference = LinkNeighborLoader(jobs.make_graph(), [3, 2], links, **common)
    twins.same_epochs(loader, reference, 2)


@pytest.mark.parametrize("in_lists", [True, False])
def test_a_list_of_links_for_each_server(client, in_lists):
    """Labels come in lists, too, or in one; each batch is that of its links and number."""
    generator = torch.Generator().manual_seed(1)
    lists = [torch.randint(1, 400, (2, count), generator=generator) for count in (70, 40)]
    labels = [torch.arange(70), torch.arange(100, 140)]
    common = {"neg_sampling": "binary", "seed": 3}
    loader = DistLinkNeighborLoader(
        None, [3, 2], lists, edge_label=labels if in_lists else torch.cat(labels),
        batch_size=jobs.BATCH_SIZE, collect_features=True, with_edge=True,
        worker_options=RemoteDistSamplingWorkerOptions(server_rank=[1, 0]), **common,
    )  # fmt: skip
    places = [batch.input_id for batch in loader]
    assert [len(ids) for ids in places] == [32, 32, 32, 8, 6]
    assert [bool((ids < 70).all()) for ids in places] == [True, False, True, False, True]
    assert torch.equal(torch.cat(places).sort().values, torch.arange(110))
    reference = LinkNeighborLoader(
        jobs.make_graph(), [3, 2], torch.cat(lists, dim=1), torch.cat(labels),
        batch_sampler=[ids.tolist() for ids in places], **common,
    )  # fmt: skip
    next(iter(reference))  # of the first epoch, as above
    twins.same_epochs(loader, reference, 1)


@pytest.mark.parametrize(
    ("links", "labels", "server_rank", "words"),
    [
        ([[[0], [1]]], None, None, "edge_label_index is a list of 1 lists"),
        ([[[0], [1]], [[2], [3]], [[4], [5]]], None, [0, 1], "a list of 3 lists"),
        ([[[0], [1]], [[2], [3], [4]]], None, [0, 1], "shape"),
        ([torch.zeros(2, 3), torch.zeros(3, 2)], None, [0, 1], r"edge_label_index\[0\]|shape"),
        ([[[0], [1]], [[2], [3]]], [[1, 2], [3]], [0, 1], r"edge_label has lists of \[2, 1\]"),
        ([[[0], [1]], [[2], [3]]], [1, 2, 3], [0, 1], "an entry for each of 2 links"),
    ],
)
def test_lists_of_links_that_do_not_fit(client, links, labels, server_rank, words):
    """As many lists as servers, each of links, and labels for them."""
    options = RemoteDistSamplingWorkerOptions(server_rank=server_rank)
    with pytest.raises((ValueError, TypeError), match=words):
        DistLinkNeighborLoader(
            None,
            [2],
            batch_size=4,
            edge_label_index=links,
            edge_label=labels,
            worker_options=options,
        )


def test_all_edges_of_all_servers(client):
    """Without links, a client that is alone gets each edge of the graph once."""
    loader = DistLinkNeighborLoader(None, [], batch_size=256)
    seen = torch.cat([batch.n_id[batch.edge_label_index] for batch in loader], dim=1)
    edges = jobs.make_graph().edge_index
    assert sorted(seen.t().tolist()) == sorted(edges.t().tolist())


def test_several_loaders_at_once(client):
    """Each has samplers, seeds and options of its own, whatever they are called."""
    workers = RemoteDistSamplingWorkerOptions()
    graph, test_seeds = jobs.make_graph(), torch.arange(100, 180)
    train = remote_loader(graph.train_mask)
    options = {"worker_options": workers, "seed": 4, "collect_features": False}
    test = DistNeighborLoader(None, [2], test_seeds, batch_size=16, **options)
    again = DistNeighborLoader(None, [-1], test_seeds, batch_size=16, **options)
    reference = twin(graph.train_mask)
    for ours, theirs, small, full in zip(train, reference, test, again, strict=False):
        assert torch.equal(ours.n_id, theirs.n_id)
        assert torch.equal(small.input_id, full.input_id)
        assert small.n_id.numel() <= full.n_id.numel()
        assert "x" not in small
    assert [len(train), len(test)] == [len(reference), 5]


def test_epochs_that_are_left_and_loaders_that_are_made_again(client):
    """No batch of an epoch that was left comes in the next; loaders come and go."""
    seeds = jobs.seeds_of_rank(0)
    for _ in range(2):
        loader, reference = remote_loader(seeds), twin(seeds)
        next(iter(loader)), next(iter(reference))
        assert jobs.same_batches(loader, reference) == 5
        loader.shutdown()
        with pytest.raises(RuntimeError, match="has been shut down"):
            next(iter(loader))


def test_kept_batches(client):
    """Who keeps all batches gets all; what they say does not change."""
    seeds = jobs.seeds_of_rank(0)
    batches = list(remote_loader(seeds, batch_size=4))
    for ours, theirs in zip(batches, twin(seeds, batch_size=4), strict=True):
        twins.same_batch(ours, theirs)


def test_a_receiver_that_is_killed(client):
    """It is started again, and brings what was missing: no batch is lost or changed."""
    loader, reference = remote_loader(None, shared_memory=False), twin(None)
    expected = [batch.n_id for _ in range(2) for batch in reference]
    got = []
    for _ in range(2):  # if all of the first epoch had come already it is missed in the second
        for batch in loader:
            got.append(batch.n_id)
            if len(got) == 2:
                os.kill(loader.workers[0].pid, signal.SIGKILL)
    assert len(got) == len(expected)
    assert all(map(torch.equal, got, expected))
    assert loader.stats().restarts == 1


def test_a_receiver_at_a_node(client):
    """It is bound, and its arena, as the samplers of a trainer are. Batches are the same."""
    core = str(max(os.sched_getaffinity(0)))
    placement = f"cpus:{core}"
    loader, reference = remote_loader(None, shared_memory=False, placement=placement), twin(None)
    assert jobs.same_batches(loader, reference) == len(reference)
    assert where(loader.workers[0].pid) == [core, "prefer:0"]
    assert "prefer:0" in ring_policies("self")
    assert f"cores {core}, memory prefer:0" in loader.stats().placement["samplers"]
    loader.shutdown()


def test_statistics_count_rows_bytes_and_producers(client):
    """Rows, bytes and who made them, as of any other loader."""
    loader = remote_loader(None, num_workers=2)
    batches = sum(1 for _ in loader)
    stats = loader.stats()
    assert stats.batches == batches == len(loader)
    assert stats.seeds == 500
    assert stats.rows["local"] > 0 < stats.rows["remote"]
    assert stats.sampler_seconds["sampling"] > 0
    assert stats.ready_seconds < 60
