"""Calls of the kernels that draw a hop, with options as separate arguments."""

from khop import _native


def options(fanout, replace=False, key=0, with_edge=True, weighted=False, last=False, **method):
    """Return the kernels' options of a hop. `method` has the method's name and options."""
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
    """Call `_native.sample_rows` with these options."""
    drawn = options(fanout, replace, key, with_edge, weighted, last, **method)
    return _native.sample_rows(graph, ids, drawn, trees, times, excluded)


def hop(subgraph, relation, graph, fanout, replace, key, weighted=False, last=False, **method):
    """Call `Subgraph.hop` with these options."""
    subgraph.hop(relation, graph, options(fanout, replace, key, True, weighted, last, **method))


def table(fanouts, replace, weighted, last, **method):
    """Return the options of each hop over each edge type, as `Subgraph.sample` takes them."""
    return [
        [options(k, replace, 0, True, any(weighted[r : r + 1]), last, **method) for k in hops]
        for r, hops in enumerate(fanouts)
    ]


def sample(subgraph, graphs, fanouts, replace, weighted, last, *batch, method=None, **cuda_graph):
    """Call `Subgraph.sample`, also of a device. `batch` is a run key and the batch's index."""
    hops = table(fanouts, replace, weighted, last, **(method or {}))
    subgraph.sample(graphs, hops, *batch, **cuda_graph)
