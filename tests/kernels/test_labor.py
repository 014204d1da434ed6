"""LABOR: exactly min(k, degree) neighbours a row, by numbers that rows share.

That batches equal the oracle's in any combination of options is tested where those of other
methods are: `test_options` and `test_device_sample` draw it, too.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from khop import _native
from support.devices import open_device
from support.kernels import hop_calls
from support.kernels.device_batches import hub_graph, read
from support.kernels.hop_calls import options
from support.kernels.runs import at_once, read as read_on_cpu
from support.reference import oracle, statistics as statistics_of_draws
from support.reference.sampler import Options, Seeds

RUN = 0x1234_5678_9ABC_DEF0


def labor(count, key, **more):
    return options(count, False, key, method="labor", **more)


def whole_rows(num_rows, degree):
    """Rows all of whose neighbours are nodes 0 .. degree - 1."""
    indptr = np.arange(num_rows + 1) * degree
    return _native.Csr(indptr, np.tile(np.arange(degree, dtype=np.int32), num_rows))


def numbers(key, nodes, tree=0):
    """r_t of nodes: 64 bits each."""
    low_high = (itertools.islice(oracle.words(key, t, tree), 2) for t in nodes)
    return [high << 32 | low for low, high in low_high]


def test_a_row_takes_those_of_least_number():
    """Worked out: of eight neighbours the three of least r_t, in the order of the row."""
    key = oracle.labor_key(RUN, 5, 2, 1)
    assert labor(3, 0).at(RUN, 5, 1, 7, 2).key == key  # whatever the edge type
    r = numbers(key, range(8))
    want = sorted(sorted(range(8), key=lambda t: r[t])[:3])
    counts, drawn, edges = _native.sample_rows(whole_rows(1, 8), np.array([0]), labor(3, key))
    assert (counts.tolist(), drawn.tolist(), edges.tolist()) == ([3], want, want)


def test_keys_depend_on_the_hop_unless_hops_depend_on_each_other():
    def keys(**method):
        return [labor(3, 0, **method).at(RUN, 5, hop, 0, 0).key for hop in range(4)]

    assert len(set(keys())) == 4
    assert keys(layer_dependency=True) == [keys()[0]] * 4
    by_place = {
        labor(3, 0).at(*place).key for place in itertools.product([1, 2], [0, 1], [0], [9], [0, 1])
    }
    assert len(by_place) == 8


def test_draws_are_keyed_by_original_ids():
    """Renumbered neighbours win by the ids that they had."""
    key, ids = 77, np.random.default_rng(1).permutation(40)
    for dtype in (np.int32, np.int64):
        known = {"row_ids": np.array([5]), "neighbor_ids": ids.astype(dtype)}
        graph = _native.Csr(np.array([0, 40]), np.arange(40, dtype=np.int32), **known)
        _, drawn, _ = _native.sample_rows(graph, np.array([0]), labor(7, key))
        r = numbers(key, ids.tolist())
        assert drawn.tolist() == sorted(sorted(range(40), key=lambda p: r[p])[:7])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 49, 100, 2**40, -1])
def test_counts(count, weighted):
    """Exactly min(k, those that can be drawn), each once, in the order of the row."""
    rng = np.random.default_rng(count + 2)
    degrees = rng.choice([0, 1, 2, 5, 60, 300], 50)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, 1000, indptr[-1])
    weights = rng.random(len(indices)) * (rng.random(len(indices)) < 0.5)
    sums, guide = _native.weight_table(indptr, weights)
    graph = _native.Csr(indptr, indices, weight_sums=sums, weight_guide=guide)
    rows = np.arange(50)
    counts, _, edges = _native.sample_rows(graph, rows, labor(count, 3, weighted=weighted))
    drawable = np.add.reduceat(np.append(weights > 0, False), indptr[:-1]) * (degrees > 0)
    most = drawable if weighted else degrees
    assert counts.tolist() == (most if count < 0 else np.minimum(most, count)).tolist()
    assert (np.diff(edges) > 0).all()  # rows follow one another, too
    assert not weighted or (weights[edges] > 0).all()


def test_every_subset_is_as_likely_and_rows_agree():
    """Of one row chi-square over all subsets; rows with the same neighbours take the same."""
    graph, subsets = whole_rows(2, 6), []
    for batch in range(6000):
        key = labor(3, 0).at(RUN, batch, 0, 0, 0).key
        _, drawn, _ = _native.sample_rows(graph, np.array([0, 1]), labor(3, key))
        assert drawn[:3].tolist() == drawn[3:].tolist()
        subsets.append(tuple(drawn[:3].tolist()))
    chances = dict.fromkeys(itertools.combinations(range(6), 3), 1 / 20)
    assert statistics_of_draws.p_of_outcomes(subsets, chances) > 1e-4


def test_rows_of_different_degrees_share_what_both_may_take():
    """A row of 20 neighbours within one of 40: what is least among all is least among some."""
    graph = _native.Csr(np.array([0, 20, 60]), np.r_[0:20, 0:40].astype(np.int32))
    shared = 0
    for key in range(500):
        _, drawn, _ = _native.sample_rows(graph, np.array([0, 1]), labor(5, key))
        few, many = set(drawn[:5].tolist()), set(drawn[5:].tolist())
        assert {t for t in many if t < 20} <= few
        shared += len(few & many)
    # Of the larger row's five half are among the smaller row's neighbours; uniform draws of five of
    # 20 and five of 40 share 5 * 5 / 40 = 0.63.
    assert 2.3 < shared / 500 < 2.7


def test_weights_divide():
    """The least r_t / w_t, with Python's fractions; ratios beyond what a double can tell apart."""
    rng, key = np.random.default_rng(4), 9
    for degree in (3, 17, 90):
        weights = 10.0 ** rng.integers(-9, 9, degree) * (rng.random(degree) < 0.8)
        indptr = np.array([0, degree])
        sums, guide = _native.weight_table(indptr, weights)
        graph = _native.Csr(indptr, np.arange(degree), weight_sums=sums, weight_guide=guide)
        whole = np.diff(np.r_[0, sums.astype(object)])
        r = numbers(key, range(degree))
        drawable = [p for p in range(degree) if weights[p] > 0]
        order = sorted(drawable, key=lambda p: Fraction(r[p], int(whole[p])))
        _, drawn, _ = _native.sample_rows(graph, np.array([0]), labor(2, key, weighted=True))
        assert drawn.tolist() == sorted(order[:2])


