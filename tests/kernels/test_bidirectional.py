"""Edges with their reverses: as PyG's `to_bidirectional` makes them."""

import numpy as np
import torch
from hypothesis import given, strategies as st
from torch_geometric.sampler.utils import to_bidirectional

from support.kernels import cases, runs


def endpoints(edges):
    pairs = torch.tensor([(row, col) for row, col, _ in edges], dtype=torch.long).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@cases.examples(150)
@given(cases.graphs(), st.booleans(), st.data())
def test_equals_pyg(graph, disjoint, data):
    """Sorted by destination and source, each pair once; all computed from the drawn edges."""
    seeds, options = data.draw(cases.batches(graph, disjoint))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    options.induced, options.reversals, options.with_edges = False, (), True
    subgraph, csrs = graph.subgraph(disjoint), graph.csrs()
    runs.at_once(subgraph, csrs, seeds, options)
    drawn = runs.read(subgraph, graph, options)
    options.reversals, options.keep_edges = cases.reversals(rng, graph), False
    runs.at_once(subgraph, csrs, seeds, options)
    got = runs.read(subgraph, graph, options)

    changed = set()
    for relation, reverse, mirror in options.reversals:
        want = to_bidirectional(
            *endpoints(drawn.edges[relation]), *endpoints(drawn.edges[reverse])
        )[:2]
        assert all(map(torch.equal, endpoints(got.edges[relation]), want))
        changed.add(relation)
        if mirror:
            assert all(map(torch.equal, endpoints(got.edges[reverse]), want[::-1]))
            changed.add(reverse)
    for r, (edges, before) in enumerate(zip(got.edges, drawn.edges, strict=True)):
        if r not in changed:
            assert edges == before
    assert (got.nodes, got.trees) == (drawn.nodes, drawn.trees)


@cases.examples(150)
@given(cases.graphs(), st.booleans(), st.data())
def test_numbers_that_are_kept(graph, disjoint, data):
    """Each edge keeps the number of a drawn one that joins its ends, one way or the other."""
    seeds, options = data.draw(cases.batches(graph, disjoint))
    loops = [r for r, (source, destination) in enumerate(graph.pairs()) if source == destination]
    options.induced, options.reversals, options.with_edges = False, (), True
    subgraph, csrs = graph.subgraph(disjoint), graph.csrs()
    runs.at_once(subgraph, csrs, seeds, options)
    drawn = runs.read(subgraph, graph, options)
    subgraph.add_reverses([(r, r, False) for r in loops], True)
    got = runs.read(subgraph, graph, options)
    for r in loops:
        there, back = {}, {}
        for row, col, edge in drawn.edges[r]:
            there.setdefault((row, col), []).append(edge)
            back.setdefault((col, row), []).append(edge)
        assert {(row, col) for row, col, _ in got.edges[r]} == there.keys() | back.keys()
        for row, col, edge in got.edges[r]:
            # A drawn edge comes before a reverse, and of parallel edges the first drawn.
            assert edge == (there.get((row, col)) or back[row, col])[0]
