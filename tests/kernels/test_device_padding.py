"""Batches that a device pads while it writes them: the CPU's, padded by a few lines of Python."""

from dataclasses import replace as replaced
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fake_cuda import control
from khop import _native
from support.devices import KINDS, address_of, fake, get, open_device, put
from support.kernels import cases
from support.kernels.device_blocks import MORE, UNTOUCHED, Drawing, small
from support.reference.sampler import Seeds

RING = 4  # batches of one object that the host may be ahead


def padded(batch, graph, options, nodes, edges):
    """The arrays of a padded block, or None if a batch does not fit. All in plain Python.

    Section s of a type begins where those before it end. Padded edges of hop h lead from padded
    nodes of section h + 1 to padded nodes of section h, spread evenly.
    """
    counts = batch.nodes_per_hop, batch.edges_per_hop
    sizes = nodes, edges
    for drawn, rooms in zip(counts, sizes, strict=True):
        for of_type, room in zip(drawn, rooms, strict=True):
            if any(n > size for n, size in zip(of_type, room, strict=True)):
                return None
    num_trees = sum(c[0] for c in counts[0])
    rows, masks, trees, ids = [], [], [], []
    for t, (count, size) in enumerate(zip(counts[0], nodes, strict=True)):
        begins = [0, *accumulate(size)]
        rows.append([b + i for b, n in zip(begins, count, strict=False) for i in range(n)])
        mask = np.zeros(sum(size), bool)
        mask[rows[t]] = True
        masks.append(mask)
        for made, values, fill in ((ids, batch.nodes, 0), (trees, batch.trees, num_trees)):
            column = np.full(sum(size), fill)
            column[rows[t]] = values[t]
            made.append(column)
    ends, names, edge_masks = [], [], []
    for r, (count, size) in enumerate(zip(counts[1], edges, strict=True)):
        relation, drawn = graph.relations[r], iter(batch.edges[r])
        columns, mask = [], []
        for hop, (n, room) in enumerate(zip(count, size, strict=True)):
            for _ in range(n):
                row, col, name = next(drawn)
                source, destination = rows[relation.source][row], rows[relation.destination][col]
                columns.append((source, destination, name or 0))
            free = []
            for t, section in ((relation.source, hop + 1), (relation.destination, hop)):
                begin = sum(nodes[t][:section])
                free.append(range(begin + counts[0][t][section], begin + nodes[t][section]))
            if room > n and not all(free):
                return None
            for i in range(room - n):
                columns.append((*(f[i * len(f) // (room - n)] for f in free), 0))
            mask += [True] * n + [False] * (room - n)
        table = np.array(columns, np.int64).reshape(-1, 3)
        ends.append(table[:, :2].T.ravel())
        if options.records_edges(r):
            names.append(table[:, 2])
        edge_masks.append(np.array(mask, bool))
    arrays = ids + (trees if options.disjoint else []) + ends + names
    return arrays, masks + edge_masks


def arrays_of(drawing, block):
    """The arrays in a block, in the form of `padded`. What lies behind them is untouched."""
    lengths = drawing.plan.lengths
    *arrays, rest = np.split(get(block), np.cumsum(lengths))
    assert (rest == UNTOUCHED).all()
    assert len(rest) == MORE
    num_masks = len(drawing.graph.num_nodes) + len(drawing.graph.relations)
    return arrays[:-num_masks], [a.view(np.uint8) for a in arrays[-num_masks:]]


def assert_padded(drawing, block, expected):
    arrays, masks = arrays_of(drawing, block)
    for one, other in zip(arrays, expected[0], strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(masks, expected[1], strict=True):
        np.testing.assert_array_equal(one[: len(other)], other)


@pytest.mark.parametrize("kind", KINDS)
@cases.examples(80)
@given(st.data())
def test_padded_blocks(kind, data):
    """Random graphs, options and sizes. A batch that does not fit is written without padding."""
    graph, disjoint = data.draw(cases.graphs()), data.draw(st.booleans())
    with_edges = data.draw(st.integers(0, 4)) > 0
    seeds, options = data.draw(cases.batches(graph, disjoint, with_edges))
    options = replaced(options, induced=False, reversals=())
    hops = len(options.fanouts[0]) if options.fanouts else 0
    if hops == 0 or not graph.relations:
        return
    device = open_device(kind, data.draw(st.integers(0, 1000)))
    first = Drawing(device, graph, options).expected(seeds, 0)
    more = data.draw(st.integers(-1, 9))
    nodes = [[max(0, n + more) for n in of] for of in first.nodes_per_hop]
    edges = [[max(0, n + 2 * more) for n in of] for of in first.edges_per_hop]
    sizes = nodes, edges, False, disjoint
    drawing = Drawing(device, graph, options, data.draw(st.booleans()), False, sizes)
    room = data.draw(st.sampled_from([1, 1 << 22]))
    subgraphs = [drawing.subgraph(room) for _ in range(2)]
    for batch in range(6):
        subgraph = subgraphs[batch % 2]
        fewer = [Seeds(t, *(a and a[batch % 3 :] for a in arrays)) for t, *arrays in seeds]
        block = drawing.begin(subgraph, fewer, batch, drawing.plan.block_words)
        expected = padded(drawing.expected(fewer, batch), graph, options, nodes, edges)
        fits = subgraph.settle()
        if fits:
            assert_padded(drawing, block, expected)
        elif expected is not None:  # drawn again, with more room; or there is no block
            assert room == 1 or drawing.plan.block_words == 0
        else:
            plain = drawing.read(subgraph, drawing.written(subgraph))
            assert plain == drawing.expected(fewer, batch)


SIZES = [[8, 32, 64]], [[24, 88]]


@pytest.mark.parametrize("leaves_room", [False, True])
def test_a_full_section(device, leaves_room):
    """With sizes of 'auto' a section has a row of padding, or the batch is padded anew."""
    drawing, seeds = small(device)
    batch = drawing.expected(seeds, 0)
    sizes = [batch.nodes_per_hop[0][:], batch.edges_per_hop[0][:]]
    drawing, seeds = small(device, padding=([sizes[0]], [sizes[1]], leaves_room, False))
    subgraph = drawing.subgraph()
    block = drawing.begin(subgraph, seeds, 0, drawing.plan.block_words)
    assert subgraph.settle() is not leaves_room
    if not leaves_room:
        expected = padded(batch, drawing.graph, drawing.options, [sizes[0]], [sizes[1]])
        assert_padded(drawing, block, expected)


@fake
@pytest.mark.parametrize("mode", ["threads", "eager"])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_nothing_waits(mode, cuda_graph):
    """Batches are handed over without a wait, and their masks are the device's."""
    control.set_mode(mode)
    drawing, seeds = small(open_device("fake"), cuda_graph, (*SIZES, False, False))
    subgraph = drawing.subgraph()
    words = drawing.plan.block_words
    blocks = [put(drawing.device, np.full(words + MORE, UNTOUCHED)) for _ in range(RING)]
    names = "waits", "launches", "uploads_pinned", "downloads_pinned", "uploads_pageable"
    counts = {name: control.count(name) for name in names}
    for batch, block in enumerate(blocks):
        drawing.launch(subgraph, seeds, batch, block, words)
        assert subgraph.leave_unchecked()
    counts = {name: control.count(name) - before for name, before in counts.items()}
    launches = 2 + 4 * 2
    assert counts["launches"] == (launches + RING - 1 if cuda_graph else RING * launches)
    assert counts["uploads_pinned"] == counts["downloads_pinned"] == RING
    assert counts["waits"] == counts["uploads_pageable"] == 0
    subgraph.check_all()
    for batch, block in enumerate(blocks):
        expected = drawing.expected(seeds, batch)
        assert_padded(drawing, block, padded(expected, drawing.graph, drawing.options, *SIZES))


@fake
def test_a_slot_is_free_when_its_batch_is_done():
    """The fifth batch waits for the first, whose memory on the host it takes: back-pressure."""
    control.set_mode("lazy")
    drawing, seeds = small(open_device("fake"), False, (*SIZES, False, False))
    subgraph, words = drawing.subgraph(), drawing.plan.block_words
    blocks = [put(drawing.device, np.full(words + MORE, UNTOUCHED)) for _ in range(2 * RING)]
    waits, alone = control.count("waits"), control.count("waits_alone")
    for batch, block in enumerate(blocks):
        drawing.launch(subgraph, seeds, batch, block, words)
        assert subgraph.leave_unchecked()
        assert control.count("waits") - waits == max(0, batch + 1 - RING)
        assert control.count("waits_alone") == alone
    subgraph.check_all()
    for batch, block in enumerate(blocks):
        expected = drawing.expected(seeds, batch)
        assert_padded(drawing, block, padded(expected, drawing.graph, drawing.options, *SIZES))


def test_a_batch_that_does_not_fit_is_told_later(device):
    """It is padding alone. The error comes with the batch that takes its slot, or at the end."""
    tight = [[8, 12, 40]], [[24, 88]]
    drawing, seeds = small(device, padding=(*tight, False, False))
    subgraph, words = drawing.subgraph(), drawing.plan.block_words
    block = drawing.begin(subgraph, seeds, 7, words)
    assert subgraph.leave_unchecked()
    with pytest.raises(ValueError, match="batch 7 has more nodes or edges than pad's sizes"):
        subgraph.check_all()
    subgraph.check_all()  # told once
    arrays, masks = arrays_of(drawing, block)
    assert not masks[0][:60].any()
    assert not masks[1][:112].any()
    assert not arrays[0].any()
    assert arrays[1].max() < 60
    for batch in range(RING):
        drawing.begin(subgraph, seeds, batch, words)
        assert subgraph.leave_unchecked()
    with pytest.raises(ValueError, match="batch 0 has more nodes"):
        drawing.begin(subgraph, seeds, 9, words)


def test_what_may_be_drawn_again_is_waited_for(device):
    """Without a bound of what a batch needs, it is not handed over unchecked."""
    drawing, seeds = small(device, padding=(*SIZES, False, False))
    subgraph = drawing.subgraph(room=1)
    block = drawing.begin(subgraph, seeds, 0, drawing.plan.block_words)
    assert not subgraph.leave_unchecked()
    expected = drawing.expected(seeds, 0)
    assert not subgraph.settle()
    assert drawing.read(subgraph, drawing.written(subgraph)) == expected
    block = drawing.begin(subgraph, seeds, 0, drawing.plan.block_words)
    subgraph.settle()
    assert_padded(drawing, block, padded(expected, drawing.graph, drawing.options, *SIZES))
    without, seeds = small(device)
    subgraph = without.subgraph()
    without.begin(subgraph, seeds, 0, 1000)
    assert not subgraph.leave_unchecked()
    subgraph.settle()


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_staged_batches(device, cuda_graph):
    """Uploaded, launched and collected one by one: what others record is `launch` alone."""
    drawing, seeds = small(device, cuda_graph, (*SIZES, False, False))
    subgraph, words = drawing.subgraph(), drawing.plan.block_words
    for batch in range(RING + 2):
        block = drawing.begin(subgraph, seeds, batch, words, staged=True)
        subgraph.launch()
        subgraph.collect()
        assert subgraph.leave_unchecked()
        subgraph.check_all()
        expected = drawing.expected(seeds, batch)
        assert_padded(drawing, block, padded(expected, drawing.graph, drawing.options, *SIZES))
        if batch == 0:  # a block elsewhere is no reason for other kernels
            del block
    with pytest.raises(RuntimeError, match="other kernels or memory than those that were recorded"):
        drawing.begin(subgraph, [Seeds(0, list(range(30)), None)], 0, words, staged=True)


@pytest.mark.parametrize("shape", [(9, 3), (5, 16), (6, 7), (4, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.float64])
def test_rows_of_padding_are_zero(device, shape, dtype):
    rows, mask = np.ones(shape, dtype), np.arange(shape[0]) % 3 > 0
    there, mask_there = put(device, rows), put(device, mask)
    size = rows.nbytes // len(rows)
    device.blank_rows(address_of(there), size, address_of(mask_there), len(rows))
    device.synchronize()
    np.testing.assert_array_equal(get(there), np.where(mask[:, None], rows, 0))


def test_errors(device):
    with pytest.raises(ValueError, match="sizes must not be negative"):
        device.blank_rows(0, -1, 0, 1)
    for padding, message in (
        (([], [], False, False), "needs sizes of nodes"),
        (([[8, 8]], [[8, 8]], False, False), "sections of padding must hold 3 entries"),
        (([[8, 8, 8]], [[8, 8], [8, 8]], False, False), "edges of padding must hold 1 entries"),
        (([[8, -1, 8]], [[8, 8]], False, False), r"sizes of padding must be in \[0, 2\^31\)"),
    ):
        with pytest.raises(ValueError, match=message):
            small(device, padding=padding)
    drawing, seeds = small(device, padding=(*SIZES, False, False))
    with pytest.raises(ValueError, match="needs a block of `block_words` entries"):
        drawing.begin(drawing.subgraph(), seeds, 0, 5)
    drawing, seeds = small(device, padding=(*SIZES, False, True))
    with pytest.raises(ValueError, match="the plan pads other batches"):
        drawing.begin(drawing.subgraph(), seeds, 0, drawing.plan.block_words)
    drawing, seeds = small(device)
    with pytest.raises(ValueError, match="only padded batches"):
        drawing.begin(drawing.subgraph(), seeds, 0, 1000, staged=True)
    backward = ([[8, 8, 8]], [[8, 8]], False, False)
    with pytest.raises(ValueError, match="only batches of in-neighbours"):
        Drawing(device, drawing.graph, drawing.options, False, True, backward)
    plain = device, drawing.graphs, drawing.hops, False, [(0, 8, 0)], [True]
    assert _native.DevicePlan(*plain).lengths == []
