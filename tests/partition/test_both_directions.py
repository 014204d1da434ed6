"""The undirected graph of all types, in memory and in files, against plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from khop.partition import ClusterMetisPartitioner, GraphSource, StreamPartitioner, make_partitioner
from khop.partition.methods.metis import has_metis
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import DiskWorkspace
from khop.partition.writing.undirected import NodeNumbering, undirected

COUNTS = {"a": 50, "b": 30, "nothing": 0}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("khop.partition.writing.undirected._BLOCK_ENTRIES", 200)


def graph(seed=0):
    """Two node types with loops, parallel edges, edges in both directions and a hub."""
    rng = np.random.default_rng(seed)
    ends = {
        ("a", "to", "a"): (rng.integers(50, size=1600), rng.integers(50, size=1600) // 3),
        ("a", "to", "b"): (rng.integers(50, size=1200), rng.integers(30, size=1200)),
        ("b", "to", "a"): (rng.integers(30, size=90), np.zeros(90, np.int64)),
        ("b", "to", "nothing"): (np.empty(0, np.int64), np.empty(0, np.int64)),
    }
    return GraphSource.from_arrays(COUNTS, ends)


def rows_of(source, number=lambda node: node):
    """{(node, neighbour): number of edges} in both directions, without loops."""
    first = {"a": 0, "b": 50, "nothing": 80}
    found = Counter()
    for (src, _, dst), edge in source.edges.items():
        for u, v in zip(edge.src.tolist(), edge.dst.tolist(), strict=True):
            one, other = number(u + first[src]), number(v + first[dst])
            if one != other:
                found[one, other] += 1
                found[other, one] += 1
    return found


def entries(rows):
    keys = np.repeat(np.arange(len(rows.indptr) - 1) + rows.first_node, np.diff(rows.indptr))
    pairs = list(zip(keys.tolist(), rows.indices.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    return dict(zip(pairs, rows.weights.tolist(), strict=True))


def made(source, folder, jobs, **options):
    """The graph in memory, if there is no folder, or in files."""
    if folder is None:
        return undirected(source, Resources(None, jobs), **options)
    resources = Resources(100_000, jobs)
    space = DiskWorkspace(resources, folder / "stage", "run", folder / "out")
    return undirected(source, resources, space, **options)


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("on_disk", [False, True])
def test_both_directions_of_all_types(tmp_path, on_disk, jobs):
    source = graph()
    found = made(source, tmp_path if on_disk else None, jobs)
    expected = rows_of(source)
    assert found.num_blocks > 3
    assert entries(found.whole()) == expected
    blocks = {}
    for rows in found.blocks():
        blocks |= entries(rows)
    assert blocks == expected
    assert (found.num_nodes, found.num_entries) == (80, len(expected))
    assert found.num_edges == sum(expected.values()) // 2
    labels = np.random.default_rng(1).integers(3, size=80).astype(np.int32)
    between = sum(n for (u, v), n in expected.items() if u < v and labels[u] != labels[v])
    assert found.cut(labels) == between
    files = list((tmp_path / "stage").glob("*.stage"))
    assert len(files) == (2 if on_disk else 0)
    found.discard()
    assert list(tmp_path.rglob("*.stage")) == []


def test_the_graph_of_clusters():
    source, of_node = graph(), np.random.default_rng(2).integers(7, size=80).astype(np.int32)
    found = made(source, None, 2, clusters=NodeNumbering(of_node, 7))
    assert entries(found.whole()) == rows_of(source, lambda node: int(of_node[node]))


def test_visits_come_to_each_node_once():
    found = made(graph(), None, 2)
    orders = []
    for turn, kind in ((0, 0), (0, 0), (0, 1), (1, 0)):
        order = []
        for _, nodes in found.visits(5, turn, kind):
            assert sorted(nodes.tolist()) == list(range(nodes.min(), nodes.max() + 1))
            order += nodes.tolist()
        assert sorted(order) == list(range(80))
        orders.append(order)
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3


def test_without_edges_and_without_nodes():
    for count in (0, 3):
        found = undirected(GraphSource.from_arrays(count, np.empty((2, 0), np.int64)))
        assert (found.num_nodes, found.num_entries, found.num_edges) == (count, 0, 0)
        assert sum(len(nodes) for _, nodes in found.visits(0, 0, 0)) == count


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_edge_to_a_node_that_does_not_exist(tmp_path, on_disk):
    source = graph()
    source.edges["a", "to", "b"].dst[7] = 30
    with pytest.raises(IndexError, match=r"edge type \('a', 'to', 'b'\): edge 7"):
        made(source, tmp_path if on_disk else None, 2)


def test_a_row_that_memory_does_not_hold(tmp_path):
    resources = Resources(2000, 1)
    space = DiskWorkspace(resources, tmp_path / "stage", "run", tmp_path / "out")
    with pytest.raises(ValueError, match=r"sorted at once: .* raise the memory \(--memory\)"):
        undirected(graph(), resources, space)


def of_files(root):
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in root.rglob("*")
        if p.suffix in (".npy", ".json")
    }


@pytest.mark.parametrize(
    ("kind", "memory", "options"),
    [
        (StreamPartitioner, "110KB", {"passes": 3, "starts": 2, "balance": ["nodes", "edges"]}),
        pytest.param(
            ClusterMetisPartitioner,
            "215KB",
            {"clusters": 20, "cluster_ids": True},
            marks=(
                pytest.mark.skipif(not has_metis(), reason="pymetis is not installed"),
                pytest.mark.process,
            ),
        ),
    ],
)
def test_a_cut_does_not_depend_on_where_edges_are(tmp_path, kind, memory, options):
    """All of the folder is the same; with little memory edges go through files."""
    source = graph(3)
    in_memory = make_partitioner(source, tmp_path / "one", 3, method=kind, **options)
    assert in_memory.scratch_bytes() == 0
    in_memory.partition()
    for jobs in (1, 2):
        large = make_partitioner(
            source, tmp_path / f"{jobs}", 3, method=kind, **options, memory=memory, jobs=jobs
        )
        assert large.plan().edge_bytes >= large.scratch_bytes() > 0
        large.partition()
        assert of_files(tmp_path / f"{jobs}") == of_files(tmp_path / "one")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2", "one"]


@pytest.mark.skipif(not has_metis(), reason="pymetis is not installed")
def test_clusters_that_metis_has_no_memory_for(tmp_path):
    large = make_partitioner(
        graph(), tmp_path / "f", 3, method="cluster-metis", clusters=75, memory="110KB", jobs=1
    )
    with pytest.raises(ValueError, match=r"METIS takes some .* ask for fewer clusters"):
        large.partition()
    assert list(tmp_path.iterdir()) == []
