"""A model of the time of a batch on a GPU: bytes, sectors and launches, from stated assumptions.

A step takes the time of its launches plus the longer of two: the longest chain of dependent loads
in a thread, and the traffic of all threads. Traffic has four parts: sequential bytes at the
memory's bandwidth, sectors of 32 bytes anywhere in device memory, words anywhere in the L2 cache,
and atomic operations there. `docs/device-model.md` gives the sources of the figures. Numbers of
rows, edges and nodes are counted in drawn batches, on any device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from khop.typing import Int64Array
from khop_bench.measure import Row, Turn

SECTOR = 32
_ROOM = 1 << 22  # entries of all node types: room is made for a batch's bounds up to this


@dataclass(frozen=True)
class Gpu:
    """Rates and latencies that are assumed of a GPU.

    Attributes:
        name: name of the GPU.
        bandwidth: bytes per second of sequential reads and writes in device memory.
        cache: bytes of the L2 cache that random accesses can use.
        sectors: 32-byte sectors per second, anywhere in device memory.
        words: loads and stores per second, anywhere in the L2 cache.
        atomics: atomic operations per second, on different words, in the L2 cache.
        from_host: bytes per second that kernels read from the host's memory.
        memory_latency: seconds of a load from device memory.
        cache_latency: seconds of a load from the L2 cache.
        host_launch: seconds of a launch on the host.
        gap: seconds from the end of a kernel's work to the beginning of the next one's.
        graph_gap: the same within a CUDA graph.
        wait: seconds from the end of the last kernel until the host has the sizes.
    """

    name: str
    bandwidth: float
    cache: float
    sectors: float
    words: float
    atomics: float
    from_host: float
    memory_latency: float
    cache_latency: float
    host_launch: float
    gap: float
    graph_gap: float
    wait: float


H100 = Gpu(
    name="H100 SXM",
    bandwidth=0.9 * 3.35e12,
    cache=0.6 * 50e6,
    sectors=0.5 * 3.35e12 / 64,
    words=100e9,
    atomics=25e9,
    from_host=55e9,
    memory_latency=0.65e-6,
    cache_latency=0.27e-6,
    host_launch=2.5e-6,
    gap=2.8e-6,
    graph_gap=1.7e-6,
    wait=12e-6,
)
"""The GPU of the goals. All are assumptions but the gaps, which an H200 had.

Its kernels took 1.6 us more than their loads. Pauses between them were 1.15 us, or 0.06 in a graph.
"""


class Hop(NamedTuple):
    """Sizes of a hop, all edge types together.

    Attributes:
        rows: rows drawn from.
        edges: edges drawn.
        nodes: new nodes found.
        pointer_sectors: sectors of row pointers that were read, each counted once.
        column_sectors: sectors of neighbours that were read, each counted once.
    """

    rows: int
    edges: int
    nodes: int
    pointer_sectors: int
    column_sectors: int


@dataclass(frozen=True)
class Counts:
    """Sizes of a batch.

    Attributes:
        seeds: seeds of all node types.
        hops: sizes of each hop, in order.
        table_bytes: bytes of the tables that number nodes.
    """

    seeds: int
    hops: Sequence[Hop]
    table_bytes: int

    @property
    def nodes(self) -> int:
        """Nodes of the whole batch."""
        return self.seeds + sum(hop.nodes for hop in self.hops)

    @property
    def edges(self) -> int:
        """Edges of the whole batch."""
        return sum(hop.edges for hop in self.hops)


@dataclass
class Work:
    """Work of one step of a batch, by which the model computes the step's time.

    Attributes:
        step: name of the step.
        launches: number of kernels.
        streamed: bytes read or written sequentially.
        sectors: sectors read or written anywhere in device memory.
        words: words read or written anywhere in the L2 cache.
        atomics: atomic operations in the L2 cache.
        chain: longest chain of dependent loads: (from device memory, from the L2 cache).
    """

    step: str
    launches: int
    streamed: float = 0.0
    sectors: float = 0.0
    words: float = 0.0
    atomics: float = 0.0
    chain: tuple[int, int] = (0, 0)

    def seconds(self, gpu: Gpu, in_graph: bool = False) -> float:
        """Return the step's time on a GPU in seconds, launches included."""
        moved = self.streamed / gpu.bandwidth + self.sectors / gpu.sectors
        moved += self.words / gpu.words + self.atomics / gpu.atomics
        waited = self.chain[0] * gpu.memory_latency + self.chain[1] * gpu.cache_latency
        gap = gpu.graph_gap if in_graph else gpu.gap
        return self.launches * gap + max(moved, waited)


