"""`Hgt`: plain Python's draws, all edges among them, and the chances of the paper."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import k_hop_subgraph

from khop import codec
from khop.errors import ProtocolError
from khop.loader import HGTLoader, NeighborLoader
from khop.sampler import Hgt, SamplingSpec
from khop.typing import NODE
from support.cluster import twins
from support.reference import oracle, saint, subgraphs

TYPES = list(twins.SIZES)


def rows_of(data):
    """(numbers of nodes, rows of each edge type) of a HeteroData or Data."""
    if isinstance(data, Data):
        edge_type = (NODE, "to", NODE)
        return {NODE: data.num_nodes}, {edge_type: saint.rows_of(*data.edge_index, data.num_nodes)}
    counts = {t: data[t].num_nodes for t in data.node_types}
    rows = {t: saint.rows_of(*data[t].edge_index, counts[t[2]]) for t in data.edge_types}
    return counts, rows


def assert_all_edges(batch, data):
    """A batch has every edge among its nodes once, under its own id, sorted by destination."""
    for edge_type in data.edge_types:
        src, dst = (batch[edge_type[i]].n_id for i in (0, 2))
        store, whole = batch[edge_type], data[edge_type].edge_index
        inside = torch.isin(whole[0], src) & torch.isin(whole[1], dst)
        assert sorted(store.e_id.tolist()) == inside.nonzero().view(-1).tolist()
        ends = torch.stack([src[store.edge_index[0]], dst[store.edge_index[1]]])
        assert torch.equal(ends, whole[:, store.e_id])
        assert (store.edge_index[1].diff() >= 0).all()


@settings(max_examples=40, deadline=None)
@given(
    data=st.one_of(twins.heterogeneous_graphs(), twins.homogeneous_graphs()),
    draw=st.data(),
    seed=st.integers(0, 2**32),
)
def test_batches_are_those_of_plain_python(data, draw, seed):
    """Of any graph: types without nodes or edges, parallel edges, loops, hubs."""
    counts, rows = rows_of(data)
    seed_type = draw.draw(st.sampled_from([t for t, count in counts.items() if count]))
    ids = st.lists(st.integers(0, counts[seed_type] - 1), min_size=1, max_size=6, unique=True)
    seeds = draw.draw(ids)
    length = draw.draw(st.integers(1, 3))
    numbers = st.lists(st.integers(0, 5), min_size=length, max_size=length)
    samples = {t: draw.draw(numbers) for t in counts}
    is_typed = isinstance(data, HeteroData)
    given = (seed_type, torch.tensor(seeds)) if is_typed else torch.tensor(seeds)
    method = Hgt(samples if is_typed else samples[NODE])
    for number, batch in enumerate(NeighborLoader(data, method, given, batch_size=4, seed=seed)):
        place = oracle.run_key(seed, 0, 0), number
        roots = seeds[4 * number : 4 * number + 4]
        want = subgraphs.hgt((counts, rows), (seed_type, roots), samples, place)
        found = {t: batch[t].n_id.tolist() for t in counts} if is_typed else {NODE: batch.n_id}
        assert {t: list(map(int, ids)) for t, ids in found.items()} == want
        if is_typed:
            assert_all_edges(batch, data)


def test_repeated_seeds_give_once():
    """As in batches of any other method they stay; their budgets are those of one."""
    data, samples = twins.heterogeneous(), {t: [4, 3] for t in TYPES}
    seeds = torch.tensor([3, 3, 8])
    (batch,) = NeighborLoader(data, Hgt([4, 3]), ("paper", seeds), batch_size=3, seed=1)
    place = oracle.run_key(1, 0, 0), 0
    want = subgraphs.hgt(rows_of(data), ("paper", seeds.tolist()), samples, place)
    assert {t: batch[t].n_id.tolist() for t in TYPES} == want


def test_numbers_of_nodes():
    """20 seeds and 5 of each type in 4 iterations, with all edges between them; as PyG tests it."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 100, 200
    for edge_type, count in (
        (("paper", "cites", "paper"), 500),
        (("paper", "by", "author"), 1000),
        (("author", "of", "paper"), 1000),
    ):
        sizes = (data[edge_type[i]].num_nodes for i in (0, 2))
        ends = [torch.randint(size, (count,), generator=generator) for size in sizes]
        data[edge_type].edge_index = torch.stack(ends)
    loader = NeighborLoader(data, Hgt([5] * 4), ("paper", None), batch_size=20, seed=0)
    assert len(loader) == 5
    for batch in loader:
        assert batch["paper"].batch_size == 20
        assert len(batch["paper"].n_id.unique()) == 20 + 4 * 5
        assert len(batch["author"].n_id.unique()) == 4 * 5
        assert_all_edges(batch, data)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_as_many_samples_as_nodes_are_the_neighbourhood(hops):
    data = twins.homogeneous()
    (batch,) = NeighborLoader(data, Hgt([150] * hops), torch.tensor([3, 77]), batch_size=2)
    nodes, _, _, mask = k_hop_subgraph([3, 77], hops, data.edge_index, num_nodes=150)
    assert sorted(batch.n_id.tolist()) == nodes.tolist()
    assert sorted(batch.e_id.tolist()) == mask.nonzero().view(-1).tolist()


