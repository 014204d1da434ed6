"""Synthetic heterogeneous graphs: exact sizes, reverses, degrees, one graph on every machine."""

import hashlib

import numpy as np
import pytest

from khop.datasets import PowerLawHetero

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")
NODES = {"author": 500, "paper": 2000}


def _graph(**options):
    return PowerLawHetero(NODES, {WRITES: 40_000, CITES: 7}, **options)


def test_numbers_and_ranges_are_exact():
    graph = _graph()
    edges = dict(graph.iter_edge_types())
    assert list(edges) == graph.edge_types
    assert [pair.shape[1] for pair in edges.values()] == [40_000, 40_000, 7, 7]
    for (source, _, destination), pair in edges.items():
        assert pair.dtype == np.int64
        assert pair.min() >= 0
        assert pair[0].max() < NODES[source]
        assert pair[1].max() < NODES[destination]


def test_reverses_follow_what_they_reverse():
    edges = dict(_graph().iter_edge_types())
    np.testing.assert_array_equal(edges["paper", "rev_writes", "author"], edges[WRITES][::-1])
    assert _graph(mirrored=(CITES,)).edge_types == [WRITES, CITES, ("paper", "rev_cites", "paper")]
    assert _graph(mirrored=()).edge_types == [WRITES, CITES]


def test_degrees_have_tails_of_their_own():
    """Both ends are skewed; an author who writes much is not more likely to cite anything."""
    graph = PowerLawHetero({"a": 2000}, {("a", "x", "a"): 100_000, ("a", "y", "a"): 100_000})
    edges = dict(graph.iter_edge_types())
    degrees = [
        np.bincount(edges["a", name, "a"][end], minlength=2000)
        for name in ("x", "y")
        for end in (0, 1)
    ]
    for degree in degrees:
        assert np.median(degree) < 0.6 * degree.mean()
        assert degree.max() == pytest.approx(np.sqrt(500_000), rel=0.2)
    correlation = np.corrcoef(degrees) - np.eye(4)
    assert np.abs(correlation).max() < 0.15


def test_the_graph_is_the_same_on_every_machine():
    digest = hashlib.sha256()
    for _, pair in _graph(seed=5).iter_edge_types():
        digest.update(pair.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "40a556c4fbcf874f"
    assert (_graph().data()[WRITES].edge_index != _graph(seed=1).data()[WRITES].edge_index).any()


def test_written_files_hold_the_graph(tmp_path):
    graph = _graph()
    graph.write(tmp_path / "g")
    data = graph.data()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g"]
    for edge_type in graph.edge_types:
        stored = np.load(tmp_path / "g" / graph.file_name(edge_type))
        assert stored.dtype == np.int32
        np.testing.assert_array_equal(stored, data[edge_type].edge_index.numpy())
    assert {t: data[t].num_nodes for t in data.node_types} == NODES
    with pytest.raises(FileExistsError, match="is not empty"):
        graph.write(tmp_path / "g")


def test_academic_has_its_published_sizes():
    graph = PowerLawHetero.academic()
    assert len(graph.edge_types) == 6
    assert sum(graph.num_nodes.values()) == 5_070_000
    assert 2 * sum(graph.num_edges.values()) == 124_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": {"author": 1, "paper": 2}}, r"num_nodes\['author'\] must be in 2"),
        ({"num_edges": {WRITES: -1}}, "must be 0 or more"),
        ({"num_edges": {("author", "at", "place"): 1}}, "must be between"),
        ({"mirrored": (("paper", "x", "paper"),)}, "mirrored must be of num_edges"),
        ({"num_edges": {CITES: 1, ("paper", "rev_cites", "paper"): 1}}, "mirrored must be without"),
        ({"exponent": 2.0}, "exponent must be above 2"),
        ({"seed": -1}, "seed must be in"),
    ],
)
def test_bad_arguments(arguments, message):
    given = {"num_nodes": NODES, "num_edges": {WRITES: 1, CITES: 1}, **arguments}
    with pytest.raises(ValueError, match=message):
        PowerLawHetero(**given)
