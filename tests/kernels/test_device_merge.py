"""Batches on a device whose rows other devices draw: those of the reference, bit for bit."""

from dataclasses import replace as replaced

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native
from support.devices import KINDS, address_of, empty, get, open_device, put
from support.kernels import cases, hop_calls
from support.kernels.device_batches import read
from support.reference.sampler import Seeds


class DeviceOwners:
    """Rows divided among owners, each of which draws on a device of its own.

    Args:
        open_one: opens a device.
        graph: the graph.
        cuts: positions at which each node type is divided.
        disjoint: batches are disjoint.
    """

    def __init__(self, open_one, graph, cuts, disjoint):
        self.graph, self.pairs, self.disjoint = graph, graph.pairs(), disjoint
        self.bounds, csrs = graph.parts(cuts)
        num_nodes = [graph.num_nodes[destination] for _, destination in self.pairs]
        self.owners = []
        for of_part in csrs:
            device = open_one()
            graphs = [_native.DeviceGraph(device, csr) for csr in of_part]
            draw = _native.DeviceRowDraw(device, graphs, num_nodes, disjoint)
            self.owners.append((device, draw))

    def draw(self, device, subgraph, seeds, options):
        """Draw a batch on `device`, with the draws of all owners."""
        hops = hop_calls.table(
            options.fanouts, options.replace, options.weighted, options.last, **options.method
        )
        graphs = [_native.DeviceGraph(device, csr) for csr in self.graph.csrs()]
        names = [(0, 8, 0)] * len(graphs), [options.with_edges] * len(graphs)
        plan = _native.DevicePlan(device, graphs, hops, False, *names)
        seeds = [
            (t, *(None if a is None else np.array(a, np.int64) for a in some)) for t, *some in seeds
        ]
        subgraph.draw(plan, seeds, options.run, options.batch, (), merged=True)
        is_timed = any(times is not None and len(times) for _, _, times in seeds)
        order = sorted(range(len(hops)), key=lambda r: self.pairs[r][0])
        for hop in range(len(hops[0]) if hops else 0):
            asked = [r for r in order if options.fanouts[r][hop] != 0]
            replies = [self._ask(device, subgraph, r, hops, hop, options, is_timed) for r in asked]
            self._merge(device, subgraph, replies, options.with_edges)
        if options.reversals:
            subgraph.add_reverses(options.reversals, options.keep_edges)

    def _ask(self, device, subgraph, relation, hops, hop, options, is_timed):
        """Return counts of an edge type's rows, where they begin, and their edges."""
        source, destination = self.pairs[relation]
        size = subgraph.frontier_size(destination)
        keys, times = (empty(device, size, np.int64) for _ in range(2))
        address = address_of(times) if is_timed else 0
        subgraph.write_frontier(destination, address_of(keys), address)
        device.synchronize()
        keys, times = get(keys), get(times)
        bits = max(0, self.graph.num_nodes[destination] - 1).bit_length()
        ids = keys & (1 << bits) - 1 if self.disjoint else keys
        bounds = self.bounds[destination]
        keyed = hops[relation][hop].at(options.run, options.batch, hop, relation, source)
        counts, begins, entries, begin = np.zeros(size, np.int64), np.zeros(size, np.int64), [], 0
        for (own, draw), low, high in zip(self.owners, bounds, bounds[1:], strict=False):
            rows = np.flatnonzero((ids >= low) & (ids < high))
            timed = times[rows] if is_timed else None
            drawn, words = self._drawn(own, draw, relation, keyed, keys[rows], timed, options)
            counts[rows] = drawn
            begins[rows] = begin + np.cumsum(drawn) - drawn
            entries.append(words)
            begin += int(drawn.sum())
        return counts, begins, np.concatenate(entries)

    @staticmethod
    def _drawn(device, draw, relation, keyed, keys, times, options):
        """Draw rows at an owner, in two sets. Return counts and edges."""
        on_device = put(device, keys), None if times is None else put(device, times)
        at = [0 if array is None else address_of(array) for array in on_device]
        first, size = len(keys) // 3, len(keys)
        asked = [
            (relation, keyed, at[0], at[1], first),
            (relation, keyed, at[0] + 8 * first, at[1] and at[1] + 8 * first, size - first),
        ]
        counts = empty(device, size, np.int64)
        totals = draw.draw(asked, address_of(counts))
        words = empty(device, (sum(totals), 1 + options.with_edges), np.int64)
        draw.write(address_of(words), options.with_edges)
        device.synchronize()
        counts = get(counts)
        assert totals == [counts[:first].sum(), counts[first:].sum()]
        return counts, get(words)

    @staticmethod
    def _merge(device, subgraph, replies, with_edges):
        before = np.cumsum([0, *(len(words) for _, _, words in replies)])
        words = [np.empty((0, 1 + with_edges), np.int64), *(words for _, _, words in replies)]
        none = np.empty(0, np.int64)
        arrays = [
            np.concatenate([none, *(counts for counts, _, _ in replies)]),
            np.concatenate(
                [none, *(b + first for (_, b, _), first in zip(replies, before, strict=False))]
            ),
            np.concatenate(words),
        ]
        kept = [put(device, array) for array in arrays]
        subgraph.merge(*map(address_of, kept), len(arrays[0]), kept)


