"""All options together on random heterogeneous graphs: bit for bit the oracle's batches."""

import pytest
from hypothesis import given, strategies as st

from support.kernels import cases, runs


@st.composite
def graph_and_batches(draw):
    """A graph, a subgraph to draw into, and one to three batches."""
    graph, disjoint = draw(cases.graphs()), draw(st.booleans())
    with_edges = draw(st.integers(0, 4)) > 0
    batches = cases.batches(graph, disjoint, with_edges)
    batches = draw(st.lists(batches, min_size=1, max_size=3))
    return graph, graph.subgraph(disjoint, with_edges), batches


@pytest.mark.parametrize("draw_batch", [runs.at_once, runs.by_hops])
@cases.examples(250)
@given(case=graph_and_batches())
def test_equals_the_oracle(draw_batch, case):
    """Nodes, trees, edges, endpoints and counts of batches that are drawn into the same object."""
    graph, subgraph, batches = case
    csrs = graph.csrs()
    for seeds, options in batches:
        draw_batch(subgraph, csrs, seeds, options)
        assert runs.read(subgraph, graph, options) == graph.sample(seeds, options)


@cases.examples(250)
@given(graph_and_batches(), st.data())
def test_owners_replies_merge_to_the_same(case, data):
    """Any cut into 1 to 5 parts, also empty ones, with the rows at their owners alone."""
    graph, subgraph, batches = case
    num_cuts = data.draw(st.integers(0, 4))
    cut = st.lists(st.integers(0, 8), min_size=num_cuts, max_size=num_cuts)
    owners = runs.Owners(graph, [data.draw(cut) for _ in graph.counts])
    for seeds, options in batches:
        owners.draw(subgraph, seeds, options)
        assert runs.read(subgraph, graph, options) == graph.sample(seeds, options)
