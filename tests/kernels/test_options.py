"""All options together on random heterogeneous graphs: bit for bit the oracle's batches."""

from hypothesis import given, strategies as st

from support.kernels import cases, runs


@st.composite
def graph_and_batches(draw):
    """A graph, what subgraphs of it are made of, one to three batches, and parts of the graph."""
    graph, disjoint = draw(cases.graphs()), draw(st.booleans())
    with_edges = draw(st.integers(0, 4)) > 0
    batches = cases.batches(graph, disjoint, with_edges)
    batches = draw(st.lists(batches, min_size=1, max_size=3))
    num_cuts = draw(st.integers(0, 4))
    cut = st.lists(st.integers(0, 8), min_size=num_cuts, max_size=num_cuts)
    owners = runs.Owners(graph, [draw(cut) for _ in graph.counts])
    return graph, (disjoint, with_edges), batches, owners


@cases.examples(250)
@given(case=graph_and_batches())
def test_equals_the_oracle(case):
    """Nodes, trees, edges, endpoints and counts of batches that are drawn into the same object.

    All hops in a call, hop by hop, and merged from replies of the owners of 1 to 5 parts, also
    empty ones, with the rows at their owners alone.
    """
    graph, made_of, batches, owners = case
    csrs = graph.csrs()
    ways = {
        "at once": lambda subgraph, *batch: runs.at_once(subgraph, csrs, *batch),
        "by hops": lambda subgraph, *batch: runs.by_hops(subgraph, csrs, *batch),
        "owners": owners.draw,
    }
    subgraphs = {way: graph.subgraph(*made_of) for way in ways}
    for seeds, options in batches:
        expected = graph.sample(seeds, options)
        for way, draw_batch in ways.items():
            draw_batch(subgraphs[way], seeds, options)
            assert runs.read(subgraphs[way], graph, options) == expected, way
