"""Random batches that a device must draw as the CPU does, bit for bit.

A configuration is a random graph of some node and edge types, with or without weights and times,
and a batch with any options that the graph allows: with replacement, disjoint, temporal, latest,
with edges left out, completed to an induced subgraph. The number of a configuration determines all
of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from khop import _native
from khop.sampler.methods import NEIGHBOR, MethodSpec
from khop.typing import Array, Int64Array
from khop_bench.on_device import Place

_FANOUTS = (-1, 0, 1, 2, 3, 5, 15)
_HUB = 300
_DEGREES = 12
_TIMES = 50
_ENOUGH = 50  # failures: after a fault of a GPU all further ones fail, too


@dataclass(frozen=True)
class Configuration:
    """A random graph and a batch of it, with options.

    Attributes:
        num_nodes: number of nodes per node type.
        relations: (source, destination) of each edge type.
        csrs: rows of each edge type.
        fanouts: fan-outs per edge type and hop.
        weighted: draws by weight, per edge type.
        seeds: (node type, ids, times or None), in order of calls.
        excluded: (edge type, rows, neighbours).
        replace, last, disjoint, with_edges, induced: options.
        keys: key of the run, and the batch's index.
        method: the method's name and options. LABOR draws without `replace` and `last`.
    """

    num_nodes: list[int]
    relations: list[tuple[int, int]]
    csrs: list[_native.Csr]
    fanouts: list[list[int]]
    weighted: list[bool]
    seeds: list[tuple[int, Int64Array, Int64Array | None]]
    excluded: list[tuple[int, Int64Array, Int64Array]]
    replace: bool
    last: bool
    disjoint: bool
    with_edges: bool
    induced: bool
    keys: tuple[int, int]
    method: MethodSpec = NEIGHBOR

    def draw(self, subgraph: Any, graphs: Sequence[Any], **options: Any) -> Any:
        """Draw the batch into a subgraph of the CPU or of a device, and return that.

        Args:
            subgraph: takes `arguments`.
            graphs: the rows of each edge type, where the subgraph reads them.
            options: further options of the call that samples.
        """
        subgraph.begin()
        for node_type, ids, times in self.seeds:
            subgraph.add_seeds(node_type, ids, times)
        for relation, rows, neighbors in self.excluded:
            subgraph.exclude(relation, rows, neighbors)
        more = {"last": self.last, **self.method.kernel_options()}
        hops = [
            [_native.HopOptions(k, self.replace, weighted=weighted, **more) for k in fanouts]
            for fanouts, weighted in zip(self.fanouts, self.weighted, strict=True)
        ]
        subgraph.sample(graphs, hops, *self.keys, **options)
        if self.induced:
            subgraph.induce(graphs)
        return subgraph

    def next(self) -> Configuration:
        """Return the next batch of the same run."""
        return replace(self, keys=(self.keys[0], self.keys[1] + 1))

    def arguments(self) -> tuple[Any, ...]:
        """Return the constructor's arguments of a subgraph, except the device."""
        return self.num_nodes, self.relations, self.with_edges, self.disjoint


@dataclass
class Comparison:
    """Result of drawing configurations on a device and on the CPU.

    Attributes:
        tried: number of drawn configurations.
        different: {number of a configuration that differs from the CPU's: 'differs', or the error}.
    """

    tried: int = 0
    different: dict[int, str] = field(default_factory=dict)


def compare(test_device: Place, configurations: int) -> Comparison:
    """Draw configurations on a device and on the CPU, until 50 have failed.

    Args:
        test_device: the device.
        configurations: number of configurations.
    """
    result = Comparison()
    for config_number in range(configurations):
        result.tried += 1
        try:
            if not is_equal(test_device, configuration(config_number), config_number):
                result.different[config_number] = "differs"
        except Exception as error:  # any error: the other configurations may explain it
            result.different[config_number] = f"{type(error).__name__}: {error}"
        if len(result.different) == _ENOUGH:
            break
    return result


def is_equal(test_device: Place, about: Configuration, config_number: int) -> bool:
    """Return True if a device draws two batches in a row as the CPU does.

    The number also selects how the device draws. Every second one reads the graph in place. Two of
    four play a CUDA graph. Four of eight begin with too little memory, and have to draw again.
    """
    mode = "ZERO_COPY" if config_number & 1 else "CUDA"
    room: dict[str, Any] = {"room": 16} if config_number & 4 else {}
    graphs = [_native.DeviceGraph(test_device.device, csr, mode) for csr in about.csrs]
    on_device = _native.DeviceSubgraph(test_device.device, *about.arguments(), **room)
    on_host = _native.Subgraph(*about.arguments())
    for batch in (about, about.next()):
        batch.draw(on_device, graphs, cuda_graph=bool(config_number & 2))
        batch.draw(on_host, about.csrs)
        pairs = zip(
            _contents_on_device(on_device, about, test_device),
            _contents_on_host(on_host, about),
            strict=True,
        )
        if not all(np.array_equal(a, b) for a, b in pairs):
            return False
    return True


