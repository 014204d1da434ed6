"""Rows of other partitions that stay in memory: batches are the same, hits are Belady's."""

import contextlib
import itertools
import os
import random
import signal

import numpy as np
import pytest
import torch

from khop.data.steps import run
from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from khop.distributed.loaders import backends
from khop.distributed.loaders.sampling_options import collect_spec, info_for
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.sampling.pipeline import Pipeline, PipelineSpec
from khop.loader import NeighborLoader
from khop.partition import PartitionFolder
from khop.sampler.rows.row_cache import PLAN_BYTES, TableSize, capacities
from khop.sampler.spec import SamplingOptions
from khop.storage.part import Part
from support.cluster import jobs
from support.cluster.part_servers import serving
from support.reference.eviction import lru_misses, sieve_misses
from support.reference.lookahead_cache import WindowedBelady

ROW_BYTES = 41  # of a node of jobs.make_graph


def make_loader(root, num_parts, num_workers, capacity, lookahead=3, **options):
    """A loader with a cache of `capacity` nodes of each sampler, and any edges that fit in."""
    workers = CollocatedDistSamplingWorkerOptions()
    if num_workers:
        workers = MpDistSamplingWorkerOptions(num_workers=num_workers)
    memory = capacity * (ROW_BYTES + PLAN_BYTES) * (num_workers or 1)
    dataset = DistDataset().load(root, 0, also_serve=range(1, num_parts))
    common = {"batch_size": 16, "shuffle": True, "seed": 11, "with_edge": True, **options}
    return DistNeighborLoader(
        dataset,
        jobs.FANOUTS,
        jobs.seeds_of_rank(0),
        worker_options=workers,
        cache_memory=memory,
        lookahead=lookahead,
        **common,
    )


def make_reference(graph, **options):
    common = {"batch_size": 16, "shuffle": True, "seed": 11, **options}
    return NeighborLoader(graph, jobs.FANOUTS, jobs.seeds_of_rank(0), **common)


@pytest.mark.parametrize(
    ("num_workers", "capacity", "lookahead"),
    [(0, 1, 8), (0, 60, 0), (0, 60, 8), (0, 10_000, 1), (2, 60, 0), (2, 60, 8), (1, 10_000, 2)],
)
def test_batches_are_the_same(graph, folder_of, num_workers, capacity, lookahead):
    """Over three epochs, one of which is left early."""
    ours = make_loader(folder_of("random", 3), 3, num_workers, capacity, lookahead)
    reference = make_reference(graph)
    jobs.same_batches(ours, reference)
    for loader in (ours, reference):
        for _ in zip(loader, range(3), strict=False):
            pass
    assert jobs.same_batches(ours, reference) == len(ours)
    rows = ours.stats().rows
    assert rows["remote"] > 0
    if capacity == 10_000 and not num_workers:  # all rows fit: each is requested once
        assert rows["remote"] <= graph.num_nodes - ours.data.meta.node_types[0].bounds[1]
        assert rows["reused"] > rows["remote"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_epochs_that_overlap(graph, folder_of, num_workers):
    """Two epochs at the same time, the first of which ends before the second does."""
    ours = make_loader(folder_of("random", 2), 2, num_workers, 80)
    reference = make_reference(graph)
    pairs = [zip(iter(ours), iter(reference), strict=True) for _ in range(2)]
    turns = [pairs[0], pairs[1], pairs[0]] * len(ours)
    for pair in turns:
        for a, b in itertools.islice(pair, 1):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.edge_attr, b.edge_attr)
    assert [list(pair) for pair in pairs] == [[], []]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_other_rules_miss_what_their_oracles_miss(folder_of, num_workers):
    """Of the nodes of real batches. Rows of edges have a cache of their own, if one fits."""
    ours = make_loader(folder_of("random", 2), 2, num_workers, 90, with_edge=False)
    own = set(ours.data.opened.node_ids(0, "node").tolist())
    ids = [node for batch in ours for node in batch.n_id.tolist() if node not in own]
    stats = ours.stats()
    assert len(ids) == stats.rows["reused"] + stats.rows["remote"]
    assert stats.other_rules == {
        "lru_missed": lru_misses(ids, 90),
        "sieve_missed": sieve_misses(ids, 90),
    }
    assert stats.rows["remote"] < min(stats.other_rules.values())
    assert "by SIEVE" in str(stats)


