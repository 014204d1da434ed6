"""Batches that a device writes, as soon as they are drawn, to a block of a size that was chosen."""

from dataclasses import replace as replaced

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fake_cuda import control
from khop import _native
from support.devices import KINDS, address_of, fake, get, open_device, put
from support.kernels import cases, hop_calls, runs
from support.reference.sampler import Batch, Options, Seeds

UNTOUCHED = -7
MORE = 3  # entries behind each block


class Drawing:
    """Batches of a graph by one plan, each in a block of its own."""

    def __init__(self, device, graph, options, cuda_graph=False, backward=False):
        self.device, self.graph, self.options, self.backward = device, graph, options, backward
        self.arguments = graph.num_nodes, graph.pairs(), options.with_edges, options.disjoint
        self.named = [options.records_edges(r) for r in range(len(graph.relations))]
        self.graphs = [_native.DeviceGraph(device, csr) for csr in graph.csrs()]
        rows = options.fanouts, options.replace, options.weighted, options.last
        self.hops = hop_calls.table(*rows, **options.method)
        names = [(0, 8, 0)] * len(self.graphs)
        self.plan = _native.DevicePlan(
            device, self.graphs, self.hops, cuda_graph, names, self.named, backward
        )

    def subgraph(self, room=1 << 22):
        return _native.DeviceSubgraph(self.device, *self.arguments, room=room)

    def begin(self, subgraph, seeds, batch, words):
        """Launch a batch, and return its block."""
        block = put(self.device, np.full(words + MORE, UNTOUCHED))
        excluded = [(r, *runs.pair_arrays(p)) for r, p in self.options.excluded.items()]
        sets = [
            (t, *(None if a is None else np.array(a, np.int64) for a in arrays))
            for t, *arrays in seeds
        ]
        memory = (block, address_of(block), words) if words else (block,)
        subgraph.draw(self.plan, sets, self.options.run, batch, excluded, *memory)
        assert subgraph.take_block() is block
        assert subgraph.take_block() is None
        return block

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

    def check(self, seeds, batch, subgraph, block):
        """A batch is in its block, or can be written to another one, and nothing beside it."""
        is_written = subgraph.settle()
        words = subgraph.layout()[1]
        assert self.plan.block_words >= words
        if not is_written:
            if words > len(block) - MORE:
                assert (get(block) == UNTOUCHED).all()
            block = put(self.device, np.full(words + MORE, UNTOUCHED))
            subgraph.write_block(address_of(block))
            self.device.synchronize()
        assert len(block) >= words + MORE
        assert self.read(subgraph, block) == self.expected(seeds, batch)


@pytest.mark.parametrize("kind", KINDS)
@cases.examples(80)
@given(st.data())
def test_blocks(kind, data):
    """Random graphs and options, and blocks that are large enough or not.

    Two batches are in flight at a time. With little room they are drawn again.
    """
    graph, disjoint = data.draw(cases.graphs()), data.draw(st.booleans())
    with_edges = data.draw(st.integers(0, 4)) > 0
    seeds, options = data.draw(cases.batches(graph, disjoint, with_edges))
    options = replaced(options, induced=False, reversals=())
    device = open_device(kind, data.draw(st.integers(0, 1000)))
    drawing = Drawing(device, graph, options, data.draw(st.booleans()), data.draw(st.booleans()))
    room = data.draw(st.sampled_from([1, 8, 1 << 22]))
    subgraphs = [drawing.subgraph(room) for _ in range(2)]
    in_flight = []
    for batch in range(5):
        words = data.draw(st.sampled_from([0, 1, drawing.plan.block_words, 10_000]))
        fewer = [Seeds(t, *(a and a[batch % 3 :] for a in arrays)) for t, *arrays in seeds]
        subgraph = subgraphs[batch % 2]
        block = drawing.begin(subgraph, fewer, batch, words)
        in_flight.append((fewer, batch, subgraph, block))
        if len(in_flight) == 2:
            drawing.check(*in_flight.pop(0))
    drawing.check(*in_flight.pop())


def small(device, cuda_graph=False):
    """Return a drawing on 40 nodes of nine in-neighbours each, and seeds."""
    indices = (np.arange(360) * 7 % 40).astype(np.int32)
    relation = cases.Relation(0, 0, np.arange(0, 361, 9), indices)
    graph = cases.Graph([40], [0], [40], [relation])
    drawing = Drawing(device, graph, Options([[4, 3]], [False], run=3), cuda_graph)
    return drawing, [Seeds(0, [0, 1, 2, 3, 4], None)]


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_nothing_is_launched_after_the_wait(device, cuda_graph):
    """A batch is written by what was launched with its draw. Recorded, all is one launch."""
    drawing, seeds = small(device, cuda_graph)
    subgraph = drawing.subgraph()
    for batch in range(3):
        before = device.num_launches
        block = drawing.begin(subgraph, seeds, batch, 1000)
        launches = device.num_launches - before
        assert launches == (1 if cuda_graph and batch > 0 else 1 + 4 * 2 + 1)
        assert subgraph.settle()
        assert device.num_launches - before == launches
        assert drawing.read(subgraph, block) == drawing.expected(seeds, batch)


@fake
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_the_device_has_work_whenever_the_host_waits(cuda_graph):
    """Two subgraphs take turns: a batch is launched before the host waits for the one before."""
    control.set_mode("lazy")
    drawing, seeds = small(open_device("fake"), cuda_graph)
    subgraphs = [drawing.subgraph() for _ in range(2)]
    blocks = [drawing.begin(subgraph, seeds, i, 1000) for i, subgraph in enumerate(subgraphs)]
    waits, alone = control.count("waits"), control.count("waits_alone")
    assert subgraphs[0].settle()
    assert (control.count("waits"), control.count("waits_alone")) == (waits + 1, alone)
    assert subgraphs[1].settle()
    assert (control.count("waits"), control.count("waits_alone")) == (waits + 2, alone + 1)
    for subgraph in subgraphs:
        assert subgraph.settle()  # known: no further wait
    assert control.count("waits") == waits + 2
    for i, subgraph in enumerate(subgraphs):
        assert drawing.read(subgraph, blocks[i]) == drawing.expected(seeds, i)


def test_errors(device):
    drawing, _ = small(device)
    arguments = device, drawing.graphs, drawing.hops, False
    with pytest.raises(ValueError, match="names must hold 1 entries, but holds 2"):
        _native.DevicePlan(*arguments, [(0, 8, 0)] * 2, [True])
    with pytest.raises(IndexError, match="edge 5 of edge type 0 has no name"):
        _native.DevicePlan(*arguments, [(8, 8, 5)], [True])
    subgraph = drawing.subgraph()
    with pytest.raises(ValueError, match="was not drawn by a plan"):
        subgraph.layout()
    with pytest.raises(IndexError, match="node 40 does not exist"):
        subgraph.draw(drawing.plan, [(0, np.array([40]), None)], 1, 0, ())
    without_edges = _native.DeviceSubgraph(device, [40], [(0, 0)], False)
    with pytest.raises(ValueError, match="edges are not recorded"):
        without_edges.draw(drawing.plan, [(0, np.arange(3), None)], 1, 0, ())
    other = _native.DeviceSubgraph(_native.emulated_device(1), [40], [(0, 0)], True)
    with pytest.raises(ValueError, match="the plan is one of another device"):
        other.draw(drawing.plan, [(0, np.arange(3), None)], 1, 0, ())