def _contents_on_host(subgraph: Any, about: Configuration) -> Iterator[Array]:
    """Yield all arrays of a batch of the CPU."""
    for t in range(len(about.num_nodes)):
        nodes, trees = np.empty((2, subgraph.num_nodes(t)), np.int64)
        subgraph.write_nodes(t, nodes)
        subgraph.write_trees(t, trees)
        yield from (np.array(subgraph.nodes_per_hop(t)), nodes, trees)
    for r in range(len(about.relations)):
        ends = np.empty((2, subgraph.num_edges(r)), np.int64)
        subgraph.write_edge_index(r, ends[0], ends[1])
        yield from (np.array(subgraph.edges_per_hop(r)), ends)
        if about.with_edges:
            edges = np.empty(subgraph.num_edges(r), np.int64)
            subgraph.write_edges(r, edges)
            yield edges


def _contents_on_device(subgraph: Any, about: Configuration, test_device: Place) -> Iterator[Array]:
    """Yield all arrays of a batch of a device, in the same order."""
    num_nodes, num_edges, node_hops, edge_hops = subgraph.sizes()
    nodes, trees = ([test_device.empty(n) for n in num_nodes] for _ in range(2))
    ends, edges = ([test_device.empty((k, n)) for n in num_edges] for k in (2, 1))
    subgraph.write(
        [test_device.address(n) for n in nodes],
        [test_device.address(e) for e in ends],
        [test_device.address(e) for e in edges] if about.with_edges else [],
        [test_device.address(t) for t in trees],
        [],
    )
    test_device.device.synchronize()
    for hops, *arrays in zip(node_hops, nodes, trees, strict=True):
        yield from (np.array(hops), *(test_device.get(array) for array in arrays))
    for hops, end, edge in zip(edge_hops, ends, edges, strict=True):
        yield from (np.array(hops), test_device.get(end))
        if about.with_edges:
            yield test_device.get(edge)[0]


def configuration(config_number: int) -> Configuration:
    """Make the configuration of a number."""
    rng = np.random.default_rng(config_number)
    counts = rng.integers(1, 60, rng.integers(1, 4)).tolist()
    types = rng.integers(0, len(counts), (int(rng.integers(1, 5)), 2)).tolist()
    relations = [(source, destination) for source, destination in types]
    hops = int(rng.integers(0, 4))
    disjoint = _chance(rng, 0.4)
    rows = [_rows(rng, counts[s], counts[d]) for s, d in relations]
    tables = [_tables(rng, indptr) for indptr, _ in rows]
    csrs = [
        _native.Csr(indptr, indices, **table)
        for (indptr, indices), table in zip(rows, tables, strict=True)
    ]
    drawn = Configuration(
        num_nodes=counts,
        relations=relations,
        csrs=csrs,
        fanouts=rng.choice(_FANOUTS, (len(relations), hops)).tolist(),
        weighted=[csr.has_weights and _chance(rng, 0.7) for csr in csrs],
        seeds=list(_seeds(rng, counts, disjoint and _chance(rng, 0.6))),
        excluded=list(_excluded(rng, rows)) if _chance(rng, 0.3) else [],
        replace=_chance(rng, 0.4),
        last=_chance(rng, 0.3),
        disjoint=disjoint,
        with_edges=_chance(rng, 0.8),
        induced=_chance(rng, 0.15),
        keys=(int(rng.integers(0, 2**63)), int(rng.integers(0, 2**40))),
    )
    if not _chance(rng, 0.25):
        return drawn
    labor = MethodSpec("labor", _chance(rng, 0.5))
    return replace(drawn, replace=False, last=False, method=labor)


def _chance(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def _rows(rng: np.random.Generator, num_sources: int, num_rows: int) -> tuple[Array, Array]:
    """Draw row pointers and neighbours, 4 or 8 bytes each. Some rows are empty, one may be long."""
    degrees = rng.integers(0, _DEGREES, num_rows) * (rng.random(num_rows) < 0.8)
    degrees[rng.integers(0, num_rows)] += _HUB * _chance(rng, 0.5)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, num_sources, indptr[-1])
    widths = [np.int32 if _chance(rng, 0.5) else np.int64 for _ in range(2)]
    return indptr.astype(widths[0]), indices.astype(widths[1])


def _tables(rng: np.random.Generator, indptr: Array) -> dict[str, Any]:
    """Draw times and weights of a relation's edges, as `Csr` takes them."""
    tables: dict[str, Any] = {}
    count = int(indptr[-1])
    if _chance(rng, 0.5):
        times = rng.integers(0, _TIMES, count)
        tables["times"] = times[
            np.lexsort((times, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))))
        ]
    if _chance(rng, 0.5):
        weights = rng.lognormal(0, 2, count) * (rng.random(count) < 0.9)
        sums, guide = _native.weight_table(indptr, weights)
        tables |= {"weight_sums": sums, "weight_guide": guide}
    return tables


def _seeds(
    rng: np.random.Generator, counts: list[int], temporal: bool
) -> Iterator[tuple[int, Int64Array, Int64Array | None]]:
    for node_type in rng.integers(0, len(counts), rng.integers(1, 4)).tolist():
        ids = rng.integers(0, counts[node_type], rng.integers(0, 40))
        yield node_type, ids, rng.integers(0, _TIMES, len(ids)) if temporal else None


def _excluded(
    rng: np.random.Generator, rows: list[tuple[Array, Array]]
) -> Iterator[tuple[int, Int64Array, Int64Array]]:
    for relation, (indptr, indices) in enumerate(rows):
        owners = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        chosen = rng.random(len(indices)) < rng.choice([0.05, 0.5])
        yield relation, owners[chosen], indices[chosen].astype(np.int64)
