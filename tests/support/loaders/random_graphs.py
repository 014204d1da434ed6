"""Random graphs for walks: isolated nodes, empty types, parallel edges, ties and zero weights."""

import torch
from torch_geometric.data import Data, HeteroData

SIZES = {"a": 30, "b": 20, "c": 6}
COUNTS = {
    ("a", "to", "b"): 150,
    ("b", "rev_to", "a"): 120,
    ("a", "self", "a"): 90,
    ("c", "to", "a"): 25,
    ("b", "never", "c"): 0,
}


class _Values:
    """Random times and weights with few distinct values."""

    def __init__(self, seed, floats):
        self.generator = torch.Generator().manual_seed(seed)
        self._floats = floats

    def integers(self, bound, count):
        return torch.randint(bound, (count,), generator=self.generator)

    def times(self, count):
        times = self.integers(7, count) - 1
        return times.double() / 4 if self._floats else times

    def weights(self, count):
        return self.integers(4, count) / 2

    def ends(self, sizes, count):
        count = count if min(sizes) > 0 else 0
        return torch.stack([self.integers(max(size, 1), count) for size in sizes])


def homogeneous(size=40, count=240, times=None, floats=False, weights=False, seed=0):
    """Return a random `Data`, the last tenth of whose nodes has no edges.

    Args:
        size: number of nodes.
        count: number of edges.
        times: 'node' ('time') or 'edge' ('edge_time').
        floats: times are floating-point numbers.
        weights: edges have 'edge_weight'.
        seed: seed of the generator.
    """
    values = _Values(seed, floats)
    top = size - size // 10
    data = Data(edge_index=values.ends((top, top), count), num_nodes=size)
    count = data.edge_index.size(1)
    data.x = torch.arange(size).float().view(-1, 1)
    data.edge_attr = torch.arange(count).view(-1, 1)
    if times == "node":
        data.time = values.times(size)
    if times == "edge":
        data.edge_time = values.times(count)
    if weights:
        data.edge_weight = values.weights(count)
    return data


def heterogeneous(sizes=None, counts=None, times=None, floats=False, weights=False, seed=0):
    """Return a random `HeteroData`, whose type 'c' has no features.

    Args:
        sizes: {node type: number of nodes}.
        counts: {edge type: number of edges}.
        times: 'node' or 'edge' for all types, or the types that have times.
        floats: times are floating-point numbers.
        weights: True for all types, or the types that have weights.
        seed: seed of the generator.
    """
    values, data = _Values(seed, floats), HeteroData()
    sizes, counts = SIZES if sizes is None else sizes, COUNTS if counts is None else counts
    timed = {None: (), "node": tuple(sizes), "edge": tuple(counts)}.get(times, times)
    weighted = tuple(counts) if weights is True else weights or ()
    for name, size in sizes.items():
        if name == "c":
            data[name].num_nodes = size
        else:
            data[name].x = torch.arange(size).float().view(-1, 1)
        if name in timed:
            data[name].time = values.times(size)
    for edge_type, count in counts.items():
        store = data[edge_type]
        store.edge_index = values.ends([sizes[edge_type[i]] for i in (0, 2)], count)
        made = store.edge_index.size(1)
        store.edge_attr = torch.arange(made).view(-1, 1)
        if edge_type in timed:
            store.edge_time = values.times(made)
        if edge_type in weighted:
            store.edge_weight = values.weights(made)
    return data