@st.composite
def graph_and_batches(draw):
    """A graph, where it is divided, and batches without exclusions to draw in turn."""
    graph, disjoint, with_edges = draw(cases.graphs()), draw(st.booleans()), draw(st.booleans())
    cuts = draw(
        st.lists(
            st.lists(st.integers(0, 12), min_size=2, max_size=2),
            min_size=len(graph.counts),
            max_size=len(graph.counts),
        )
    )
    batches = draw(st.lists(cases.batches(graph, disjoint, with_edges), min_size=1, max_size=2))
    plain = [(seeds, replaced(options, excluded={}, induced=False)) for seeds, options in batches]
    return graph, cuts, disjoint, with_edges, plain


@pytest.mark.parametrize("kind", KINDS)
@cases.examples(80)
@given(graph_and_batches(), st.data())
def test_any_options(kind, case, data):
    """Three owners. With little room at first, hops are merged again."""
    graph, cuts, disjoint, with_edges, batches = case
    device = open_device(kind, data.draw(st.integers(0, 1000)))
    owners = DeviceOwners(lambda: open_device(kind, 1), graph, cuts, disjoint)
    room = data.draw(st.sampled_from([1, 8, 1 << 22]))
    subgraph = _native.DeviceSubgraph(
        device, graph.num_nodes, graph.pairs(), with_edges, disjoint, room=room
    )
    for seeds, options in batches:
        owners.draw(device, subgraph, seeds, options)
        assert read(device, subgraph, graph, options) == graph.sample(seeds, options)


def ring(device):
    """Return a ring of 6 nodes, and a plan of two hops that take all neighbours."""
    relation = cases.Relation(0, 0, np.arange(7), np.roll(np.arange(6), -1).astype(np.int32))
    graph = cases.Graph([6], [0], [6], [relation])
    on_device = [_native.DeviceGraph(device, csr) for csr in graph.csrs()]
    hops = hop_calls.table([[-1, 2]], False, [False], False)
    plan = _native.DevicePlan(device, on_device, hops, False, [(0, 8, 0)], [False])
    return on_device, hops, plan


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused(kind):
    """Wrong numbers of rows, hops too many, neighbours and rows that do not exist."""
    device = open_device(kind)
    graphs, hops, plan = ring(device)
    subgraph = _native.DeviceSubgraph(device, [6], [(0, 0)], False)
    seeds = [Seeds(0, np.array([2, 5]), None)]
    one, zero, beyond = (put(device, np.full(2, value)) for value in (1, 0, 6))
    subgraph.draw(plan, seeds, 1, 0, (), merged=True)
    with pytest.raises(ValueError, match="a hop has 2 rows, but replies are of 1"):
        subgraph.merge(address_of(one), address_of(zero), address_of(one), 1, ())
    subgraph.merge(address_of(one), address_of(zero), address_of(beyond), 2, ())
    with pytest.raises(IndexError, match="node 6 does not exist, but an edge leads to it"):
        subgraph.frontier_size(0)
    subgraph.draw(plan, seeds, 1, 0, ())
    with pytest.raises(ValueError, match="no further hop that others draw"):
        subgraph.merge(address_of(one), address_of(zero), address_of(one), 2, ())
    draw = _native.DeviceRowDraw(device, graphs, [6], False)
    keys, counts = put(device, np.array([1, 6])), empty(device, 2, np.int64)
    with pytest.raises(IndexError, match="node 6 is not one of the graph's rows"):
        draw.draw([(0, hops[0][0], address_of(keys), 0, 2)], address_of(counts))
    assert draw.draw([(0, hops[0][1], address_of(keys), 0, 1)], address_of(counts)) == [1]
    with pytest.raises(IndexError, match="no such edge type"):
        draw.draw([(1, hops[0][0], address_of(keys), 0, 1)], address_of(counts))
    with pytest.raises(ValueError, match="a fan-out of 0"):
        draw.draw([(0, hop_calls.options(0), address_of(keys), 0, 1)], address_of(counts))
    with pytest.raises(ValueError, match="weighted draws need a graph with weights"):
        weighted = hop_calls.options(1, weighted=True)
        draw.draw([(0, weighted, address_of(keys), 0, 1)], address_of(counts))
    device.synchronize()
