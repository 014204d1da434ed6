"""Many rows that share one range of edges: thousands of draws from one row per call."""

import numpy as np

from khop import _native
from support.kernels import hop_calls


def shared_rows(trials, degree, weights=None, times=None, first=0):
    """Return a graph, and ids of `trials` rows with the same neighbours 0 to degree - 1.

    Every other row pointer is 0. The rows between, whose pointers descend, are never drawn.
    `row_ids` gives the other rows the original ids first, first + 1, ...
    """
    indptr = np.zeros(2 * trials, np.int64)
    indptr[1::2] = degree
    tables = {}
    if weights is not None:
        sums, guide = _native.weight_table(np.array([0, degree]), np.asarray(weights, np.float64))
        tables = {"weight_sums": sums, "weight_guide": guide}
    if times is not None:
        tables["times"] = np.asarray(times, np.int64)
    graph = _native.Csr(
        indptr,
        np.arange(degree, dtype=np.int32),
        first + np.arange(2 * trials - 1) // 2,
        **tables,
    )
    return graph, np.arange(0, 2 * trials, 2)


def draw(graph, ids, count, replace, key, excluded=(), **options):
    """Draw [rows, picks] neighbours. `excluded` are neighbours that no row draws.

    Options are those of `sample_rows`: weighted, last, trees, times (of all rows, if a number).
    """
    if isinstance(options.get("times"), int):
        options["times"] = np.full(len(ids), options["times"])
    if len(excluded):
        hidden = np.tile(np.asarray(excluded, np.int64), len(ids))
        options["excluded"] = np.repeat(ids, len(excluded)), hidden
    counts, drawn, _ = hop_calls.sample_rows(graph, ids, count, replace, key, False, **options)
    assert len(set(counts.tolist())) == 1
    return drawn.reshape(len(ids), -1)
