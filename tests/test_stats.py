"""What loaders of graphs in memory count, and how counts are shown."""

import json
import pickle
import time
from dataclasses import replace

import pytest
import torch

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.metrics.loader_stats import StatsAccumulator
from khop.stats import LoaderStats
from khop.trace.clock import BatchTimings
from support.loaders import links


def check_times(stats, wall, num_makers):
    """Phases are those of disjoint times within `wall` seconds."""
    assert all(seconds >= 0 for seconds in stats.trainer_seconds.values())
    assert all(seconds >= 0 for seconds in stats.sampler_seconds.values())
    assert stats.ready_seconds >= 0
    assert 0 < stats.elapsed_seconds <= wall
    assert sum(stats.sampler_seconds.values()) <= wall * num_makers


def tensor_bytes(batch):
    return sum(
        value.nbytes
        for store in batch.stores
        for value in store.values()
        if isinstance(value, torch.Tensor)
    )


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_counts(data, num_workers):
    """All that batches hold, and disjoint times."""
    began = time.monotonic()
    loader = NeighborLoader(data, [4, 3], batch_size=30, shuffle=True, num_workers=num_workers)
    batches = [batch for _ in range(2) for batch in loader]
    stats, wall = loader.stats(), time.monotonic() - began
    assert stats.batches == len(batches) == 2 * len(loader)
    assert stats.seeds == 2 * 200
    assert stats.nodes == stats.rows["local"] == sum(b.num_nodes for b in batches)
    assert stats.edges == sum(b.num_edges for b in batches)
    assert stats.delivered_bytes == sum(map(tensor_bytes, batches))
    assert stats.rows["cached"] == stats.rows["remote"] == stats.remote_bytes == 0
    assert stats.num_samplers == num_workers
    check_times(stats, wall, max(num_workers, 1))
    assert stats.sampler_seconds["sampling"] > 0 < stats.sampler_seconds["gathering"]
    assert (stats.ready_seconds > 0) == (num_workers > 0)
    if num_workers == 0:  # the trainer makes batches while it waits for them
        assert sum(stats.sampler_seconds.values()) <= stats.trainer_seconds["waiting"]
        assert stats.sampler_seconds["idle"] == 0


def test_time_of_the_trainer_is_consuming_or_collating(data):
    """Sleeping outside the loader is consuming, in a transform collating; batches lie ready."""

    def transform(batch):
        time.sleep(0.02)
        return batch

    loader = NeighborLoader(data, [2], batch_size=50, num_workers=1, transform=transform)
    for _ in loader:
        time.sleep(0.04)
    stats = loader.stats()
    assert stats.trainer_seconds["collating"] >= 4 * 0.02
    assert stats.trainer_seconds["consuming"] >= 3 * 0.04
    assert stats.ready_seconds >= 3 * 0.02
    assert stats.queue_depth == stats.ready_seconds / stats.elapsed_seconds > 0


def test_links_and_types():
    """Seeds of link batches are links; nodes and edges of all types count."""
    shop = links.make_shop()
    loader = LinkNeighborLoader(
        shop, [2, 2], ("user", "buys", "item"), batch_size=4, neg_sampling="binary"
    )
    batches = list(loader)
    stats = loader.stats()
    assert stats.seeds == shop["user", "buys", "item"].num_edges
    assert stats.nodes == sum(b.num_nodes for b in batches)
    assert stats.edges == sum(b.num_edges for b in batches)
    assert stats.delivered_bytes == sum(map(tensor_bytes, batches))


def test_snapshots(data):
    """What `stats` has returned stays as it is; `reset_stats` begins anew, in an epoch too."""
    loader = NeighborLoader(data, [2], batch_size=50, num_workers=2)
    epoch = iter(loader)
    next(epoch)
    first = loader.stats()
    next(epoch)
    assert (first.batches, loader.stats().batches) == (1, 2)
    loader.reset_stats()
    assert loader.stats() == LoaderStats(num_samplers=2)
    assert loader.stats().rows is not loader.stats().rows
    list(epoch)
    assert loader.stats().batches == 2
    assert first.batches == 1