def picks_of_hops(graph, fanouts, batch, **method):
    """The neighbours that each hop takes, of all its rows together; seed 0."""
    subgraph = _native.Subgraph([graph.num_rows], [(0, 0)], True)
    subgraph.begin()
    subgraph.add_seeds(0, np.array([0]))
    table = hop_calls.table([fanouts], False, [False], False, method="labor", **method)
    subgraph.sample([graph], table, RUN, batch)
    row, _ = ends = np.empty((2, subgraph.num_edges(0)), np.int64)
    nodes = np.empty(subgraph.num_nodes(0), np.int64)
    subgraph.write_nodes(0, nodes)
    subgraph.write_edge_index(0, *ends)
    cuts = np.cumsum(subgraph.edges_per_hop(0))[:-1]
    return [set(found.tolist()) for found in np.split(nodes[row], cuts)]


def test_the_layers_of_a_star_have_equal_nodes():
    """A centre, 0, and 200 leaves that know all leaves: what hop 1 takes, hop 2 takes again.

    Only with layer dependency; else hop 2 takes ten leaves of its own, by numbers that all of its
    rows share.
    """
    graph = _native.Csr(np.arange(202) * 200, np.tile(np.arange(1, 201), 201))
    common = 0
    for batch in range(40):
        first, second, third = picks_of_hops(graph, [10, 10, 10], batch, layer_dependency=True)
        assert first == second
        assert third == set()  # hop 2 found no node that hop 1 had not
        first, second = picks_of_hops(graph, [10, 10], batch)
        assert len(first) == len(second) == 10
        common += len(first & second)
    assert common / 40 < 1  # 10 * 10 / 200 = 0.5


