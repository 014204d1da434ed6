"""Seeds that a device makes of links and of negatives: distinct and ascending, or a tree each."""

from dataclasses import replace as replaced

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native
from khop.data.steps import run
from khop.sampler.drawing.negative import Candidates, NegativeSampler
from support.devices import KINDS, address_of, empty, get, open_device
from support.kernels import cases
from support.kernels.device_blocks import Drawing
from support.reference.sampler import Options, Seeds


class LinkDrawing(Drawing):
    """Batches of links, whose plan names what they exclude."""

    def launch(self, subgraph, seeds, batch, block, words, **how):
        excluded, self.options.excluded = self.options.excluded, {}
        super().launch(subgraph, seeds, batch, block, words, **how)
        self.options.excluded = excluded


def random_graph(rng, counts, ends, degree):
    """Return a graph with an edge type for each pair of `ends`, from sources to destinations."""
    relations = []
    for source, destination in ends:
        degrees = rng.integers(0, degree + 1, counts[destination])
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        indices = rng.integers(0, counts[source], indptr[-1])
        relations.append(cases.Relation(source, destination, indptr, indices.astype(np.int32)))
    return cases.Graph([*counts], [0] * len(counts), [*counts], relations)


def edges_of(relation, by_source):
    """{(source, destination)} of links that are edges: rows are of sources or of destinations."""
    rows = np.repeat(np.arange(relation.num_rows), np.diff(relation.indptr)).tolist()
    neighbors = relation.indices.tolist()
    return set(
        zip(rows, neighbors, strict=True) if by_source else zip(neighbors, rows, strict=True)
    )