@pytest.mark.process
def test_worker_processes(data):
    """Of torch's processes only the trainer's side is known; batches are as ever."""
    loader = NeighborLoader(data, [2], batch_size=50, num_workers=1, worker_type="process")
    assert len(list(loader)) == 4
    stats = loader.stats()
    assert stats.batches == 4 and stats.elapsed_seconds > 0
    assert stats.nodes == stats.delivered_bytes == sum(stats.sampler_seconds.values()) == 0
    assert "samplers" not in stats.summary()


def test_loaders_are_copied_without_their_counts(data):
    """As worker processes get them."""
    loader = NeighborLoader(data, [2], batch_size=50)
    list(loader)
    copied = pickle.loads(pickle.dumps(loader))
    assert loader.stats().batches == 4
    assert copied.stats() == LoaderStats()
    assert len(list(copied)) == copied.stats().batches == 4


def test_sparse_attributes_have_no_bytes(data):
    """Torch does not count them; a batch with `adj_t` is none the worse."""
    data.adj_t = torch.sparse_coo_tensor(
        data.edge_index.flip(0), torch.ones(data.num_edges), (200, 200)
    ).coalesce()
    del data.edge_index, data.edge_attr
    loader = NeighborLoader(data, [2], batch_size=50)
    values = [v for batch in loader for v in batch.to_dict().values() if torch.is_tensor(v)]
    dense = [v for v in values if v.layout is torch.strided]
    assert loader.stats().delivered_bytes == sum(v.nbytes for v in dense)
    assert len(dense) < len(values)


# How counts are shown -------------------------------------------------------------------------


def make_stats():
    tally = StatsAccumulator(2)
    sizes = (1000, 2500, 800, 150, 0, 50)
    ms = 1_000_000
    for overflows, trainer in ((0, (5, 1, 44)), (1, (0, 0, 50))):
        spent = [n * ms for n in (6, 3, 0, 1, 0)]
        made = BatchTimings(7, 7, 0, 4_000, 500, 0, overflows, *spent)
        tally.add(tuple(n * ms for n in trainer), 25 * ms, 32, sizes, made)
    return tally.snapshot(restarts=3)


def test_table():
    """Totals, times with shares, and the unusual only if it happened."""
    lines = str(make_stats()).splitlines()
    assert lines == [
        "2 batches, 64 seeds, 2,000 nodes, 5,000 edges in 100 ms",
        "trainer     waiting 5 ms (5.0%)  collating 1 ms (1.0%)  consuming 94 ms (94.0%)",
        "2 samplers  sampling 12 ms (60.0%)  gathering 6 ms (30.0%)  remote 0 ms (0.0%)  "
        "idle 2 ms (10.0%)  other 0 ms (0.0%)",
        "ready       0.50 batches on average, each for 25 ms",
        "trouble     1 batches without room in the arena, 3 samplers restarted",
        "rows        local 1,600 (80.0%)  cached 300 (15.0%)  reused 0 (0.0%)  remote 100 (5.0%)",
        "bytes       7.8 KiB delivered, 1000 B from other partitions",
    ]
    assert "trouble" not in str(replace(make_stats(), overflows=0, restarts=0))
    assert "samplers" not in str(LoaderStats())
    assert str(LoaderStats()).startswith("0 batches")


def test_dictionary():
    """What JSON can hold, and enough to make the same again."""
    stats = make_stats()
    content = json.loads(json.dumps(stats.as_dict()))
    assert content.pop("elapsed_seconds") == pytest.approx(0.1)
    assert content.pop("queue_depth") == pytest.approx(0.5)
    assert content.pop("hit_rate") == 0
    assert LoaderStats(**content) == stats
    assert eval(repr(stats)) == stats
    assert stats.shares() == {"local": 0.8, "cached": 0.15, "reused": 0, "remote": 0.05}
    assert LoaderStats().shares() == {"local": 0, "cached": 0, "reused": 0, "remote": 0}


@pytest.mark.parametrize("nbytes,shown", [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (12_345_678, "11.8 MiB"), (3.2e9, "3.0 GiB"),
    (7e15, "6366.5 TiB"),
])  # fmt: skip
def test_bytes(nbytes, shown):
    """In powers of 1,024, as everywhere."""
    assert f"bytes       {shown} delivered" in str(LoaderStats(delivered_bytes=nbytes))