def test_edge_types_share_numbers():
    """Two edge types to the same nodes take the same; those of another node type differ."""
    graph, same, other = whole_rows(1, 100), 0, 0
    for number in range(50):
        batch = _native.Subgraph([100, 100], [(0, 1), (0, 1), (1, 1)], True)
        batch.begin()
        batch.add_seeds(1, np.array([0]))
        table = hop_calls.table([[5]] * 3, False, [False] * 3, False, method="labor")
        batch.sample([graph] * 3, table, RUN, number)
        edges = [np.empty(5, np.int64) for _ in range(3)]
        for relation, out in enumerate(edges):
            batch.write_edges(relation, out)
        same += np.array_equal(edges[0], edges[1])
        other += np.array_equal(edges[0], edges[2])
    assert (same, other) == (50, 0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fanouts", [[15, 10, 5], [48, 3], [1000], [-1]])
def test_hubs_on_a_device(device, fanouts, weighted):
    """Degrees of 70,000, and fan-outs that take much memory to work in."""
    graph = hub_graph(weighted=weighted)
    seeds = [Seeds(0, [0, 3, 9, 3, 20, 0, 69_999], None)]
    drawn = Options([fanouts], [weighted], run=7, labor=True, layer_dependency=True)
    on_cpu = graph.subgraph(False)
    at_once(on_cpu, graph.csrs(), seeds, drawn)
    on_device = _native.DeviceSubgraph(device, graph.num_nodes, graph.pairs(), True, room=1 << 10)
    at_once(on_device, [_native.DeviceGraph(device, csr) for csr in graph.csrs()], seeds, drawn)
    assert read(device, on_device, graph, drawn) == read_on_cpu(on_cpu, graph, drawn)


def test_options_that_labor_lacks_are_refused():
    for wrong in ({"replace": True}, {"last": True}):
        with pytest.raises(ValueError, match="LABOR draws without replacement, and never the"):
            options(3, method="labor", **wrong)
    renumbered = _native.Csr(np.array([0, 1]), np.array([0]), np.array([7]))
    assert not renumbered.knows_neighbors
    with pytest.raises(ValueError, match="LABOR needs a graph with the neighbours' original ids"):
        _native.sample_rows(renumbered, np.array([0]), labor(1, 1))
    device = open_device("emulated")
    batch = _native.DeviceSubgraph(device, [1], [(0, 0)], True)
    with pytest.raises(ValueError, match="LABOR needs a graph with the neighbours' original ids"):
        batch.sample([_native.DeviceGraph(device, renumbered)], [[labor(1, 0)]], RUN, 0)
    for ids, error in (([1, 2], ValueError), ([[1]], ValueError), ([1.0], TypeError)):
        with pytest.raises(error, match="neighbor_ids"):
            _native.Csr(np.array([0, 1]), np.array([0]), neighbor_ids=np.array(ids))


def test_means_of_rows_are_unbiased_and_err_as_those_of_uniform_draws():
    """What a layer that takes means estimates, over the draws of 4000 batches.

    Three rows, of 12 neighbours, 30 that include these, and 5, of which 4 are drawn: the mean of a
    value over the neighbours that are drawn, which is the Horvitz-Thompson estimate and Hajek's,
    because a row draws k exactly, each neighbour with chance k / degree. In expectation it is the
    mean over all. Its squared error is that of draws without replacement, worked out:
    variance / k * (degree - k) / (degree - 1), as of uniform sampling.
    """
    degrees, count, num_batches = np.array([12, 30, 5]), 4, 4000
    rows = [np.arange(12), np.arange(30), np.arange(20, 25)]
    graph = _native.Csr(np.r_[0, np.cumsum(degrees)], np.concatenate(rows).astype(np.int32))
    values = np.random.default_rng(8).standard_normal(30) * 3 + 1
    true = np.array([values[row].mean() for row in rows])
    variance = np.array([values[row].var() for row in rows])
    for method in ("labor", "neighbor"):
        means = np.empty((num_batches, 3))
        for batch in range(num_batches):
            hop = options(count, method=method).at(RUN, batch, 0, 0, 0)
            _, drawn, _ = _native.sample_rows(graph, np.arange(3), hop)
            means[batch] = values[drawn].reshape(3, count).mean(1)
        expected = variance / count * (degrees - count) / (degrees - 1)
        bias = means.mean(0) - true
        assert (np.abs(bias) < 4.5 * np.sqrt(expected / num_batches)).all()
        # A sum of squared errors of 4000 draws: 10 % is more than 4 of its standard deviations.
        assert ((means - true) ** 2).mean(0) == pytest.approx(expected, rel=0.1)
        together = np.corrcoef(means[:, 0], means[:, 1])[0, 1]
        # Rows that share neighbours share draws with LABOR, and uniform draws are independent.
        assert together > 0.2 if method == "labor" else abs(together) < 0.07
