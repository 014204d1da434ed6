"""Programs on devices: PinSAGE's visits and layers by importance, as on the CPU, bit for bit."""

import re

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop import _native
from khop.sampler import FastGcn, Ladies, PinSage, PoissonLadies
from khop.sampler.device.engine import DeviceEngine, graphs_on
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.view import GraphView
from khop.sampler.pyg.source import graph_of
from khop.sampler.requests import Exclusion, SeedSet
from khop.sampler.spec import SamplingOptions
from support.devices import KINDS, address_of, empty, get, open_device

METHODS = {
    "visits": PinSage(3, num_random_walks=5, num_traversals=3, termination_prob=0.2, num_layers=3),
    "chances": PoissonLadies([5, 15], skip=True),
    "draws": Ladies([6, 9]),
    "of the graph": FastGcn([40, 30], edge_norm="ht"),
}


def random_view(seed, count=60, num_edges=500):
    """A graph with parallel edges and hubs."""
    rng = np.random.default_rng(seed)
    ends = np.stack([(count * rng.random(num_edges) ** 3), rng.integers(0, count, num_edges)])
    data = Data(edge_index=torch.from_numpy(ends.astype(np.int64)), num_nodes=count)
    graph = graph_of(data, "in")
    return GraphView.of_graph(graph), graph


def arrays_of(subgraph, device=None):
    """Nodes, ends and values of a batch, on the host."""
    (num_nodes,), (num_edges,), *hops = subgraph.sizes()
    nodes, ends = empty(device, num_nodes, np.int64), empty(device, (2, num_edges), np.int64)
    values = empty(device, num_edges, np.float32)
    subgraph.write([address_of(nodes)], [address_of(ends)], [], [], [], values=[address_of(values)])
    device.synchronize()
    return [*map(get, (nodes, ends, values)), *hops]


def expected_of(subgraph):
    """The same of a batch that the CPU drew."""
    nodes = np.empty(subgraph.num_nodes(0), np.int64)
    ends = np.empty((2, subgraph.num_edges(0)), np.int64)
    subgraph.write_nodes(0, nodes)
    subgraph.write_edge_index(0, *ends)
    (values,) = subgraph.values.values()
    return [nodes, ends, values, [subgraph.nodes_per_hop(0)], [subgraph.edges_per_hop(0)]]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", [1, 1 << 22])
