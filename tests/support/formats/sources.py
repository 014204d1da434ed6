"""Comparison of graphs that readers of formats return."""

import numpy as np


def edges_of(source):
    """Return sources and destinations of a homogeneous graph, as lists."""
    (edge,) = source.edges.values()
    return np.stack(edge.piece(0, edge.num_edges)).tolist()


def assert_same(found, wanted):
    """Check that two graphs have equal types, counts, ordered edges and attributes, bit for bit."""
    assert found.heterogeneous == wanted.heterogeneous
    assert {t: n.count for t, n in found.nodes.items()} == {
        t: n.count for t, n in wanted.nodes.items()
    }
    assert set(found.edges) == set(wanted.edges)
    for edge_type, edge in wanted.edges.items():
        own = found.edges[edge_type]
        assert own.num_edges == edge.num_edges
        ends = [np.concatenate(e) for e in zip(*_pieces(own), strict=True)]
        for mine, theirs in zip(ends, edge.piece(0, edge.num_edges), strict=True):
            assert mine.tolist() == theirs.tolist()
        _assert_same_attrs(own.attrs, edge.attrs, own.num_edges)
    for node_type, node in wanted.nodes.items():
        _assert_same_attrs(found.nodes[node_type].attrs, node.attrs, node.count)


def _pieces(edge):
    """Return pieces of seven edges, and the last piece of one edge."""
    yield edge.piece(0, 0)
    for first in range(0, edge.num_edges, 7):
        yield edge.piece(first, min(7, edge.num_edges - first))


def _assert_same_attrs(found, wanted, count):
    assert set(found) == set(wanted)
    rows = np.random.default_rng(0).permutation(count)
    for name, feature in wanted.items():
        assert found[name].dtype == feature.dtype, name
        assert found[name].row_shape == feature.row_shape, name
        assert found[name].gather(rows).tobytes() == feature.gather(rows).tobytes(), name
