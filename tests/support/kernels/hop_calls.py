"""The kernels' ways to draw a hop, with options one by one."""

from khop import _native


def options(fanout, replace=False, key=0, with_edge=True, weighted=False, last=False, **method):
    """How a hop is drawn; `method` and its options by name."""
    return _native.HopOptions(fanout, replace, with_edge, key, weighted, last, **method)


def sample_rows(
    graph,
    ids,
    fanout,
    replace,
    key,
    with_edge,
    weighted=False,
    last=False,
    trees=None,
    times=None,
    excluded=None,
    **method,
):
    """`_native.sample_rows`."""
    drawn = options(fanout, replace, key, with_edge, weighted, last, **method)
    return _native.sample_rows(graph, ids, drawn, trees, times, excluded)


def hop(subgraph, relation, graph, fanout, replace, key, weighted=False, last=False, **method):
    """`Subgraph.hop`."""
    subgraph.hop(relation, graph, options(fanout, replace, key, True, weighted, last, **method))


def table(fanouts, replace, weighted, last, **method):
    """Options of each hop over each edge type, as `Subgraph.sample` takes them."""
    return [
        [options(k, replace, 0, True, any(weighted[r : r + 1]), last, **method) for k in hops]
        for r, hops in enumerate(fanouts)
    ]


def sample(subgraph, graphs, fanouts, replace, weighted, last, *batch, method=None, **cuda_graph):
    """`Subgraph.sample`, of a device's subgraph, too; `batch` is a run key and a number."""
    hops = table(fanouts, replace, weighted, last, **(method or {}))
    subgraph.sample(graphs, hops, *batch, **cuda_graph)
