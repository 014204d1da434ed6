"""Batches that a device writes, as soon as they are drawn, to a block of a size that was chosen."""

from dataclasses import replace as replaced

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fake_cuda import control
from khop import _native
from support.devices import KINDS, fake, open_device
from support.kernels import cases
from support.kernels.device_blocks import Drawing, small
from support.reference.sampler import Seeds


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


def test_a_batch_that_found_too_little_room(device):
    """To ask whether it is written launches nothing: others may use the device meanwhile."""
    drawing, seeds = small(device)
    subgraph = drawing.subgraph(room=1)
    block = drawing.begin(subgraph, seeds, 0, 1000)
    before = device.num_launches
    assert not subgraph.settle()
    assert device.num_launches == before
    assert drawing.read(subgraph, drawing.written(subgraph)) == drawing.expected(seeds, 0)
    del block


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
