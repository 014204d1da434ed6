"""The model of a batch's time on a GPU: what it counts, and how it adds up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from khop_bench.device_model import (
    H100,
    Batch,
    Counts,
    Hop,
    Work,
    count,
    gather,
    model_row,
    predict,
)

PLAIN = replace(
    H100,
    bandwidth=1e9,
    sectors=1e9,
    words=1e9,
    atomics=1e9,
    memory_latency=1e-6,
    cache_latency=1e-7,
    gap=1e-6,
    graph_gap=5e-7,
    host_launch=1e-7,
    wait=0.0,
)
"""A nanosecond for everything that is moved, a microsecond for a launch."""


def test_counts_of_a_batch():
    """Two hops over one edge type: seeds 0 and 9, then nodes 1 and 30.

    Row pointers of 4 bytes lie eight in a sector: rows 0 and 1 in the first, 9 and 10 in the
    second. Row 30 ends where 31 begins, both in the fourth. Edges 0, 7 and 8 are in two sectors,
    100 and 101 in one.
    """
    batch = Batch(
        [np.array([0, 9, 1, 30, 7])],
        [[2, 2, 1]],
        [np.array([0, 7, 8, 100, 101])],
        [[3, 2]],
        [(0, 0)],
        [4],
        [4],
        [[2, 3]],
    )
    found = count(batch)
    assert found.seeds == 2
    assert list(found.hops) == [Hop(2, 3, 2, 2, 2), Hop(2, 2, 1, 2, 1)]
    assert (found.nodes, found.edges) == (5, 5)
    # At most 2 + 4 + 12 positions, so 36 slots or more: the smallest table has 1,024 of 8 bytes.
    assert found.table_bytes == 8 << 10


def test_counts_of_several_types():
    """Rows are counted for each edge type that draws from them; pointers may be wide."""
    batch = Batch(
        [np.array([3, 4]), np.array([5])],
        [[2, 0], [0, 1]],
        [np.array([1, 2, 9]), np.array([], np.int64)],
        [[3], [0]],
        [(1, 0), (0, 1)],
        [8, 8],
        [8, 8],
        [[2], [2]],
    )
    (hop,) = count(batch).hops
    assert hop == Hop(2, 3, 1, 2, 2)  # pointers 3, 4, 5 and edges 1, 2, 9: four in a sector


def test_a_step_takes_its_launches_and_the_longer_of_two():
    """What is moved, or the loads that wait for one another."""
    moves = Work("x", 2, streamed=3000, sectors=1000, words=500, atomics=500, chain=(1, 0))
    assert moves.seconds(PLAIN) == pytest.approx(2e-6 + 5e-6)
    assert moves.seconds(PLAIN, in_graph=True) == pytest.approx(1e-6 + 5e-6)
    waits = replace(moves, chain=(6, 5))
    assert waits.seconds(PLAIN) == pytest.approx(2e-6 + 6.5e-6)


HOPS = [Hop(1024, 15_000, 12_000, 1500, 9000), Hop(12_000, 120_000, 90_000, 15_000, 90_000)]


def test_a_batch():
    """Launches do not depend on how many edge types there are: four per hop."""
    counts = Counts(1024, HOPS, 16 << 20)
    found = predict(counts)
    assert found.launches == 1 + 4 + 4 + 1
    assert [work.step for work in found.drawn][:3] == [
        "seeds",
        "hop 1, pick",
        "hop 1, append",
    ]
    on_device = sum(work.seconds(H100) for work in [*found.drawn, *found.written])
    assert found.seconds == pytest.approx(on_device + H100.wait + 2 * H100.host_launch)
    recorded = predict(counts, as_graph=True)
    saved = (found.launches - 1) * (H100.gap - H100.graph_gap)
    assert recorded.seconds == pytest.approx(found.seconds - saved)


def test_the_slower_of_host_and_device_counts():
    slow = replace(H100, host_launch=1e-3)
    found = predict(Counts(1024, HOPS, 16 << 20), slow)
    assert found.seconds == pytest.approx(slow.wait + (found.launches + 2) * 1e-3)


def test_tables_beyond_the_cache_cost_sectors():
    small, large = (predict(Counts(1024, HOPS, size)) for size in (1 << 20, 1 << 30))
    assert sum(w.sectors for w in large.drawn) > sum(w.sectors for w in small.drawn)
    assert large.seconds > small.seconds


def test_gathers():
    """A row of 400 bytes touches 13 sectors, wherever it begins; the host's come over the bus."""
    plain = replace(PLAIN, from_host=1e8)
    assert gather(1000, 400, False, plain) == pytest.approx(1e-6 + 1000 * (416 + 408) * 1e-9)
    assert gather(1000, 400, True, plain) == pytest.approx(1e-6 + 1000 * 416 * 1e-8)
    assert gather(1000, 64, False, plain) == pytest.approx(1e-6 + 1000 * (64 + 72) * 1e-9)


def test_a_row_of_a_report():
    row = model_row("sampling", "khop", 2e-4)
    assert (row.name, row.values, row.unit) == ("khop: model of an H100 SXM", [0.2], "ms")
    assert math.isnan(row.ratio)
