"""What loaders of partitioned graphs count."""

import os
import signal
import time

import pytest
import torch

from khop.distributed import DistDataset, DistLinkNeighborLoader
from khop.stats import LoaderStats
from support.cluster import jobs


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("num_workers", [None, 2])
def test_counts(folder_of, num_parts, num_workers):
    """All that batches hold, where rows came from, and disjoint times."""
    began = time.monotonic()
    loader = jobs.make_loader(folder_of("frequency", num_parts), num_parts, num_workers)
    batches = [batch for _ in range(2) for batch in loader]
    stats, wall = loader.stats(), time.monotonic() - began
    assert stats.batches == len(batches) == 2 * len(loader)
    assert stats.seeds == 2 * len(jobs.seeds_of_rank(0))
    assert stats.nodes == sum(stats.rows.values()) == sum(b.num_nodes for b in batches)
    assert stats.edges == sum(b.num_edges for b in batches)
    sizes = [v.nbytes for b in batches for v in b.to_dict().values() if torch.is_tensor(v)]
    assert stats.delivered_bytes > sum(sizes) * 0.9  # input ids are not part of them
    remote = stats.rows["remote"] > 0
    assert remote == (num_parts > 1) == (stats.remote_bytes > 0)
    assert stats.remote_bytes >= stats.rows["remote"] * 5 * 4
    assert stats.num_samplers == (num_workers or 0)
    seconds = {**stats.trainer_seconds, **stats.sampler_seconds}
    assert all(value >= 0 for value in seconds.values())
    assert (seconds["remote"] > 0) == remote
    assert seconds["sampling"] > 0 < seconds["gathering"]
    assert 0 < stats.elapsed_seconds <= wall
    assert sum(stats.sampler_seconds.values()) <= wall * (num_workers or 1)
    if num_workers is None:
        assert sum(stats.sampler_seconds.values()) <= stats.trainer_seconds["waiting"]
        assert seconds["idle"] == stats.ready_seconds == 0
    else:
        assert stats.ready_seconds > 0


def test_idle_only_while_an_epoch_is_open(folder_of):
    """Samplers that are ahead of a slow trainer are idle; between epochs they do not count."""
    # No room for batches ahead: the next is asked for when one is taken.
    loader = jobs.make_loader(
        folder_of("random", 1), 1, 1, buffer_size=1 << 16, worker_concurrency=1
    )
    for _ in loader:
        time.sleep(0.03)
    idle = loader.stats().sampler_seconds["idle"]
    assert idle >= 3 * 0.03  # as it was when the last batch was made
    time.sleep(1)
    next(iter(loader))
    assert loader.stats().sampler_seconds["idle"] < idle + 0.9


def test_no_room_in_the_ring(folder_of):
    """Batches that had to get memory of their own are counted."""
    loader = jobs.make_loader(folder_of("random", 1), 1, 1, buffer_size=1 << 16)
    kept = list(loader)
    assert 0 < loader.stats().overflows <= len(kept)
    assert "without room in the arena" in loader.stats().summary()


def test_reset(folder_of):
    """Begins anew, restarts of samplers included; what was returned stays as it is."""
    loader = jobs.make_loader(folder_of("random", 2), 2, 2)
    list(loader)
    os.kill(loader.workers[0].pid, signal.SIGKILL)
    list(loader)
    before = loader.stats()
    loader.reset_stats()
    assert loader.stats() == LoaderStats(num_samplers=2)
    list(loader)
    assert before.batches == 2 * loader.stats().batches == 2 * len(loader)
    assert (before.restarts, loader.stats().restarts) == (1, 0)


def test_links(folder_of):
    """Seeds of link batches are links."""
    dataset = DistDataset().load(folder_of("random", 1), 0)
    loader = DistLinkNeighborLoader(
        dataset,
        [3],
        edge_label_index=jobs.make_graph().edge_index[:, :100],
        batch_size=30,
        neg_sampling="binary",
    )
    assert len(list(loader)) == loader.stats().batches == 4
    assert loader.stats().seeds == 100
