"""Distributed loaders go on after a stop, with other samplers and other partitions.

The oracle is the in-memory loader, which is never stopped.
"""

import itertools
import json

import pytest
import torch
from torch_geometric.data import Data

from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
)
from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.partition import RandomPartitioner
from support.cluster import jobs, resume_jobs

_COMMON = {"batch_size": 16, "shuffle": True}
_NUM_BATCHES = 10


def options_for(num_workers):
    """None: collocated; else that many sampler processes."""
    if num_workers is None:
        return CollocatedDistSamplingWorkerOptions()
    return MpDistSamplingWorkerOptions(num_workers=num_workers)


def distributed(root, num_parts, num_workers, kind="nodes", **options):
    """A loader whose trainer serves all parts."""
    dataset = DistDataset().load(root, 0, also_serve=range(1, num_parts))
    common = {
        **_COMMON,
        "with_edge": True,
        "collect_features": True,
        "worker_options": options_for(num_workers),
        "seed": 11,
        **options,
    }
    if kind == "nodes":
        return DistNeighborLoader(dataset, jobs.FANOUTS, jobs.seeds_of_rank(0), **common)
    if kind == "subgraphs":
        return DistSubGraphLoader(dataset, jobs.seeds_of_rank(0), [4], **common)
    links = jobs.make_graph().edge_index[:, :153]
    negatives = {"mode": "binary", "dst_weight": _weights()}
    return DistLinkNeighborLoader(
        dataset, [4, 2], edge_label_index=links, neg_sampling=negatives, **common
    )


def in_memory(graph, kind="nodes", **options):
    """Its twin."""
    common = {**_COMMON, "seed": 11, **options}
    if kind == "nodes":
        return NeighborLoader(graph, jobs.FANOUTS, jobs.seeds_of_rank(0), **common)
    if kind == "subgraphs":
        return SubGraphLoader(graph, jobs.seeds_of_rank(0), [4], **common)
    negatives = {"mode": "binary", "dst_weight": _weights()}
    return LinkNeighborLoader(
        graph, [4, 2], graph.edge_index[:, :153], neg_sampling=negatives, **common
    )


def _weights():
    return torch.arange(500).float() % 7


def check_same(batches, expected):
    """As many batches, equal in all that says what was drawn and delivered."""
    for got, want in itertools.zip_longest(batches, expected):
        for name in ("n_id", "e_id", "edge_index", "x", "input_id", "edge_label_index"):
            assert torch.equal(*(batch.get(name, torch.empty(0)) for batch in (got, want))), name


def stopped(loader, batches):
    """The loader's state in its second epoch, as it comes from a file, when it has ended."""
    assert sum(1 for _ in loader) == _NUM_BATCHES
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    if hasattr(loader, "shutdown"):
        loader.shutdown()
    return state


def check_rest(loader, state, reference, batches):
    """The rest of the second epoch, and the third, are those of a loader that never stopped."""
    loader.load_state_dict(state)
    epochs = [list(reference) for _ in range(3)]
    check_same(loader, epochs[1][batches:])
    check_same(loader, epochs[2])


@pytest.mark.parametrize(
    ("before", "batches", "after"),
    [
        ((2, 3), 3, (1, 1)),
        ((1, 1), _NUM_BATCHES - 1, (3, 2)),
        ((3, None), 0, (2, 2)),
        ((1, 1), _NUM_BATCHES, (3, None)),
    ],
)
def test_other_partitions_and_samplers(graph, folder_of, before, after, batches):
    """(Number of parts, of samplers) before and after; batches made ahead come again."""
    loader = distributed(folder_of("random", before[0]), *before)
    state = stopped(loader, batches)
    resumed = distributed(folder_of("frequency", after[0]), *after)
    check_rest(resumed, state, in_memory(graph), batches)


@pytest.mark.parametrize("kind", ["nodes", "links", "subgraphs"])
def test_from_memory_and_back(graph, folder_of, kind):
    """A state does not say where the graph was."""
    root = folder_of("random", 2)
    state = stopped(in_memory(graph, kind, num_workers=2), 4)
    loader = distributed(root, 2, 2, kind)
    check_rest(loader, state, in_memory(graph, kind), 4)
    state = stopped(distributed(root, 2, 1, kind), 7)
    check_rest(in_memory(graph, kind), state, in_memory(graph, kind), 7)


@pytest.mark.parametrize("num_workers", [None, 2])
def test_several_epochs_at_a_time(graph, folder_of, num_workers):
    """One of them the rest of another, which is left early."""
    loader = distributed(folder_of("random", 2), 2, num_workers)
    state = stopped(in_memory(graph), 4)
    reference = in_memory(graph)
    epochs = [list(reference) for _ in range(3)]
    loader.load_state_dict(state)
    rest, following = iter(loader), iter(loader)
    for got, want in zip(following, epochs[2], strict=True):
        assert torch.equal(got.e_id, want.e_id)
    assert torch.equal(next(rest).e_id, epochs[1][4].e_id)
    loader.load_state_dict(state)
    del rest
    assert jobs.same_batches(loader, epochs[1][4:]) == _NUM_BATCHES - 4


