"""node_split and trainers with unequal numbers of seeds."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from khop.distributed import DistDataset, node_split
from khop.distributed.loaders.split import divide
from khop.partition import RangeBook
from khop.sampler.plan import EpochPlan
from support.cluster import jobs


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=1, max_size=7),
    st.data(),
)
def test_deal(sizes, homes, data):
    """Every id once, counts within one of each other, and as many at home as counts allow."""
    book = RangeBook([0, *np.cumsum(sizes).tolist()])
    homes = [home % len(sizes) for home in homes]
    chosen = data.draw(st.lists(st.integers(0, max(book.num_ids - 1, 0)), unique=True))
    ids = np.array(sorted(i for i in chosen if i < book.num_ids), np.int64)
    owners = book.owner(ids)
    shares = [ids[s] for s in divide(owners, np.arange(len(ids)), book.num_parts, homes)]
    assert np.array_equal(np.sort(np.concatenate(shares)), ids)
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    local = sum(int((book.owner(s) == h).sum()) for s, h in zip(shares, homes, strict=True))
    possible = 0
    for part in range(len(sizes)):
        have = int((book.owner(ids) == part).sum())
        possible += min(have, sum(c for c, h in zip(counts, homes, strict=True) if h == part))
    assert local == possible


def test_forms_of_input(graph, folder_of):
    """Ids, a mask and the name of a mask give the same share; the share is of original ids."""
    dataset = DistDataset().load(folder_of("random", 3), 1, also_serve=[0, 2])
    mask = graph.train_mask
    every = node_split(mask, dataset)
    assert torch.equal(torch.sort(every).values, mask.nonzero().view(-1))
    assert torch.equal(every, node_split(mask.nonzero().view(-1), dataset))
    assert torch.equal(every, node_split("train_mask", dataset))
    assert torch.equal(every, node_split("train_mask"))
    with pytest.raises(KeyError, match=r"has no boolean attribute 'mask'.*train_mask"):
        node_split("mask", dataset)
    parts = [node_split(mask, dataset, rank=r, homes=[0, 1, 2]) for r in range(3)]
    assert torch.equal(torch.sort(torch.cat(parts)).values, mask.nonzero().view(-1))


def test_two_trainers(graph, folder_of):
    """Shares are disjoint, even and mostly local; unequal seeds still make equal batch counts."""
    arguments = {"root": str(folder_of("random", 2)), "homes": [0, 1], "num_workers": 1}
    results = jobs.finish_trainers(jobs.start_trainers("split", arguments, 2), silent=True)
    shares = [set(r["share"]) for r in results]
    assert shares[0] | shares[1] == set(graph.train_mask.nonzero().view(-1).tolist())
    assert not shares[0] & shares[1]
    assert abs(len(shares[0]) - len(shares[1])) <= 1
    assert all(r["local"] >= 0.9 * len(r["share"]) for r in results)
    assert [r["batches"] for r in results] == [3, 3]
    assert [len(r["dropping"]) for r in results] == [1, 1]
    assert {size for r in results for size in r["dropping"]} == {jobs.BATCH_SIZE}


@given(st.integers(0, 200), st.integers(1, 40), st.booleans(), st.integers(0, 30))
def test_plan_covers_the_seeds(num_seeds, batch_size, drop_last, more):
    """Batches cover the seeds in order; a number that is asked for is kept, sizes within one."""
    plan = EpochPlan(num_seeds, batch_size, drop_last)
    bounds = [plan.bounds(b) for b in range(plan.num_batches)]
    covered = [i for first, last in bounds for i in range(first, last)]
    kept = num_seeds - num_seeds % batch_size if drop_last else num_seeds
    assert covered == list(range(kept))
    assert all(last - first <= batch_size for first, last in bounds)
    if not drop_last:
        asked = plan.num_batches + more
        spread = EpochPlan(num_seeds, batch_size, num_batches_asked=asked)
        bounds = [spread.bounds(b) for b in range(asked)]
        assert [i for first, last in bounds for i in range(first, last)] == list(range(num_seeds))
        if more:
            sizes = [last - first for first, last in bounds]
            assert max(sizes, default=0) - min(sizes, default=0) <= 1
    with pytest.raises(IndexError):
        plan.bounds(plan.num_batches)
