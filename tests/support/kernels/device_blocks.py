"""Batches that a device writes to blocks: launched by one plan, and compared with the CPU's."""

from dataclasses import replace as replaced

import numpy as np

from khop import _native
from support.devices import address_of, get, put
from support.kernels import cases, hop_calls, runs
from support.reference.sampler import Batch, Options, Seeds

UNTOUCHED = -7
MORE = 3  # entries behind each block


class Drawing:
    """Batches of a graph by one plan, each in a block of its own."""

    def __init__(self, device, graph, options, cuda_graph=False, backward=False, padding=None):
        self.device, self.graph, self.options, self.backward = device, graph, options, backward
        self.arguments = graph.num_nodes, graph.pairs(), options.with_edges, options.disjoint
        self.named = [options.records_edges(r) for r in range(len(graph.relations))]
        self.graphs = [_native.DeviceGraph(device, csr) for csr in graph.csrs()]
        rows = options.fanouts, options.replace, options.weighted, options.last
        self.hops = hop_calls.table(*rows, **options.method)
        names = [(0, 8, 0)] * len(self.graphs)
        self.plan = _native.DevicePlan(
            device, self.graphs, self.hops, cuda_graph, names, self.named, backward, padding
        )

    def subgraph(self, room=1 << 22):
        return _native.DeviceSubgraph(self.device, *self.arguments, room=room)

    def begin(self, subgraph, seeds, batch, words, **how):
        """Launch a batch, and return its block."""
        block = put(self.device, np.full(words + MORE, UNTOUCHED))
        self.launch(subgraph, seeds, batch, block, words, **how)
        return block

    def launch(self, subgraph, seeds, batch, block, words, **how):
        """Launch a batch that is written to a block."""
        excluded = [(r, *runs.pair_arrays(p)) for r, p in self.options.excluded.items()]
        sets = [
            (t, *(None if a is None else np.array(a, np.int64) for a in arrays))
            for t, *arrays in seeds
        ]
        memory = (block, address_of(block), words) if words else (block,)
        subgraph.draw(self.plan, sets, self.options.run, batch, excluded, *memory, **how)
        assert subgraph.take_block() is block
        assert subgraph.take_block() is None

    def read(self, subgraph, block):
        """Return the batch of a block, in the form of `runs.read`."""
        lengths, words, node_hops, edge_hops = subgraph.layout()
        assert sum(lengths) == words
        arrays = iter(np.split(get(block), np.cumsum(lengths)))
        nodes = [next(arrays).tolist() for _ in self.graph.num_nodes]
        trees = [[0] * len(n) for n in nodes]
        if self.options.disjoint:
            trees = [next(arrays).tolist() for _ in nodes]
        ends = [next(arrays).reshape(2, -1).tolist() for _ in self.named]
        edges = []
        for of_edges, is_named in zip(ends, self.named, strict=True):
            row, col = reversed(of_edges) if self.backward else of_edges
            names = next(arrays).tolist() if is_named else [None] * len(row)
            edges.append(list(zip(row, col, names, strict=True)))
        assert (next(arrays) == UNTOUCHED).all()
        return Batch(nodes, trees, edges, node_hops, edge_hops)

    def expected(self, seeds, batch):
        on_cpu = _native.Subgraph(*self.arguments)
        options = replaced(self.options, batch=batch)
        runs.at_once(on_cpu, self.graph.csrs(), seeds, options)
        return runs.read(on_cpu, self.graph, options)

    def written(self, subgraph):
        """Write a batch to a block of its size, without padding, and return the block."""
        block = put(self.device, np.full(subgraph.layout()[1] + MORE, UNTOUCHED))
        subgraph.write_block(address_of(block))
        self.device.synchronize()
        return block

    def check(self, seeds, batch, subgraph, block):
        """A batch is in its block, or can be written to another one, and nothing beside it."""
        is_written = subgraph.settle()
        words = subgraph.layout()[1]
        assert self.plan.block_words >= words
        if not is_written:
            if words > len(block) - MORE:
                assert (get(block) == UNTOUCHED).all()
            block = self.written(subgraph)
        assert len(block) >= words + MORE
        assert self.read(subgraph, block) == self.expected(seeds, batch)


def small(device, cuda_graph=False, padding=None):
    """Return a drawing on 40 nodes of nine in-neighbours each, and seeds."""
    indices = (np.arange(360) * 7 % 40).astype(np.int32)
    relation = cases.Relation(0, 0, np.arange(0, 361, 9), indices)
    graph = cases.Graph([40], [0], [40], [relation])
    drawing = Drawing(device, graph, Options([[4, 3]], [False], run=3), cuda_graph, False, padding)
    return drawing, [Seeds(0, [0, 1, 2, 3, 4], None)]