@pytest.mark.parametrize("num_workers", [None, 2])
def test_a_batch_whose_transform_fails(graph, folder_of, num_workers):
    """It is still due; unless the user does without it and takes the next, which comes."""

    def fail_at_two(batch):
        if int(batch.input_id[0]) == 2 * _COMMON["batch_size"]:
            raise ZeroDivisionError
        return batch

    options = {"shuffle": False, "transform": fail_at_two}
    loader = distributed(folder_of("random", 2), 2, num_workers, **options)
    iterator = iter(loader)
    with pytest.raises(ZeroDivisionError):
        list(iterator)
    for rest, take in (([32, 48, 64, 80, 96, 112, 128, 144], 0), ([80, 96, 112, 128, 144], 2)):
        assert [int(next(iterator).input_id[0]) for _ in range(take)] == [48, 64][:take]
        resumed = in_memory(graph, shuffle=False)
        resumed.load_state_dict(loader.state_dict())
        assert [int(b.input_id[0]) for b in resumed] == rest


def test_torchs_generator(graph, folder_of):
    """Without a seed the epoch under way is exact; with torch's state set back, all are."""
    torch.manual_seed(3)
    reference = in_memory(graph, seed=None)
    epochs = [list(reference) for _ in range(3)]
    torch.manual_seed(3)
    loader = distributed(folder_of("random", 1), 1, 1, seed=None)
    list(loader)
    list(itertools.islice(loader, 2))
    state, torchs = loader.state_dict(), torch.get_rng_state()
    torch.manual_seed(77)
    resumed = distributed(folder_of("random", 1), 1, None, seed=None)
    resumed.load_state_dict(state)
    assert jobs.same_batches(resumed, epochs[1][2:]) == _NUM_BATCHES - 2
    torch.set_rng_state(torchs)
    assert jobs.same_batches(resumed, epochs[2]) == _NUM_BATCHES


def test_times_and_types_are_the_same_seeds(tmp_path):
    """Temporal batches of a graph in memory go on in a folder partitioned with times."""
    ids = torch.arange(60)
    graph = Data(
        x=ids.float().view(-1, 1),
        edge_index=torch.randint(60, (2, 300), generator=torch.Generator().manual_seed(2)),
        time=ids % 17,
        num_nodes=60,
    )
    root = tmp_path / "parts"
    RandomPartitioner.from_data(graph, root, 2, time_attr="time").partition()
    common = {"batch_size": 10, "time_attr": "time", "seed": 1, "shuffle": True}
    times = (ids + 3) % 17

    def folder(**changes):
        dataset = DistDataset().load(root, 0, also_serve=[1])
        options = {"input_time": times, "with_edge": True, **common, **changes}
        return DistNeighborLoader(dataset, [3, 2], None, collect_features=True, **options)

    reference = NeighborLoader(graph, [3, 2], None, times, **common)
    epochs = [list(reference), list(reference)]
    memory = NeighborLoader(graph, [3, 2], None, times, **common)
    list(memory)
    list(itertools.islice(memory, 2))
    state = memory.state_dict()
    resumed = folder()
    resumed.load_state_dict(state)
    check_same(resumed, epochs[1][2:])
    with pytest.raises(ValueError, match="other seeds"):
        folder(input_time=times.flip(0)).load_state_dict(state)


def test_states_of_other_loaders(graph, folder_of):
    """What cannot be gone on with is refused, in words of the user's."""
    root = folder_of("random", 2)
    state = stopped(in_memory(graph), 3)
    with pytest.raises(ValueError, match=r"batch_size=16 \(here 32\)"):
        distributed(root, 2, None, batch_size=32).load_state_dict(state)
    with pytest.raises(ValueError, match="options of sampling"):
        distributed(root, 2, None, replace=True).load_state_dict(state)
    with pytest.raises(ValueError, match=r"stream=0 \(here 3\)"):
        distributed(root, 2, None, stream=3).load_state_dict(state)
    distributed(root, 2, None, with_edge=False).load_state_dict(state)  # draws the same


@pytest.mark.timeout(400)
def test_distributed_checkpoint(folder_of, tmp_path):
    """Two trainers' states in one checkpoint of `torch.distributed.checkpoint`, loaded in place.

    By loaders without sampler processes, whose homes have changed, and by loaders in memory.
    """
    root = str(folder_of("frequency", 2))
    arguments = {"root": root, "homes": [0, 1], "batches": 2, "folder": str(tmp_path)}

    def run(job, **others):
        given, program = {**arguments, **others}, resume_jobs.__name__
        return jobs.finish_trainers(jobs.start_trainers(job, given, 2, program=program), 200)

    whole = run("save", num_workers=2)
    assert all([len(epoch) for epoch in f[n]] == [3, 5] for f in whole for n in f)
    assert whole[0]["seeded"][0] != whole[1]["seeded"][0]
    assert run("go_on", num_workers=0, homes=[1, 0]) == [[found, found] for found in whole]