class Links:
    """Links of a batch with their negatives, drawn by the CPU and laid out in plain NumPy."""

    def __init__(self, data, rng, graph, types, disjoint, by_source, run_key):
        self.by_source = by_source
        self.types, self.disjoint, self.run_key = types, disjoint, run_key
        draw = data.draw
        self.mode = draw(st.sampled_from([None, "binary", "triplet"]))
        self.amount = draw(st.integers(1, 3)) if self.mode == "triplet" else 1
        self.strict = self.mode is not None and draw(st.booleans())
        self.timed = disjoint and draw(st.booleans())
        self.edges = edges_of(graph.relations[0], by_source)
        counts = [graph.counts[t] for t in types]
        weighted = [draw(st.booleans()) for _ in counts]
        self.candidates = [
            Candidates(
                n,
                rng.integers(0, 3, n) + np.eye(1, n)[0] if w else None,
                rng.integers(0, 9, n) if self.timed else None,
            )
            for n, w in zip(counts, weighted, strict=True)
        ]
        self.counts = counts
        both = [(0, by_source), (1, not by_source)]
        self.excluded = both[: draw(st.integers(0, 2))]

    def plan(self, device):
        src, dst = (candidates.columns for candidates in self.candidates)
        relation = 0 if self.strict else None
        kind = self.mode == "binary", self.amount, relation, self.by_source, self.excluded
        return _native.DeviceLinkPlan(device, self.types, src, dst, *kind)

    def choose(self, rng, count):
        """Choose the links of a batch."""
        self.src, self.dst = (rng.integers(0, n, count) for n in self.counts)
        self.times = rng.integers(0, 9, count) if self.timed else None
        self.num_negatives = 0 if self.mode is None else count * self.amount
        if self.mode == "binary":
            self.num_negatives = -(-count // 2)

    def negatives(self, batch):
        """Return sources and destinations of negatives, or None if there are none."""
        count = self.num_negatives
        sources = None
        if self.mode == "triplet":
            repeat = np.tile if self.disjoint else np.repeat
            sources = repeat(self.src, self.amount)
        times = None if self.times is None else np.tile(self.times, self.amount)[:count]

        def are_edges(src, dst):
            yield from ()
            pairs = zip(src.tolist(), dst.tolist(), strict=True)
            return np.array([pair in self.edges for pair in pairs], np.bool_)

        sampler = NegativeSampler(self.candidates[1], self.candidates[0])
        check = are_edges if self.strict else None
        try:
            return run(sampler.sample(count, sources, times, self.run_key, batch, check))
        except ValueError:
            return None

    def lay_out(self, negatives):
        """Return seeds, and positions of ends as the device writes them."""
        src, dst, times = self.src, np.concatenate([self.dst, negatives[1]]), self.times
        if self.mode == "binary":
            src = np.concatenate([src, negatives[0]])
        one_type = self.types[0] == self.types[1]
        src_times, dst_times = (
            None if times is None else np.resize(times, len(side)).tolist() for side in (src, dst)
        )
        if self.disjoint:
            at = [np.arange(len(src)), np.arange(len(dst))]
            if self.mode == "triplet":
                count = len(self.src)
                at[1][count:] = at[1][count:].reshape(self.amount, count).T.ravel()
            if one_type:
                both = None if times is None else src_times + dst_times
                seeds = [Seeds(self.types[0], [*src, *dst], both)]
                at[1] += len(src)
            else:
                seeds = [
                    Seeds(self.types[0], src.tolist(), src_times),
                    Seeds(self.types[1], dst.tolist(), dst_times),
                ]
        elif one_type:
            ids, places = np.unique(np.concatenate([src, dst]), return_inverse=True)
            seeds, at = [Seeds(self.types[0], ids.tolist(), None)], [places]
        else:
            made = [np.unique(side, return_inverse=True) for side in (src, dst)]
            seeds = [
                Seeds(t, ids.tolist(), None) for t, (ids, _) in zip(self.types, made, strict=True)
            ]
            at = [places for _, places in made]
        return seeds, np.concatenate(at)

    def excluded_pairs(self):
        """{edge type: {(row's node, neighbour)}}."""
        both = self.src.tolist(), self.dst.tolist()
        return {
            relation: set(zip(*(both if by_source else both[::-1]), strict=True))
            for relation, by_source in self.excluded
        }


@pytest.mark.parametrize("kind", KINDS)
@cases.examples(120)
@given(st.data())
def test_batches(kind, data):
    """One type or two, trees or not, at times, all negatives, batches that grow and shrink."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = [draw(st.integers(2, 30)) for _ in range(2)]
    types = draw(st.sampled_from([(0, 0), (0, 1), (1, 0)]))
    disjoint, by_source = draw(st.booleans()), draw(st.booleans())
    ends = [types[::-1], types] if by_source else [types, types[::-1]]
    graph = random_graph(rng, counts, [*ends, (0, 0)], draw(st.sampled_from([1, 8])))
    fanouts = [[2, 1], [1, 2], [-1, 0]]
    options = Options(fanouts, [False] * 3, disjoint=disjoint, run=5)
    device = open_device(kind, draw(st.integers(0, 1000)))
    drawing = LinkDrawing(device, graph, options, draw(st.booleans()))
    links = Links(data, rng, graph, types, disjoint, by_source, 5)
    plan = links.plan(device)
    subgraph = drawing.subgraph(draw(st.sampled_from([1, 1 << 22])))
    for batch, count in enumerate(draw(st.lists(st.integers(1, 90), min_size=3, max_size=4))):
        links.choose(rng, count)
        sides = (2 if links.mode == "binary" else 1) * links.num_negatives
        index = empty(device, 2 * count + sides, np.int64)
        request = (plan, links.src, links.dst, links.times, links.num_negatives, address_of(index))
        drawing.options = replaced(options, excluded=links.excluded_pairs())
        words = draw(st.sampled_from([0, drawing.plan.block_words]))
        block = drawing.begin(subgraph, [], batch, words, links=request)
        negatives = links.negatives(batch)
        # Rounds of draws find others than those chosen among all that are valid, or none.
        if subgraph.lacks_negatives():
            assert links.strict
            continue
        assert negatives is not None
        seeds, expected = links.lay_out(negatives)
        assert get(index).tolist() == expected.tolist()
        drawing.check(seeds, batch, subgraph, block)


@pytest.mark.parametrize("degree", [15, 16, 17, 33, 1000, 100_000])
@pytest.mark.parametrize("column", [np.int32, np.int64])
def test_strict_negatives_of_a_hub(device, degree, column):
    """Many threads read a long row: each of its entries is found, and nothing else."""
    num_nodes, count = 2 * degree + 3, 40
    indices = np.append(np.arange(0, 2 * degree, 2), 1).astype(column)
    relation = cases.Relation(1, 0, np.array([0, degree, degree + 1]), indices)
    graph = cases.Graph([2, num_nodes], [0, 0], [2, num_nodes], [relation])
    drawing = Drawing(device, graph, Options([[1]], [False]))
    hub, all_nodes = (2, None, None, None), (num_nodes, None, None, None)
    plan = _native.DeviceLinkPlan(device, (0, 1), hub, all_nodes, False, 1, 0, True)
    src, dst = np.arange(count) % 2, np.zeros(count, np.int64)
    index, subgraph = empty(device, 3 * count, np.int64), drawing.subgraph()
    block = drawing.begin(
        subgraph, [], 7, 0, links=(plan, src, dst, None, count, address_of(index))
    )
    assert not subgraph.lacks_negatives()

    def are_edges(src, dst):
        yield from ()
        return np.where(src == 0, (dst % 2 == 0) & (dst < 2 * degree), dst == 1)

    sampler = NegativeSampler(Candidates(num_nodes))
    expected = run(sampler.sample(count, src, None, 0, 7, are_edges))[1]
    block = drawing.written(subgraph)
    nodes = np.array(drawing.read(subgraph, block).nodes[1])
    assert nodes[get(index)[2 * count :]].tolist() == expected.tolist()
    once = run(sampler.sample(count, src, None, 0, 7))[1]
    assert (once != expected).any()  # a round alone would not have done


def test_no_links(device):
    graph = random_graph(np.random.default_rng(0), [9], [(0, 0)], 3)
    drawing = Drawing(device, graph, Options([[2]], [False]))
    all_nodes = (9, None, None, None)
    plan = _native.DeviceLinkPlan(device, (0, 0), all_nodes, all_nodes, True, 1, 0, False)
    subgraph, none = drawing.subgraph(), np.empty(0, np.int64)
    subgraph.draw(drawing.plan, (), 1, 0, (), links=(plan, none, none, None, 0, 0))
    assert not subgraph.lacks_negatives()
    assert subgraph.sizes() == ([0], [0], [[0, 0]], [[0]])


def test_bad_arguments(device):
    """What would read or write beyond memory is refused."""
    graph = random_graph(np.random.default_rng(0), [9, 5], [(0, 1)], 3)
    drawing = Drawing(device, graph, Options([[2]], [False]))
    subgraph, index = drawing.subgraph(), empty(device, 99, np.int64)
    nine, five = (9, None, None, None), (5, None, None, None)

    def plan(src=nine, dst=five, types=(0, 1), amount=1, relation=0, excluded=(), on=device):
        return _native.DeviceLinkPlan(on, types, src, dst, False, amount, relation, False, excluded)

    def draw(plan, src=(0, 1), dst=(2, 3), times=None, count=2, address=None):
        ends = np.array(src), np.array(dst), times
        address = address_of(index) if address is None else address
        subgraph.draw(drawing.plan, (), 1, 0, (), links=(plan, *ends, count, address))

    with pytest.raises(ValueError, match="a column of candidates must hold 5 entries"):
        plan(dst=(5, np.arange(4), None, None))
    with pytest.raises(ValueError, match="sums and times of candidates must ascend"):
        plan(dst=(5, np.array([1, 2, 3, 4, 3]), None, None))
    with pytest.raises(ValueError, match="sums of candidates must not be negative"):
        plan(dst=(5, np.arange(-1, 4), None, None))
    with pytest.raises(ValueError, match="names a node that does not exist"):
        plan(dst=(5, None, np.array([0, 1, 2, 3, 5]), None))
    with pytest.raises(ValueError, match="a negative number of candidates"):
        plan(dst=(-1, None, None, None))
    with pytest.raises(ValueError, match="amount must be at least 1"):
        plan(amount=0)
    with pytest.raises(ValueError, match="the links' plan is one of another device"):
        draw(plan(on=_native.emulated_device(3)))
    with pytest.raises(ValueError, match="candidates must hold 9 entries, but holds 5"):
        draw(plan(src=five))
    with pytest.raises(IndexError, match="edge type"):
        draw(plan(relation=1))
    with pytest.raises(IndexError, match="edge type"):
        draw(plan(excluded=[(1, False)]))
    with pytest.raises(IndexError, match="node type"):
        draw(plan(types=(0, 2)))
    with pytest.raises(ValueError, match="negatives of other links"):
        draw(plan(), count=3)
    with pytest.raises(ValueError, match="negatives of other links"):
        draw(plan(), count=-1)
    with pytest.raises(ValueError, match="positions of ends need an address"):
        draw(plan(), address=0)
    with pytest.raises(ValueError, match="destinations must hold 2 entries"):
        draw(plan(), dst=(1,))
    with pytest.raises(IndexError, match="node 5 does not exist"):
        draw(plan(), dst=(5, 1))
    with pytest.raises(ValueError, match="links with times need a disjoint batch"):
        draw(plan(), times=np.zeros(2, np.int64))
    draw(plan())
    assert not subgraph.lacks_negatives()