def test_repeated_rows_are_requested_once(graph, folder_of):
    """Trees of a disjoint batch share nodes: a row is requested once, and copied to all of them."""
    options = {"disjoint": True, "batch_size": 40}
    ours = make_loader(folder_of("random", 2), 2, 0, 50, **options)
    reference = make_reference(graph, **options)
    attributes = (*jobs.ATTRIBUTES, "batch")
    assert jobs.same_batches(ours, reference, attributes) == len(ours)


@pytest.mark.parametrize("lookahead", [0, 2, 5])
@pytest.mark.parametrize("capacity", [20, 90])
def test_hits_equal_the_oracle(graph, folder_of, capacity, lookahead):
    """Of the nodes of real batches: as many as Belady's rule finds in plain Python."""
    ours = make_loader(folder_of("random", 2), 2, 0, capacity, lookahead, with_edge=False)
    own = set(ours.data.opened.node_ids(0, "node").tolist())
    oracle = WindowedBelady(capacity)
    hits = 0
    for _ in range(2):
        batches = [[v for v in b.n_id.tolist() if v not in own] for b in ours]
        numbers = []
        for i in range(len(batches)):
            for ids in batches[len(numbers) : i + 1 + lookahead]:
                numbers.append(oracle.announce(ids))
            taken = oracle.take(numbers[i])
            hits += sum(v in taken for v in batches[i])
    rows = ours.stats().rows
    assert rows["reused"] == hits > 0


@contextlib.contextmanager
def pipelines(root, tmp_path, capacity):
    """The client of other parts, and pipelines with and without a cache."""
    folder = PartitionFolder(root)
    parts = [Part(folder, p) for p in range(folder.meta.num_parts)]
    data = DistDataset().load(root, 0, also_serve=range(1, len(parts)))
    options = SamplingOptions()
    sampling = options.spec(jobs.FANOUTS, info_for(data, jobs.FANOUTS, options))
    spec = PipelineSpec(sampling, collect_spec(data.meta, sampling, True))
    with (
        serving({p: RequestHandler(parts[p]) for p in range(1, len(parts))}, tmp_path) as endpoints,
        contextlib.closing(PartitionClient(endpoints)) as client,
    ):
        nbytes = capacity * (ROW_BYTES + PLAN_BYTES)
        made = [Pipeline(parts[0], spec, client, cache_bytes=size) for size in (nbytes, 0)]
        assert [pipeline.is_ordered for pipeline in made] == [True, False]
        yield client, *made


def into_memory(memory):
    """A function that allocates a batch's arrays, and keeps them."""

    def allocate(record):
        memory.append(np.empty(record.nbytes, np.uint8))
        return record.write(memory[0].data)

    return allocate