def test_batches_are_the_cpus(kind, name, room):
    """With excluded edges and without, with seeds that repeat, with too little room at first."""
    method = METHODS[name]
    view, graph = random_view(3)
    spec = SamplingOptions(with_edge=False).spec(method, graph.info)
    device = open_device(kind, 1)
    on_device = DeviceEngine(view, spec, device, graphs_on(device, view, "CUDA"), False)
    subgraph = _native.DeviceSubgraph(device, view.num_nodes, view.relations, False, False, room)
    on_device.release(subgraph)
    on_cpu = Engine(view, spec)
    neighbors = graph.topologies[graph.edge_types[0]].indices.astype(np.int64)
    rows = np.repeat(np.arange(60), np.diff(graph.topologies[graph.edge_types[0]].indptr))
    for batch in range(4):
        seeds = [SeedSet(0, np.arange(batch, 20, 1 + batch).repeat(1 + batch % 2), None)]
        excluded = [Exclusion(0, rows[::7].copy(), neighbors[::7].copy())] * (batch // 2)
        subgraph = on_device.sample_local(seeds, 5, batch, excluded)
        found = arrays_of(subgraph, device)
        on_device.release(subgraph)
        expected = expected_of(on_cpu.sample_local(seeds, 5, batch, excluded))
        for a, b in zip(found, expected, strict=True):
            assert np.array_equal(a, b)
        assert found[2].dtype == expected[2].dtype


@pytest.mark.parametrize("name", ["visits", "poisson-ladies", "ladies"])
@pytest.mark.parametrize("indptr,indices", [([0, 1, 2, 2], [1, 9]), ([0, 1, 7, 2], [1, 0])])
def test_damaged_graphs(device, name, indptr, indices):
    """A neighbour that does not exist, or a corrupt row, is an error; the next batch is drawn."""
    if name == "visits":
        program = _native.DeviceProgram.visits(3, 4, 0)
    else:
        program = _native.DeviceProgram.layers(name, [2, 2], name == "ladies", True)
    hops = [[_native.HopOptions(-1, False, False, 0, False, False)] * 2]
    subgraph = _native.DeviceSubgraph(device, [3], [(0, 0)], False)
    for ends in (np.array(indptr), np.array(indices)), (np.array([0, 1, 2, 2]), np.array([1, 0])):
        graphs = [_native.DeviceGraph(device, _native.Csr(*ends))]
        plan = _native.DevicePlan(
            device, graphs, hops, False, [(0, 8, 0)], [False], program=program, layer_wise=True
        )
        subgraph.draw(plan, [(0, np.arange(3), None)], 1, 0, [])
        if ends[0].tolist() == indptr and ends[1].tolist() == indices:
            with pytest.raises((RuntimeError, IndexError), match=r"row 1 does not lie|node 9 "):
                subgraph.sizes()
        else:
            assert subgraph.sizes()[0] == [3]


def test_arguments(device):
    """Plans refuse programs that no batch can be drawn by."""
    visits, layers = _native.DeviceProgram.visits, _native.DeviceProgram.layers
    for make, message in (
        (lambda: visits(0, 2, 5), "walks of a step or more"),
        (lambda: visits(2, 0, 5), "walks of a step or more"),
        (lambda: visits(2, 2, 2**32 + 1), "at most 2^32"),
        (lambda: layers("labor", [3], False, True), "no device draws layers by this"),
        (lambda: layers("ladies", [0], False, True), "counts must be at least 1"),
        (lambda: layers("fastgcn", [2], False, True), "'fastgcn' alone has column_sums"),
        (lambda: layers("ladies", [2], False, True, 64, 3), "'fastgcn' alone has column_sums"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            make()
    graphs = [_native.DeviceGraph(device, _native.Csr(np.array([0, 1]), np.array([0])))]
    hops = [[_native.HopOptions(-1, False, False, 0, False, False)]]

    def plan(program, graphs=graphs, hops=hops, cuda_graph=False, named=False, padding=None):
        count = len(graphs)
        names, named = [(0, 8, 0)] * count, [named] * count
        return _native.DevicePlan(
            device, graphs, hops * count, cuda_graph, names, named, False, padding, program
        )

    program = layers("ladies", [2], False, True)
    for arguments, message in (
        ({"cuda_graph": True}, "neither recorded nor padded"),
        ({"padding": ([[1, 1]], [[1]], False, False)}, "neither recorded nor padded"),
        ({"graphs": graphs * 2}, "one edge type"),
        ({"hops": [hops[0] * 2]}, "counts of the program"),
    ):
        with pytest.raises(ValueError, match=message):
            plan(program, **arguments)
    with pytest.raises(ValueError, match="no edges of the graph"):
        plan(visits(2, 2, 0), named=True)
    for num_nodes, disjoint, message in (
        ([1], True, "no disjoint or merged batches"),
        ([1, 1], False, "one node type"),
    ):
        subgraph = _native.DeviceSubgraph(device, num_nodes, [(0, 0)], False, disjoint)
        with pytest.raises(ValueError, match=message):
            subgraph.draw(plan(program), [(0, np.arange(1), None)], 1, 0, [])
    plain = _native.DeviceSubgraph(device, [1], [(0, 0)], False)
    plain.draw(plan(None), [(0, np.arange(1), None)], 1, 0, [])
    values = empty(device, 1, np.float32)
    with pytest.raises(ValueError, match="edges have no values"):
        plain.write([], [], [], [], [], values=[address_of(values)])


def test_more_walks_than_keys_can_tell_apart(device):
    """A hop that is too large is an error, not a batch of other nodes."""
    graph = _native.DeviceGraph(device, _native.Csr(np.array([0, 1]), np.array([0])))
    hops = [[_native.HopOptions(5, False, False, 0, False, False)]]
    program = _native.DeviceProgram.visits(2**31, 1, 0)
    plan = _native.DevicePlan(device, [graph], hops, False, [(0, 8, 0)], [False], program=program)
    subgraph = _native.DeviceSubgraph(device, [1], [(0, 0)], False)
    with pytest.raises(ValueError, match="use smaller batches"):
        subgraph.draw(plan, [(0, np.arange(1), None)], 1, 0, [])
