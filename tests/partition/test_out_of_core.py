"""Partitioning in bounded memory: the same folder, bit for bit, as partitioning in memory.

Graphs are tiny and so is `memory`, so that there are many pieces and blocks. That the folder in
memory is right is tested elsewhere, against brute force.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import khop
from khop.partition import GraphSource, verify_folder
from khop.partition.out_of_core.resources import block_bounds
from khop.partition.source import EdgeSource, NodeSource
from khop.partition.writing import rows
from support.cut_graphs import CASES, files_of, graph

EDGE = ("node", "to", "node")


@pytest.fixture(autouse=True)
def no_disk(monkeypatch):
    """What is tested here does not depend on when the disk has it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize(("case", "num_parts"), [*((c, 3) for c in CASES), ("heterogeneous", 8)])
def test_the_folder_does_not_depend_on_memory_and_jobs(tmp_path, case, num_parts):
    make, options = CASES[case]
    source = make()
    khop.partition_graph(source, tmp_path / "whole", num_parts, **options)
    wanted = files_of(tmp_path / "whole")
    assert verify_folder(tmp_path / "whole") == []
    for memory, jobs in ((None, 3), ("30KB", 2)):
        root = tmp_path / "pieces"
        khop.partition_graph(
            source, root, num_parts, memory=memory, jobs=jobs, overwrite=True, **options
        )
        assert files_of(root) == wanted, (memory, jobs)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pieces", "whole"]


def test_small_memory_makes_many_pieces_and_blocks(tmp_path, monkeypatch):
    """What the other tests here rely on."""
    told, bounds = [], []
    cut = rows.block_bounds
    monkeypatch.setattr(rows, "block_bounds", lambda *args: bounds.append(cut(*args)) or bounds[0])
    khop.partition_graph(
        graph(200, 2000),
        tmp_path / "f",
        2,
        memory="20KB",
        jobs=1,
        progress=lambda what, done, total: told.append((what, total)),
    )
    assert dict(told)[f"splitting edges of type {EDGE}"] >= 3
    assert len(bounds[0]) > 6


def test_blocks_end_with_parts_and_before_too_many_edges():
    """Rows of 2, 0, 3, 9, 1, 1 edges; parts have 2, 0 and 4 of them; blocks at most 4 edges."""
    indptr = np.cumsum([0, 2, 0, 3, 9, 1, 1]).astype(np.int32)
    assert block_bounds(indptr, [0, 2, 2, 6], 4).tolist() == [0, 2, 3, 4, 6]
    assert block_bounds(indptr, [0, 2, 2, 6], 2**40).tolist() == [0, 2, 6]
    assert block_bounds(np.zeros(1, np.int32), [0, 0], 4).tolist() == [0, 0]


class Elsewhere(EdgeSource):
    """Edges that are made piece by piece: edge e joins 7 e and 3 e + 1 (mod 50)."""

    num_edges = 400

    def __init__(self):
        self.attrs, self.left_out, self.most = {}, {}, 0

    def piece(self, first, count):
        self.most = max(self.most, count)
        edges = np.arange(first, first + count)
        return 7 * edges % 50, (3 * edges + 1) % 50

    def content(self):
        return (np.array([7, 3, 1]),)

    def check(self, what):
        pass


def test_edges_from_elsewhere(tmp_path):
    """A source of edges that has no arrays, and is never asked for all of them."""
    source = GraphSource({"node": NodeSource(50)}, {EDGE: Elsewhere()})
    khop.partition_graph(source, tmp_path / "pieces", 3, memory="12KB", jobs=2)
    assert source.edges[EDGE].most < 200
    whole = GraphSource.from_arrays(50, np.stack(Elsewhere().piece(0, 400)))
    khop.partition_graph(whole, tmp_path / "whole", 3)
    assert files_of(tmp_path / "pieces") == files_of(tmp_path / "whole")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(0, 200), st.integers(1, 5))
def test_any_graph(tmp_path_factory, seed, num_nodes, num_edges, num_parts):
    tmp_path = tmp_path_factory.mktemp("any")
    source = graph(num_nodes, num_edges, seed)
    options = {"time_attr": "time", "weight_attr": "weight", "neighbor_ids": True}
    num_parts = min(num_parts, num_nodes)
    longest = int(np.bincount(source.edges[EDGE].dst, minlength=1).max(initial=0))
    memory = 4000 + 40 * num_nodes + 200 * longest
    khop.partition_graph(source, tmp_path / "a", num_parts, **options)
    khop.partition_graph(source, tmp_path / "b", num_parts, memory=memory, jobs=1, **options)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