def test_types_that_cannot_be_reached():
    data = twins.heterogeneous()
    (batch,) = NeighborLoader(data, Hgt([9, 9]), ("venue", torch.arange(6)), batch_size=6)
    assert [batch[t].num_nodes for t in TYPES] == [0, 0, 6, 0]  # no edge leads to venues
    assert batch["paper"].x.shape == (0, 1)
    for edge_type in data.edge_types:
        assert batch[edge_type].edge_index.shape == (2, 0)


def test_hubs_keep_all_of_their_edges():
    """Rows of more than 50 edges, which torch-sparse draws from."""
    ends = torch.stack([torch.arange(1, 201), torch.zeros(200, dtype=torch.long)])
    data = Data(edge_index=ends, num_nodes=201)
    (batch,) = NeighborLoader(data, Hgt([200]), torch.tensor([0]))
    assert sorted(batch.e_id.tolist()) == list(range(200))


def test_chances_of_nodes():
    """Without replacement, in proportion to squares of budgets: 1/2 + 1/3, 1/2, 1/3 and 1/3.

    0 <- {1, 2}, 5 <- {1, 3, 4}: of the seeds 0 and 5.
    """
    data = Data(edge_index=torch.tensor([[1, 2, 1, 3, 4], [0, 0, 5, 5, 5]]), num_nodes=6)
    weights = {1: 25, 2: 9, 3: 4, 4: 4}  # times 36
    total, count = sum(weights.values()), 1500
    chances = {
        (a, b): weights[a] / total * weights[b] / (total - weights[a])
        for a, b in itertools.permutations(weights, 2)
    }
    seen = Counter()
    seeds = torch.tensor([0, 5]).repeat(count)
    for batch in NeighborLoader(data, Hgt([2]), seeds, batch_size=2, seed=3):
        seen[tuple(batch.n_id[2:].tolist())] += 1
    assert seen.keys() <= chances.keys()
    observed = [seen[pair] for pair in chances]
    assert stats.chisquare(observed, [count * p for p in chances.values()]).pvalue > 1e-4


def test_it_travels_by_its_fields():
    for samples in ([3, 2], {"b": [1], "a": [0]}):
        spec = SamplingSpec.create(Hgt(samples), [("a", "to", "b")], subgraph_type="induced")
        sent = codec.to_json(spec)
        assert sent["method"]["program"] == {"num_samples": samples}
        assert codec.from_json(SamplingSpec, sent, "a spec") == spec
        for wrong in (None, [], "3", [-1], [2**24 + 1], {"a": [1], "b": [1, 2]}, {}, [0] * 65):
            program = {**sent, "method": {**sent["method"], "program": {"num_samples": wrong}}}
            with pytest.raises(ProtocolError, match="num_samples"):
                codec.from_json(SamplingSpec, program, "a spec")


@pytest.mark.parametrize(
    "samples,message",
    [
        (5, "num_samples must hold 1 to 64 integers"),
        ([True], "num_samples must hold 1 to 64 integers"),
        ([1.0], "num_samples must hold 1 to 64 integers"),
        ({3: [1]}, "by texts"),
        ({}, "must name 1 to 4,096 node types"),
        ({"paper": [1, 2], "author": [1]}, "as many iterations .* add 0s"),
    ],
)
def test_malformed_numbers(samples, message):
    with pytest.raises(ValueError, match=message):
        Hgt(samples)


def test_what_it_does_not_go_with():
    data, seeds = twins.heterogeneous(), ("paper", torch.arange(3))
    samples = {t: [2] for t in TYPES}
    for wrong in ({"paper": [2]}, {**samples, "book": [2]}):
        with pytest.raises(ValueError, match="must name the graph's node types"):
            NeighborLoader(data, Hgt(wrong), seeds)
    NeighborLoader(data, Hgt(samples), seeds)
    for options in ({"disjoint": True}, {"time_attr": "time"}):
        with pytest.raises(ValueError, match="makes no disjoint batches"), twins.quiet():
            NeighborLoader(data, Hgt([2]), seeds, **options)
    with pytest.raises(ValueError, match="Hgt has no replace"):
        NeighborLoader(data, Hgt([2]), seeds, replace=True)


def test_the_loader():
    """That of the method, without what the method settles; also of graphs of one type."""
    data, seeds = twins.heterogeneous(), ("paper", torch.arange(9))
    ours = HGTLoader(data, [4, 4], seeds, batch_size=4, seed=1)
    theirs = NeighborLoader(data, Hgt([4, 4]), seeds, batch_size=4, seed=1)
    for mine, other in zip(ours, theirs, strict=True):
        twins.same_batch(mine, other)
    with pytest.raises(TypeError, match="HGTLoader has no argument replace: leave it out"):
        HGTLoader(data, [4], seeds, replace=True)
    (batch,) = HGTLoader(twins.homogeneous(), [4], torch.tensor([3]), True, seed=1)
    assert batch.num_nodes == 5
