"""Small graphs that are partitioned in several ways, each of which must write the same folder."""

from __future__ import annotations

import numpy as np

from khop.partition import GraphSource


def files_of(root):
    """Return {path: bytes} of all files of a folder."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def graph(num_nodes=40, num_edges=300, seed=0):
    """Return a graph with parallel edges, loops, isolated nodes, and attributes of all uses."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(max(1, num_nodes // 2), size=(2, num_edges))
    return GraphSource.from_arrays(
        num_nodes,
        ends,
        {"x": rng.random((num_nodes, 3), np.float32), "train_mask": rng.random(num_nodes) < 0.3},
        {
            "weight": rng.random(num_edges),
            "time": rng.integers(9, size=num_edges),
            "edge_attr": rng.integers(99, size=(num_edges, 2)).astype(np.int16),
            "nothing": np.empty((num_edges, 0)),
        },
    )


def hetero(seed=0):
    """Return a graph with types that have nodes but no edges, many edges, or nothing at all."""
    rng = np.random.default_rng(seed)
    counts = {"a": 30, "b": 7, "none": 0, "lone": 5}
    edges = {
        ("a", "to", "b"): rng.integers([[30], [7]], size=(2, 200)),
        ("b", "to", "a"): rng.integers([[7], [30]], size=(2, 90)).astype(np.int32),
        ("a", "of", "a"): rng.integers(30, size=(2, 50)),
        ("a", "of", "none"): np.empty((2, 0), np.int64),
        ("lone", "of", "lone"): np.empty((2, 0), np.int32),
    }
    attrs = {"x": {"a": rng.random((30, 2)), "b": rng.random(7, np.float32)}}
    attrs["time"] = {"a": rng.integers(9, size=30), "lone": np.arange(5)}
    return GraphSource.from_arrays(
        counts, edges, attrs, {"w": {("a", "to", "b"): rng.random(200, np.float32)}}
    )


CASES = {
    "homogeneous": (graph, {}),
    "along edges": (graph, {"edge_dir": "out"}),
    "weights, ids": (graph, {"weight_attr": "weight", "neighbor_ids": True}),
    "times": (graph, {"time_attr": "time", "weight_attr": "weight"}),
    "heterogeneous": (hetero, {"weight_attr": "w"}),
    "heterogeneous, times": (hetero, {"time_attr": "time", "neighbor_ids": True}),
    "stream": (hetero, {"method": "stream", "balance": ["edges"]}),
    "frequency": (graph, {"method": "frequency", "num_neighbors": [2], "cache_ratio": 0.2}),
    "no edges": (lambda: graph(num_edges=0), {"time_attr": "time", "weight_attr": "weight"}),
}