def arrays_of(record, memory):
    received = record.layout.read(memory[0])
    return dict(zip(received.layout.index, received.arrays, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_batches_that_are_given_up_leave_no_rows_behind(folder_of, tmp_path, seed):
    """Batches are withdrawn at any stage, and written in any order that they allow.

    Several are half written at the same time. The ones that are completed have their own rows.
    """
    rng = random.Random(seed)
    seeds = [np.random.default_rng(i).integers(0, 500, (1, 2)) for i in range(80)]
    capacity = rng.choice([5, 60, 400])
    with pipelines(folder_of("random", 3), tmp_path, capacity) as (client, cached, plain):

        def check(record, memory, number):
            expected = []
            steps = plain.make(seeds[number], 7, number, into_memory(expected))
            found, wanted = arrays_of(record, memory), arrays_of(run(steps, client), expected)
            assert found.keys() == wanted.keys()
            for name in wanted:
                assert np.array_equal(found[name], wanted[name]), name

        def begin(batch):
            """Writes a batch until it waits for a reply."""
            memory = []
            steps = cached.write(batch, into_memory(memory))
            try:
                writing.append((batch, steps, memory, next(steps)))
            except StopIteration as end:
                check(end.value, memory, batch.batch)

        drawn, requested, writing = [], [], []
        for number, columns in enumerate(seeds):
            batch = run(cached.draw(columns, 7, number), client)
            cached.announce(batch)
            drawn.append(batch)
            while len(drawn) > rng.randint(0, 6):
                batch = drawn.pop(0)
                if rng.random() < 0.2:
                    cached.withdraw(batch)
                else:
                    cached.request(batch)
                    requested.append(batch)
            while len(requested) > rng.randint(0, 4):
                if rng.random() < 0.15:
                    cached.withdraw(requested.pop(rng.randrange(len(requested))))
                ready = [batch for batch in requested if cached.may_write(batch)]
                if ready and rng.random() < 0.7:
                    batch = ready[-1]  # the one that overtakes most others
                    requested.remove(batch)
                    begin(batch)
                elif writing and (not ready or len(writing) > rng.randint(0, 5)):
                    batch, steps, memory, tickets = writing.pop(rng.randrange(len(writing)))
                    if rng.random() < 0.2:
                        steps.close()
                        cached.withdraw(batch)
                    else:
                        client.wait(tickets)
                        check(run(steps, client), memory, batch.batch)


def test_samplers_that_die(graph, folder_of):
    """Batches that were drawn ahead go to the other samplers."""
    options = {"batch_size": 2}
    ours = make_loader(folder_of("random", 2), 2, 2, 60, **options)
    compared = 0
    for number, (a, b) in enumerate(zip(ours, make_reference(graph, **options), strict=True)):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.e_id, b.e_id)
        compared += 1
        if number in (2, 9):
            os.kill(ours.workers[number % 2].pid, signal.SIGKILL)
    assert compared == len(ours)
    assert ours.stats().restarts > 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_default_is_a_share_of_the_memory(folder_of, monkeypatch, num_workers):
    """A sixteenth, divided by trainers and samplers, and no more than the rows of other parts."""
    memory = 16 * 3 * 100 * (ROW_BYTES + PLAN_BYTES)
    options = {"batch_size": 16, "with_edge": False}
    workers = MpDistSamplingWorkerOptions(num_workers=num_workers)
    dataset = DistDataset().load(folder_of("random", 2), 0, also_serve=[1])
    elsewhere = 500 - dataset.meta.node_types[0].bounds[1]
    for trainers, rows in (("3", 100), ("1", elsewhere if num_workers == 0 else 2 * 150)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", trainers)
        monkeypatch.setattr(backends, "available_memory", lambda: memory)
        loader = DistNeighborLoader(
            dataset, [4, 4], torch.arange(64), worker_options=workers, **options
        )
        assert len(list(loader)) == 4
        assert loader.stats().cache_bytes == rows * (ROW_BYTES + PLAN_BYTES)
        loader.shutdown()
    monkeypatch.setattr(backends, "available_memory", lambda: None)
    assert backends.RowCaching.of(None, None).share(2) == 128 << 20
    assert backends.RowCaching.of(None, None).share(1, served=True) == 256 << 20
    assert backends.RowCaching.of("1GB", None).share(2, served=True) == 512 << 20


def test_bytes_are_divided_among_tables():
    """In proportion to their bytes, but no more than all rows. Narrow rows are not cached."""
    sizes = {
        "wide": TableSize(1000 - PLAN_BYTES, 1000),
        "narrow": TableSize(16, 10**9),
        "none": TableSize(400, 0),
        "large": TableSize(1000 - PLAN_BYTES, 3000),
    }
    assert capacities(2_000_000, sizes) == {"wide": 500, "large": 1500}
    assert capacities(10**12, sizes) == {"wide": 1000, "large": 3000}
    assert capacities(0, sizes) == capacities(3, sizes) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": 65}, "lookahead must be 0 to 64 batches \\(got 65\\)"),
        ({"lookahead": -1}, "lookahead must be 0"),
        ({"cache_memory": "much"}, "'much' is not a number of bytes"),
        ({"cache_memory": -1}, "must not be negative"),
    ],
)
def test_bad_options(folder_of, options, message):
    dataset = DistDataset().load(folder_of("random", 1), 0)
    with pytest.raises(ValueError, match=message):
        DistNeighborLoader(dataset, [2], torch.arange(3), **options)
