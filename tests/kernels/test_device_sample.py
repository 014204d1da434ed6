"""Batches that a device draws are those that the CPU draws, bit for bit, whatever the options."""

import itertools
from dataclasses import replace as replaced

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native
from support.devices import KINDS, address_of, empty, open_device
from support.kernels import cases, hop_calls, runs
from support.kernels.device_batches import hub_graph, read
from support.reference.sampler import Options, Seeds


def draw_on(device, subgraph, graph, seeds, options, mode="CUDA"):
    """A batch, and the graphs that it was drawn from."""
    graphs = [_native.DeviceGraph(device, csr, mode) for csr in graph.csrs()]
    runs.at_once(subgraph, graphs, seeds, options)


@st.composite
def graph_and_batches(draw):
    """A graph, a subgraph on the CPU, what makes one of a device, and batches to draw in turn."""
    graph, disjoint = draw(cases.graphs()), draw(st.booleans())
    with_edges = draw(st.integers(0, 4)) > 0
    batches = cases.batches(graph, disjoint, with_edges)
    batches = draw(st.lists(batches, min_size=1, max_size=3))
    arguments = (graph.num_nodes, graph.pairs(), with_edges, disjoint)
    return graph, _native.Subgraph(*arguments), arguments, batches


@pytest.mark.parametrize("kind", KINDS)
@cases.examples(150)
@given(graph_and_batches(), st.data())
def test_any_options(kind, case, data):
    """Random graphs of several types, batches with any options, drawn into the same object.

    With little room at first, batches are drawn again.
    """
    graph, on_cpu, arguments, batches = case
    device = open_device(kind, data.draw(st.integers(0, 1000)))
    room = data.draw(st.sampled_from([1, 8, 1 << 22]))
    on_device = _native.DeviceSubgraph(device, *arguments, room=room)
    mode = data.draw(st.sampled_from(["CUDA", "ZERO_COPY"]))
    for seeds, options in batches:
        runs.at_once(on_cpu, graph.csrs(), seeds, options)
        expected = runs.read(on_cpu, graph, options)
        draw_on(device, on_device, graph, seeds, options, mode)
        assert read(device, on_device, graph, options) == expected


@pytest.mark.parametrize(
    "fanouts", [[48, 3], [49, 2], [130, 2], [1000], [15, 10, 5], [-1]], ids=str
)
def test_large_fanouts_and_hubs(device, fanouts):
    """Fan-outs and degrees beyond what a row's picks are compared, or 32-bit words drawn, for.

    With each two of the other options, all three only for half of the fan-outs.
    """
    graphs = [hub_graph(weighted=weighted) for weighted in (False, True)]
    seeds = [Seeds(0, [0, 3, 9, 3, 20, 0, 69_999], None)]
    excluded = {0: {(0, int(n)) for n in graphs[0].relations[0].indices[:500]}}
    for replace, weighted, disjoint in itertools.product([False, True], repeat=3):
        if (replace + weighted + disjoint + len(fanouts)) % 2:
            continue
        graph, on_cpu = graphs[weighted], graphs[weighted].subgraph(disjoint)
        on_device = _native.DeviceSubgraph(
            device, graph.num_nodes, graph.pairs(), True, disjoint, room=1 << 10
        )
        for excluded_pairs in ({}, excluded):
            options = Options(
                [fanouts], [weighted], replace, disjoint=disjoint, run=7, excluded=excluded_pairs
            )
            runs.at_once(on_cpu, graph.csrs(), seeds, options)
            draw_on(device, on_device, graph, seeds, options)
            expected = runs.read(on_cpu, graph, options)
            assert read(device, on_device, graph, options) == expected, options