@dataclass(frozen=True)
class Prediction:
    """Predicted time of a batch on a GPU, step by step.

    Attributes:
        gpu: the GPU.
        drawn: steps before the host knows the sizes.
        written: steps after that.
        as_graph: True if the host launches the steps of `drawn` as one CUDA graph.
    """

    gpu: Gpu
    drawn: list[Work]
    written: list[Work]
    as_graph: bool = False

    @property
    def launches(self) -> int:
        """Kernels of the batch."""
        return sum(work.launches for work in [*self.drawn, *self.written])

    @property
    def seconds(self) -> float:
        """Seconds from the first call to the last kernel's end.

        Host and device work at the same time, and the slower of them counts. But the host waits for
        the sizes, and the device then waits for the host.
        """
        gpu = self.gpu
        total = gpu.wait
        for works, in_graph in ((self.drawn, self.as_graph), (self.written, False)):
            launched = 1 if in_graph else sum(work.launches for work in works)
            on_device = sum(work.seconds(gpu, in_graph) for work in works)
            total += gpu.host_launch + max(launched * gpu.host_launch, on_device)
        return total


def predict(counts: Counts, gpu: Gpu = H100, as_graph: bool = False) -> Prediction:
    """Predict how long drawing a batch and writing it takes.

    Args:
        counts: sizes of the batch.
        gpu: the GPU.
        as_graph: True if the draws are launched as one CUDA graph.
    """
    drawn = [Work("seeds", 1, streamed=28 * counts.seeds, atomics=counts.seeds, chain=(2, 1))]
    for hop_index, hop in enumerate(counts.hops):
        drawn += _hop(hop, counts, gpu, f"hop {hop_index + 1}, ")
    return Prediction(gpu, drawn, _written(counts), as_graph)


def _hop(hop: Hop, counts: Counts, gpu: Gpu, name: str) -> list[Work]:
    rows, edges = hop.rows, hop.edges
    search = math.ceil(math.log2(rows + 1))  # steps to find an edge's row; warps share them
    # Words of the table that do not fit the cache are sectors.
    in_cache = min(1.0, gpu.cache / max(counts.table_bytes, 1))
    table = {"words": in_cache * edges, "sectors": (1 - in_cache) * edges}
    return [
        # Sequential keys, and picks row by row, a word at a time. Then a sum over their counts, of
        # which each block waits for the blocks before it.
        Work(name + "pick", 1, 24 * rows, hop.pointer_sectors, edges, chain=(3, 3)),
        # Reads picks and a neighbour from anywhere, writes keys, positions, destinations and slots.
        Work(
            name + "append",
            1,
            streamed=(8 + 24) * edges,
            sectors=hop.column_sectors + table["sectors"],
            words=edges * search / SECTOR + table["words"],
            atomics=edges,
            chain=(2, 1 + search),
        ),
        Work(
            name + "scan of edges",
            1,
            12 * edges,
            table["sectors"],
            table["words"],
            chain=(2, 4),
        ),
        # Sequential slots and numbers, then the table and the rank of the first, in the cache. The
        # last block ends the hop.
        Work(
            name + "number",
            1,
            8 * edges + 16 * hop.nodes,
            table["sectors"],
            table["words"] + edges,
            chain=(1, 8),
        ),
    ]


def _written(counts: Counts) -> list[Work]:
    return [Work("write", 1, 16 * counts.nodes + 40 * counts.edges, chain=(1, 0))]


def gather(rows: int, row_bytes: int, from_host: bool, gpu: Gpu = H100) -> float:
    """Predict the seconds of a gather of rows.

    Args:
        rows: number of rows.
        row_bytes: bytes of a row.
        from_host: True if the table lies in the host's memory.
        gpu: the GPU.
    """
    # Rows need not begin at a sector: the average number of sectors.
    step = math.gcd(row_bytes, SECTOR)
    touched = (row_bytes + SECTOR - step) / SECTOR if row_bytes else 0.0
    read = math.ceil(touched) * SECTOR * rows
    written = (row_bytes + 8) * rows
    if from_host:
        return gpu.gap + max(read / gpu.from_host, written / gpu.bandwidth)
    return gpu.gap + (read + written) / gpu.bandwidth


def model_row(group: str, name: str, seconds: float) -> Row:
    """Make a row of a prediction, to be shown next to the measured one.

    Args:
        group: group of the measured row.
        name: name of the measured row.
        seconds: predicted seconds.
    """
    row = Row(group, f"{name}: model of an {H100.name}", "ms", ratio=math.nan)
    row.add(Turn(seconds))
    return row


# Counting.


class Batch(NamedTuple):
    """A batch as it was drawn.

    Attributes:
        nodes: node ids of each node type, in order.
        nodes_per_hop: numbers of nodes per hop of each node type, seeds first.
        edges: positions in the graph of each edge type's edges, in order.
        edges_per_hop: numbers of edges per hop of each edge type.
        relations: (node type of the neighbours, of the rows) of each edge type.
        pointer_bytes: bytes of a row pointer of each edge type.
        column_bytes: bytes of a neighbour's id of each edge type.
        fanouts: fan-outs of each edge type.
    """

    nodes: Sequence[Int64Array]
    nodes_per_hop: Sequence[Sequence[int]]
    edges: Sequence[Int64Array]
    edges_per_hop: Sequence[Sequence[int]]
    relations: Sequence[tuple[int, int]]
    pointer_bytes: Sequence[int]
    column_bytes: Sequence[int]
    fanouts: Sequence[Sequence[int]]


def count(batch: Batch) -> Counts:
    """Count the sizes of a batch that the model needs."""
    num_hops = len(batch.edges_per_hop[0])
    hops = [_count_hop(batch, hop) for hop in range(num_hops)]
    seeds = sum(per_hop[0] for per_hop in batch.nodes_per_hop)
    return Counts(seeds, hops, _table_bytes(batch))


def _count_hop(batch: Batch, hop: int) -> Hop:
    rows = edges = pointers = columns = 0
    for relation, (_, destination) in enumerate(batch.relations):
        frontier = _stretch(batch.nodes[destination], batch.nodes_per_hop[destination], hop)
        picked = _stretch(batch.edges[relation], batch.edges_per_hop[relation], hop)
        rows += len(frontier)
        edges += len(picked)
        ends = np.concatenate([frontier, frontier + 1])
        pointers += _num_sectors(ends, batch.pointer_bytes[relation])
        columns += _num_sectors(picked, batch.column_bytes[relation])
    num_new = sum(per_hop[hop + 1] for per_hop in batch.nodes_per_hop)
    return Hop(rows, edges, num_new, pointers, columns)


def _stretch(values: Int64Array, per_hop: Sequence[int], hop: int) -> Int64Array:
    begin = sum(per_hop[:hop])
    return values[begin : begin + per_hop[hop]]


def _num_sectors(entries: Int64Array, width: int) -> int:
    return len(np.unique(entries // (SECTOR // width)))


def _table_bytes(batch: Batch) -> int:
    """Return the bytes of the tables of a batch of fixed fan-outs, as `BoundsOfBatch` bounds it."""
    frontier = [per_hop[0] for per_hop in batch.nodes_per_hop]
    positions = list(frontier)
    for hop in range(len(batch.edges_per_hop[0])):
        num_new = [0] * len(frontier)
        for relation, (source, destination) in enumerate(batch.relations):
            num_new[source] += frontier[destination] * batch.fanouts[relation][hop]
        positions = [p + f for p, f in zip(positions, num_new, strict=True)]
        frontier = num_new
    rooms = [min(p, _ROOM // len(positions)) for p in positions]
    return sum(8 << max(10, math.ceil(math.log2(2 * max(room, 1)))) for room in rooms)