@cases.examples(60)
@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_recorded_batches(kind, data):
    """Batches that play a recording again: of other seeds, fewer of them, under other keys."""
    graph = data.draw(cases.graphs())
    disjoint = data.draw(st.booleans())
    arguments = (graph.num_nodes, graph.pairs(), True, disjoint)
    seeds, options = data.draw(cases.batches(graph, disjoint))
    device = open_device(kind)
    graphs = [_native.DeviceGraph(device, csr) for csr in graph.csrs()]
    on_cpu, on_device = _native.Subgraph(*arguments), _native.DeviceSubgraph(device, *arguments)
    options = replaced(options, excluded={}, induced=False, reversals=())
    for batch in range(5):
        fewer = [
            Seeds(t, ids[batch % 3 :], None if times is None else times[batch % 3 :])
            for t, ids, times in seeds
        ]
        options = replaced(options, batch=batch)
        runs.at_once(on_cpu, graph.csrs(), fewer, options)
        runs.begin(on_device, fewer, options)
        plan = (options.fanouts, options.replace, options.weighted, options.last, options.run)
        hop_calls.sample(on_device, graphs, *plan, batch, cuda_graph=True, method=options.method)
        expected = runs.read(on_cpu, graph, options)
        assert read(device, on_device, graph, options) == expected


def launches_of(device, graph, relations, num_seeds, fanouts):
    """Launches of a batch, and of its writing; then of batches that are recorded."""
    graphs = [_native.DeviceGraph(device, csr) for csr in graph.csrs()] * len(relations)
    num_types = max(max(pair) for pair in relations) + 1
    subgraph = _native.DeviceSubgraph(device, graph.num_nodes * num_types, relations, True)
    launches = []
    for batch in range(3):
        subgraph.begin()
        for node_type in range(num_types):
            subgraph.add_seeds(node_type, np.arange(num_seeds))
        before = device.num_launches
        options = (False, [False] * len(relations), False, 1, batch, batch > 0)
        hop_calls.sample(subgraph, graphs, [fanouts] * len(relations), *options)
        num_nodes, num_edges, _, _ = subgraph.sizes()
        launches.append(device.num_launches - before)
    nodes, trees = ([empty(device, n, np.int64) for n in num_nodes] for _ in range(2))
    ends, edges = ([empty(device, (k, n), np.int64) for n in num_edges] for k in (2, 1))
    arrays = ([address_of(array) for array in of] for of in (nodes, ends, edges, trees))
    before = device.num_launches
    subgraph.write(*arrays, [])
    device.synchronize()
    return launches, device.num_launches - before


@pytest.mark.parametrize("num_types", [1, 4])
@pytest.mark.parametrize("num_relations", [1, 20])
def test_launches_of_a_batch(device, num_relations, num_types):
    """Four kernels per hop, for all edge types together, and one for the seeds.

    Recorded: one for all. One writes nodes, ends and edges, of up to 44 stretches.
    """
    relations = [(r % num_types, (r + r // 4) % num_types) for r in range(num_relations)]
    num_types = max(max(pair) for pair in relations) + 1
    for num_nodes, num_seeds, fanouts in ((100, 5, [4, 3, 2]), (9000, 4097, [1, 1, 1])):
        graph = hub_graph(num_nodes, 20)
        launched, written = launches_of(device, graph, relations, num_seeds, fanouts)
        assert launched == [13, 1, 1]
        assert written == (1 if num_relations == 1 else 2)


def test_stamps_run_out(device):
    """The node table is cleared before its stamps end: after 511 batches with room for 2^22.

    The first of these is batch 2, and the room stays. Batch 514 has the stamps of batch 3.
    """
    graph = hub_graph(100, 20)
    graph.relations[0].indptr = np.concatenate([[0, 0], np.full(99, 30)])  # node 0 has none
    graph.relations[0].indices = graph.relations[0].indices[:30]
    graphs = [_native.DeviceGraph(device, csr) for csr in graph.csrs()]
    on_device = _native.DeviceSubgraph(device, [100], [(0, 0)], True)
    on_cpu = graph.subgraph(False)
    most = (1 << 22) - 1
    for batch in range(520):
        seed = [1] if batch in (0, 1, 3, 514, 519) else [0]
        fanouts = [[most if batch == 2 else 20, 0]]
        seeds = [Seeds(0, seed, None)]
        options = Options(fanouts, [False], True, run=3, batch=batch)
        runs.begin(on_device, seeds, options)
        hop_calls.sample(on_device, graphs, fanouts, True, [False], False, 3, batch)
        if seed == [1]:
            runs.at_once(on_cpu, graph.csrs(), seeds, options)
            expected = runs.read(on_cpu, graph, options)
            assert read(device, on_device, graph, options) == expected
        else:
            assert on_device.num_nodes(0) == 1
